"""Flows in integer arithmetic, which are lossless codecs: they compress to the same bytes on every machine."""

__all__ = ["IntegerFlow"]

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import log, prod
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddf.checkpoint import outline
from ddf.classes import Classes, classes_from_plain
from ddf.errors import DamagedFileError, InvalidCodeError, ModelError
from ddf.exact.exact_nets import ExactNet
from ddf.exact.integer_module import IntegerModule
from ddf.exact.quantize import outline_net
from ddf.exact.range_coder import Decoder, Encoder
from ddf.files import atomic_write
from ddf.flow import Flow, FlowSpec
from ddf.layers import Layer, Shuffle, ShuffleSpec
from ddf.logits import PER_BIT, frequencies
from ddf.modelfile import about, arrays_from_bytes, arrays_to_bytes, reading
from ddf.plain import to_plain
from ddf.shapes import Array, fits

_BATCH_SYMBOLS, _BATCH_LOGITS = 1 << 18, 1 << 21  # symbols, and their logits, that are processed together
_MOST_CLASSES = 1 << 15  # symbols are signed integers of 16 bits


class IntegerFlow(Flow):
    """A trained flow whose nets and base return integer logits: a flow like any other, and a lossless codec.

    It compresses arrays (…, *shape) whose trailing sizes suit the flow and whose values are among its classes; for a
    flow of one channel, also arrays (…, height, width).

    Its layers must compute with integers only. The built-in ones do, given exact nets, as does any layer without
    parameters of its own that only moves, compares, adds or multiplies symbols.

    Arguments:
        flow: A flow whose nets are exact (see `quantize_net`). The integer flow takes ownership of it.
    """

    def __init__(self, flow: Flow) -> None:
        _check_layers(flow.layer_list())
        if flow.num_classes > _MOST_CLASSES:
            raise ModelError(f"{flow.num_classes} classes have no integer form: at most {_MOST_CLASSES} are supported")
        if any(getattr(part, "limits", None) is not None for part in flow.parts()):
            raise ModelError("a flow with limits has no integer form, in which every class has a probability")
        if flow.classes is not None and not isinstance(flow.classes, Classes):
            raise ModelError("a flow of tables has no integer form: each column has its own classes")
        classes = flow.classes or Classes.plain(flow.num_classes)
        if classes.num_classes != flow.num_classes:
            raise ModelError(f"the flow names {classes.num_classes} classes, but it has {flow.num_classes}")
        flow.freeze()
        logits = flow.base.logits.detach()
        if logits.is_floating_point():
            logits = (logits.double() * (PER_BIT / log(2))).round().to(torch.int32)
        flow.base.logits = nn.Parameter(logits, requires_grad=False)
        super().__init__(flow.layer_list(), flow.base, flow.shape)
        self.classes: Classes = classes
        self.about = dict(flow.about)
        self._spec = _explicit(flow)
        for module in self._integer_modules().values():
            module.check()
        tensors = self._integers()
        sha = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name in sorted(tensors):
            values = tensors[name]
            sha.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
            sha.update(values.tobytes())
        self.fingerprint = sha.digest()[:16]

    @property
    def spec(self) -> FlowSpec:
        """The flow as plain data, with explicit shuffles and without its weights."""
        return self._spec

    # ---- Files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the flow to one file, atomically; `ddf.load(path)` reads it."""
        data = self.to_bytes()
        with atomic_write(path) as temporary:
            temporary.write_bytes(data)

    def to_bytes(self) -> bytes:
        """Return the contents of the file that `save` writes."""
        return arrays_to_bytes(self._integers(), {**self._header(), **({"about": self.about} if self.about else {})})

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the model") -> "IntegerFlow":
        """Load what `to_bytes` returned.

        Arguments:
            data: The bytes.
            name: Their name in error messages.
        """
        arrays, header = arrays_from_bytes(data, name)
        if header.get("kind") != "integer":
            raise DamagedFileError(
                f"{name} does not hold an integer flow but a model of the kind {header.get('kind')!r}; "
                "`ddf.export` makes integer flows"
            )
        with reading(f"{name} does not describe an integer flow"):
            spec = FlowSpec.from_plain(header["spec"])
            shapes: dict[str, tuple[int, ...]] = {
                f"layers.{i}.order": (len(layer.permutation or ()),)
                for i, layer in enumerate(spec.layers)
                if isinstance(layer, ShuffleSpec)
            }
            for key, array in arrays.items():
                shapes["base.logits" if key == "base" else f"layers.{key}"] = array.shape
            flow = outline(spec, shapes, outline_net)
            for key, module in _integer_modules(flow.layer_list()).items():
                own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
                module.set_integers({name: torch.from_numpy(arrays[f"{key}.{name}"]) for name, _ in own})
            for key, buffer in _tables(flow.layer_list()).items():
                buffer.copy_(torch.from_numpy(arrays[key]))
            if arrays["base"].dtype != np.int32:
                raise ValueError("base has a dtype or values that `save` does not write")
            flow.base.logits = nn.Parameter(torch.from_numpy(arrays["base"]), requires_grad=False)
            flow.classes = classes_from_plain(header["classes"])
            flow.about = about(header)
            model = cls(flow.eval())
            used = model._integers()
            for key, array in arrays.items():
                if key not in used or array.dtype != used[key].dtype or not np.array_equal(array, used[key]):
                    raise ValueError(f"{key} has a dtype or values that `save` does not write")
        if not model.is_exact():
            model.to("cpu")
        return model

    def __reduce__(self) -> "tuple[Any, ...]":
        return IntegerFlow.from_bytes, (self.to_bytes(),)

    def _header(self) -> dict[str, Any]:
        return {"kind": "integer", "spec": to_plain(self.spec), "classes": self.classes.to_plain()}

    def _integers(self) -> dict[str, Array]:
        tensors = {"base": self.base.logits.detach().cpu()}
        tensors |= {name: buffer.cpu() for name, buffer in _tables(self.layer_list()).items()}
        for key, module in self._integer_modules().items():
            tensors |= {f"{key}.{name}": tensor.cpu() for name, tensor in module.integer_tensors().items()}
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def _integer_modules(self) -> dict[str, IntegerModule]:
        return _integer_modules(self.layer_list())

    # ---- Devices -----------------------------------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> "IntegerFlow":  # type: ignore[override]
        """Move the flow to a device and test its arithmetic there; if it is inexact, use a slower one."""
        super().to(device)
        slower: list[tuple[str, Callable[[IntegerModule], None]]] = [
            ("multiply bytes exactly: using floating point instead", lambda module: module.use_no_bytes()),
            (
                "add integers exactly in single precision: using double precision instead",
                lambda module: module.use_doubles(),
            ),
        ]
        for why, change in slower:
            if self.is_exact():
                return self
            warnings.warn(f"{device} does not {why}", stacklevel=2)
            for module in self._integer_modules().values():
                change(module)
        if not self.is_exact():
            warnings.warn(f"{device} does not compute exactly and is not used", stacklevel=2)
            super().to("cpu")
        return self

    @torch.no_grad()
    def is_exact(self) -> bool:
        """Return whether the arithmetic of every part of every net passes a few tests on the flow's device."""
        return all(module.is_exact() for module in self._integer_modules().values())

    # ---- The codec ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def compress(self, array: Array) -> bytes | None:
        """Compress an array; return None if its shape or its values are not those of the flow.

        Arguments:
            array: Values of the flow's classes, (…, *shape).
        """
        shape = self._sample_shape(array.shape)
        if shape is None or not array.size or array.dtype.kind not in "iub":
            return None
        samples = array.reshape(-1, *shape)
        symbols = np.empty(samples.shape, np.uint8 if self.num_classes <= 256 else np.int16)
        try:
            for part in self._slices(len(samples), shape):
                symbols[part] = self.classes.to_symbols(samples[part])
        except ValueError:
            return None
        encoder = Encoder()
        for part in self._slices(len(samples), shape):
            emitted: list[tuple[Tensor, Tensor]] = []
            x = torch.from_numpy(symbols[part]).to(self.device, torch.int16)
            self.to_latents(x, lambda found, logits, emitted=emitted: emitted.append((found, logits)))  # type: ignore[misc]
            for found, logits in reversed(emitted):  # in the order of decoding
                encoder.put(found.flatten().cpu().numpy(), _rows(logits))
        return encoder.finish()

    @torch.no_grad()
    def decompress(self, data: bytes, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
        """Decompress what `compress` returned.

        Arguments:
            data: The code.
            shape: The shape of the array.
            dtype: Its dtype.
        """
        sample = self._sample_shape(shape)
        if sample is None:
            raise InvalidCodeError(f"the model cannot code arrays of shape {shape}")
        dtype, decoder = np.dtype(dtype), Decoder(data)
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        suits = np.array([low <= value <= high for value in self.classes.values])
        values = np.array([value if low <= value <= high else 0 for value in self.classes.values], dtype)
        latent_shape = self.latent_shape(sample)

        def draw(logits: Tensor) -> Tensor:
            symbols = torch.from_numpy(decoder.take(_rows(logits)))
            return symbols.to(self.device, torch.int16).view(logits.shape[:1] + logits.shape[2:])

        out = np.empty((prod(shape) // prod(sample), *sample), dtype)
        for part in self._slices(len(out), sample):
            symbols = self.to_data(part.stop - part.start, latent_shape, draw).cpu().numpy()
            if not suits.all() and not suits[symbols].all():
                value = self.classes.values[symbols[~suits[symbols]][0]]
                raise InvalidCodeError(f"the code contains the value {value}, which does not fit {dtype}")
            out[part] = values[symbols]
        return out.reshape(shape)

    def _slices(self, samples: int, shape: tuple[int, ...]) -> Iterator[slice]:
        """Yield the parts of an array of samples that are processed together."""
        together = max(1, min(_BATCH_SYMBOLS, _BATCH_LOGITS // self.num_classes) // prod(shape))
        for first in range(0, samples, together):
            yield slice(first, min(first + together, samples))

    def _sample_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the shape of the samples that an array consists of, or None if it does not consist of samples."""
        trailing = shape[max(0, len(shape) - len(self.shape)) :]
        for found in (trailing, (1, *shape[-2:])):
            if fits(found, self.shape) and min(found) > 0:
                try:
                    self.latent_shape(found)
                except ValueError:  # such as an odd height
                    continue
                return found
        return None


def _rows(logits: Tensor) -> Array:
    """Return the frequencies of integer logits, sample by sample: (batch · symbols, K)."""
    return frequencies(logits.movedim(1, -1).reshape(-1, logits.shape[1])).cpu().numpy()


def _check_layers(layers: Sequence[Layer]) -> None:
    """Raise an error for layers with parameters that do not belong to exact nets."""
    for i, layer in enumerate(layers):
        exact = {
            id(parameter)
            for module in layer.modules()
            if isinstance(module, ExactNet)
            for parameter in module.parameters()
        }
        for name, parameter in layer.named_parameters():
            if id(parameter) not in exact:
                raise ModelError(
                    f"layer {i}: {type(layer).__name__} has the parameter {name}, which does not belong to an exact net"
                )
        for name, buffer in layer.named_buffers(recurse=False):
            if buffer.is_floating_point():
                raise ModelError(f"layer {i}: {type(layer).__name__} has the buffer {name} in floating point")


def _explicit(flow: Flow) -> FlowSpec:
    """Return the spec of a flow with its shuffles written out."""
    layers = [
        ShuffleSpec(permutation=tuple(layer.order.tolist())) if isinstance(layer, Shuffle) else spec
        for layer, spec in zip(flow.layer_list(), flow.spec.layers, strict=True)
    ]
    return replace(flow.spec, layers=tuple(layers))


def _tables(layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Return the buffers of layers, which hold integers, without the order of shuffles, which is part of their spec."""
    return {
        f"{i}.{name}": buffer
        for i, layer in enumerate(layers)
        if not isinstance(layer, Shuffle)
        for name, buffer in layer.named_buffers(recurse=False)
        if name not in layer._non_persistent_buffers_set
    }


def _integer_modules(layers: Sequence[Layer]) -> dict[str, IntegerModule]:
    return {
        f"{i}.{name}": module
        for i, layer in enumerate(layers)
        for name, module in layer.named_modules()
        if isinstance(module, IntegerModule)
    }
