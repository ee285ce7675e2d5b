"""A flow in integer arithmetic: the two walks once more, for coding, the same on every machine."""

__all__ = ["IntegerFlow", "ModelError"]

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log, prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ddf.exact.coder import Array, Prediction
from ddf.exact.dense import DensePredictor
from ddf.exact.edges import Edge, edges_of
from ddf.exact.frequencies import PER_BIT, PRECISION, frequencies
from ddf.exact.integer import ExactAffine, Scale
from ddf.exact.quantize import quantize_net
from ddf.exact.sparse import SparsePredictor
from ddf.data.classes import Classes, classes_from_plain
from ddf.flow import Flow
from ddf.layers import ChannelSplit, Conditional, DenoisingCoupling, Layer, Shuffle, SplitPrior, Squeeze
from ddf.layers.layer import Rearrangement
from ddf.nets import ContextNet, DenseNet, Net
from ddf.permutation import rank, unrank
from ddf.prior import FactorizedCategorical
from ddf.spec import FlowSpec, ShuffleSpec, from_plain, to_plain
from ddf.symbols import one_hot
from ddf.tensorfile import DamagedFileError, read_tensors, tensors_to_bytes, write_tensors

_MOST_EDGES = 1 << 23  # pixels of maps, one of each size, whose edges are remembered: some bytes for each


class ModelError(ValueError):
    """A file that holds no integer flow, or one that cannot be used."""


class IntegerFlow:
    """A trained flow whose every decision and every frequency is integer arithmetic.

    Maps whose sizes the squeezes of the flow do not divide are continued to the right and below by pixels of no class,
    which nets see as such and which are never coded.

    Arguments:
        flow: A flow whose nets are exact (see `quantize_net`); it is taken over.
    """

    def __init__(self, flow: Flow) -> None:
        for layer in flow.layer_list():
            if not isinstance(layer, Rearrangement | SplitPrior | DenoisingCoupling):
                raise ModelError(f"there is no integer form of {type(layer).__name__}")
            if isinstance(layer, Conditional) and not isinstance(layer.partition, ChannelSplit):
                raise ModelError(f"there is no integer form of a {type(layer.partition).__name__}")
        self.spec = _explicit(flow)
        self.shape = flow.shape
        self.num_classes = flow.num_classes
        if flow.classes is not None and not isinstance(flow.classes, Classes):
            raise ModelError("there is no integer form of a flow of tables: their columns have classes of their own")
        self.classes: Classes = flow.classes or Classes.plain(self.num_classes)
        self.layers: Sequence[Layer] = [layer.freeze() for layer in flow.layer_list()]
        self.base: FactorizedCategorical = flow.base.freeze()
        self.base_logits = (flow.base.logits.detach().double() * (PER_BIT / log(2))).round().to(torch.int32).cpu()
        for layer in self.layers:
            for module in layer.modules():
                if isinstance(module, Scale) and module.factor not in (0.5, 1.0):
                    module.factor = 1.0  # logits stay in bits, which are exact
        self.about = dict(flow.about)
        self.squeezes = sum(isinstance(layer, Squeeze) for layer in self.layers)
        self.device = torch.device("cpu")
        self._predictors: dict[int, SparsePredictor | DensePredictor] = {}
        self._known_edges: dict[tuple[torch.device, tuple[int, ...]], tuple[list[Edge], Edge]] = {}
        tensors = {name: tensor.numpy() for name, tensor in self._integers().items()}
        sha = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name in sorted(tensors):
            values = tensors[name]
            sha.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
            sha.update(values.tobytes())
        self.fingerprint = sha.digest()[:16]

    # ---- Files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the integer flow to one file."""
        write_tensors(Path(path), self._integers(), self._whole_header())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "IntegerFlow":
        """Reads what `save` wrote."""
        if Path(path).is_dir():
            raise ModelError(f"{path} is a folder, not the file of an integer flow")
        return cls._load(Path(path), str(path))

    @classmethod
    def _load(cls, path: Path, name: str) -> "IntegerFlow":
        try:
            tensors, header = read_tensors(path)
            if header.get("integer") != 1:
                raise ModelError("it holds another flow, of which `export` makes one")
            spec = from_plain(header["spec"])
            flow: Flow = spec.build()
            flow.classes = classes_from_plain(header["classes"])
            for layer in flow.layer_list():
                if isinstance(layer, Conditional):
                    layer.net = quantize_net(layer.net, [])
            flow.base.logits.data.copy_(tensors["base"].double() * (log(2) / PER_BIT))
            flow.eval()
            for name, affine in _affines(flow.layer_list()).items():
                affine.fix(*(tensors[f"{name}.{part}"].double() for part in ("weight", "bias", "shift")))
            integer = cls(flow)
            integer.base_logits = tensors["base"]
            integer.about = dict(header.get("about") or {})
            if not integer.is_exact():
                integer.to("cpu")
        except (DamagedFileError, KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            why = str(error).replace(str(path), name)
            raise ModelError(f"{name} is not the file of an integer flow: {why}") from error
        return integer

    def to_bytes(self) -> bytes:
        """What `save` writes."""
        return tensors_to_bytes(self._integers(), self._whole_header())

    @classmethod
    def from_bytes(cls, data: bytes) -> "IntegerFlow":
        """Reads what `to_bytes` returned."""
        with tempfile.TemporaryDirectory(prefix="ddf-") as folder:
            path = Path(folder) / "model"
            path.write_bytes(data)
            return cls._load(path, "what was given")

    def _header(self) -> dict[str, Any]:
        return {"integer": 1, "spec": to_plain(self.spec), "classes": self.classes.to_plain()}

    def _whole_header(self) -> dict[str, Any]:
        return {**self._header(), **({"about": self.about} if self.about else {})}

    def _integers(self) -> dict[str, Tensor]:
        tensors = {"base": self.base_logits}
        for name, affine in self._affines().items():
            assert affine.fixed is not None
            weight, bias = affine.fixed
            small = torch.int8 if affine.limit < 128 else torch.int16
            tensors |= {f"{name}.weight": weight.to(small).cpu(), f"{name}.bias": bias.to(torch.int32).cpu()}
            tensors[f"{name}.shift"] = affine.shift.to(torch.int8).cpu()
        return tensors

    def _affines(self) -> dict[str, ExactAffine]:
        return _affines(self.layers)

    def to(self, device: torch.device | str) -> "IntegerFlow":
        """Moves the nets, after which they prove themselves; where they fail, something slower is used instead."""
        self._move(torch.device(device))
        slower: list[tuple[str, Callable[[ExactAffine], Any]]] = [
            ("multiply bytes exactly: floating point is used", ExactAffine.use_no_bytes),
            ("add integers exactly in single precision: double is used", ExactAffine.double),
        ]
        for why, change in slower:
            if self.is_exact():
                return self
            warnings.warn(f"{device} does not {why}", stacklevel=2)
            for affine in self._affines().values():
                change(affine)
            self._predictors = {}
        if not self.is_exact():
            warnings.warn(f"{device} does not add integers exactly and is not used", stacklevel=2)
            self._move(torch.device("cpu"))
        return self

    def _move(self, device: torch.device) -> None:
        self.device = device
        for layer in self.layers:
            layer.to(device)
        self._predictors = {}

    @torch.no_grad()
    def is_exact(self) -> bool:
        """Whether every layer of every net gives what 64-bit integers give, on a few probes."""
        return all(affine.is_exact() for affine in self._affines().values())

    # ---- The two walks -----------------------------------------------------------------------------------------------

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether samples of this shape can be coded."""
        return len(shape) == len(self.shape) and all(
            (have > 0 if want is None else have == want) for have, want in zip(shape, self.shape, strict=True)
        )

    def padded_pixels(self, shape: tuple[int, ...]) -> int:
        """How many symbols of a sample of this shape are worked on, those that are not there included."""
        if len(shape) != 3:
            return prod(shape)
        cell = 1 << self.squeezes
        return shape[0] * (-(-shape[1] // cell) * cell) * (-(-shape[2] // cell) * cell)

    @torch.no_grad()
    def forward(self, x: Array) -> list[tuple[Array, list[Prediction]]]:
        """Walks from data to latents.

        Arguments:
            x: Symbols (batch, *shape).

        Returns:
            What is to be coded, in the order in which it is decoded: symbols (batch, count), and a prediction for each
            sample.
        """
        symbols = self.padded(torch.from_numpy(np.ascontiguousarray(x)).to(self.device, torch.int16))
        edges, base_edge = self._edges(tuple(x.shape[1:]))
        found: list[tuple[Array, list[Prediction]]] = []
        for layer, edge in zip(self.layers, edges, strict=True):
            if isinstance(layer, Rearrangement):
                symbols = layer.arrange(symbols)
            elif isinstance(layer, SplitPrior):
                given, target = layer.given_and_target(symbols)
                found.append((edge.chosen(target).cpu().numpy(), self._predict(layer, given, edge)))
                symbols = given
            else:
                symbols = self.carry(layer, symbols)
        found.append((base_edge.chosen(symbols).cpu().numpy(), self._predict_base(len(symbols), base_edge)))
        return found[::-1]

    @torch.no_grad()
    def carry(self, layer: Layer, symbols: Tensor) -> Tensor:
        """What a layer leaves to the next of padded symbols (batch, *shape), int16."""
        if not isinstance(layer, DenoisingCoupling):
            return layer.carry(symbols)
        given, target = layer.given_and_target(symbols)
        known = target.clamp(max=self.num_classes - 1)
        ranks = rank(known, self._logits(layer, given).double(), layer.top, dim=1).to(torch.int16)
        return layer.partition.merge(given, torch.where(target < self.num_classes, ranks, target))

    @torch.no_grad()
    def inverse(self, batch: int, shape: tuple[int, ...], draw: Callable[[list[Prediction]], Array]) -> Array:
        """Walks from latents to data: what `forward` returns is asked of `draw`, in the same order.

        Returns:
            Symbols (batch, *shape), uint8 or int16.
        """
        edges, base_edge = self._edges(shape)
        symbols = self._placed(draw(self._predict_base(batch, base_edge)), base_edge)
        for layer, edge in zip(reversed(self.layers), reversed(edges), strict=True):
            if isinstance(layer, Rearrangement):
                symbols = layer.restore(symbols)
            elif isinstance(layer, SplitPrior):
                drawn = self._placed(draw(self._predict(layer, symbols, edge)), edge)
                parts = (symbols, drawn) if layer.factor_out == "b" else (drawn, symbols)
                symbols = layer.partition.merge(*parts)
            else:
                assert isinstance(layer, DenoisingCoupling)
                given, ranks = layer.partition.split(symbols)
                logits = self._logits(layer, given).double()
                target = unrank(ranks.clamp(max=self.num_classes - 1), logits, layer.top, dim=1).to(torch.int16)
                if edge.mask is not None:
                    target = torch.where(edge.mask, target, ranks)
                symbols = layer.partition.merge(given, target)
        cut = symbols[:, :, : shape[1], : shape[2]] if len(shape) == 3 else symbols
        return cut.to(torch.uint8 if self.num_classes <= 256 else torch.int16).cpu().numpy()

    # ---- The verbs of a flow -----------------------------------------------------------------------------------------

    def bits_per_dim(self, x: Tensor | Array, batch_size: int = 16) -> Tensor:
        """The bits that each sample takes, divided by its number of symbols: (samples,), float64."""
        symbols = x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        if not self.fits(symbols.shape[1:]):
            raise ValueError(f"the flow is for samples of shape {self.shape}, but these have {symbols.shape[1:]}")
        if symbols.size and not 0 <= symbols.min() <= symbols.max() < self.num_classes:
            raise ValueError(f"symbols are 0 … {self.num_classes - 1}, but there are {symbols.min()} … {symbols.max()}")
        total = np.zeros(len(symbols))
        for start in range(0, len(symbols), batch_size):
            for coded, predictions in self.forward(symbols[start : start + batch_size]):
                for i, (part, prediction) in enumerate(zip(coded, predictions, strict=True), start):
                    total[i] += prediction.costs(part).sum()
        return torch.from_numpy(total / max(1, prod(symbols.shape[1:])))

    def sample(self, n: int, generator: torch.Generator | None = None, size: Sequence[int] | None = None) -> Tensor:
        """Draws `n` samples by the frequencies that code.

        Arguments:
            n: How many.
            generator: The source of randomness; PyTorch's own if None.
            size: The spatial size of the samples, for a flow of any size.

        Returns:
            Symbols (n, *shape), int64.
        """
        if n < 0:
            raise ValueError(f"n={n}, but a number of samples cannot be negative")
        shape = tuple(side or 0 for side in self.shape) if size is None else (self.shape[0] or 0, *size)
        if not self.fits(shape):
            raise ValueError(f"size={size}, but samples of this flow have the shape {self.shape}: say which size")

        def draw(predictions: list[Prediction]) -> Array:
            points = torch.randint(1 << PRECISION, (len(predictions), len(predictions[0])), generator=generator).numpy()
            return np.stack([prediction.draw(part) for prediction, part in zip(predictions, points, strict=True)])

        found = [self.inverse(1, shape, draw) for _ in range(n)]
        whole = np.concatenate(found) if found else np.empty((0, *shape))
        return torch.from_numpy(whole.astype(np.int64))

    # ---- Predictions -------------------------------------------------------------------------------------------------

    def _logits(self, layer: Conditional, given: Tensor) -> Tensor:
        """Integer logits (batch, K, channels, *spatial), in any dtype."""
        if isinstance(layer.net, DenseNet):
            predictor = self._predictor(layer.net)
            assert isinstance(predictor, DensePredictor)
            return predictor.logits(given).permute(0, 3, 4, 1, 2)
        return layer.net(one_hot(given, self.num_classes)) * PER_BIT

    def _predict(self, layer: Conditional, given: Tensor, edge: Edge) -> list[Prediction]:
        if isinstance(layer.net, ContextNet):
            predictor = self._predictor(layer.net)
            assert isinstance(predictor, SparsePredictor)
            return predictor.predict(given, edge)
        logits = edge.chosen(self._logits(layer, given).movedim(1, -1), dimensions=len(edge.shape))
        rows = frequencies(logits.to(torch.int32).reshape(-1, self.num_classes)).cpu().numpy()
        return [_own(part) for part in rows.reshape(len(given), -1, self.num_classes)]

    def _predictor(self, net: Net) -> SparsePredictor | DensePredictor:
        found = self._predictors.get(id(net))
        if found is None:
            assert isinstance(net, ContextNet | DenseNet)
            found = SparsePredictor(net) if isinstance(net, ContextNet) else DensePredictor(net)
            self._predictors[id(net)] = found
        return found

    def _predict_base(self, batch: int, edge: Edge) -> list[Prediction]:
        spread = self.base_logits.movedim(0, -1)
        table = frequencies(spread.reshape(-1, self.num_classes)).numpy()
        if not self.base.shared:
            return [_own(table)] * batch
        channels = torch.arange(len(spread)).view(1, -1, *[1] * (len(edge.shape) - 1)).expand(1, *edge.shape)
        place = channels.flatten() if edge.index is None else channels.flatten()[edge.index.cpu()]
        return [Prediction(table, place.numpy(), _none(self.num_classes))] * batch

    # ---- Edges -------------------------------------------------------------------------------------------------------

    def _padding(self, shape: tuple[int, ...]) -> list[int]:
        if len(shape) != 3:
            return []
        cell = 1 << self.squeezes
        return [0, -shape[2] % cell, 0, -shape[1] % cell]

    def padded(self, x: Tensor, fill: int | None = None) -> Tensor:
        """Samples (batch, *shape), continued to a size that the squeezes divide by pixels of no class, or by `fill`."""
        padding = self._padding(tuple(x.shape[1:]))
        return F.pad(x, padding, value=self.num_classes if fill is None else fill) if any(padding) else x

    def _edges(self, shape: tuple[int, ...]) -> tuple[list[Edge], Edge]:
        """Which pixels of samples of a shape there are: of what each layer predicts, and of what the base does."""
        found = self._known_edges.get((self.device, shape))
        if found is None:
            whole = torch.ones((1, *shape), dtype=torch.bool)
            padding = self._padding(shape)
            inside = F.pad(whole, padding, value=False) if any(padding) else whole
            found = edges_of(self.layers, inside, self.device)
            if prod(shape) + sum(prod(other) for _, other in list(self._known_edges)) > _MOST_EDGES:
                self._known_edges.clear()
            self._known_edges[self.device, shape] = found
        return found

    def _placed(self, symbols: Array, edge: Edge) -> Tensor:
        """Symbols (batch, count) where they belong, no class elsewhere."""
        given = torch.from_numpy(symbols).to(self.device, torch.int16)
        if edge.index is None:
            return given.view(len(symbols), *edge.shape)
        out = torch.full((len(symbols), prod(edge.shape)), self.num_classes, dtype=torch.int16, device=self.device)
        return out.index_copy_(1, edge.index, given).view(len(symbols), *edge.shape)


def _explicit(flow: Flow) -> FlowSpec:
    """The spec of a flow with its shuffles spelled out."""
    layers = [
        ShuffleSpec(permutation=tuple(layer.order.tolist())) if isinstance(layer, Shuffle) else spec
        for layer, spec in zip(flow.layer_list(), flow.spec.layers, strict=True)
    ]
    return replace(flow.spec, layers=tuple(layers))


def _affines(layers: Sequence[Layer]) -> dict[str, ExactAffine]:
    return {
        f"{i}.{name}": module
        for i, layer in enumerate(layers)
        for name, module in layer.named_modules()
        if isinstance(module, ExactAffine)
    }


def _own(rows: Array) -> Prediction:
    return Prediction(_none(rows.shape[1]), np.full(len(rows), -1), rows)


def _none(classes: int) -> Array:
    return np.empty((0, classes), dtype=np.int32)
