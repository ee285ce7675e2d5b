"""Load flows from untrusted model files: everything is checked against the spec before memory is allocated."""

__all__ = ["flow_from_bytes", "outline"]

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ddf.errors import DamagedFileError
from ddf.flow import Flow, FlowSpec
from ddf.layers import Layer, Shuffle, ShuffleSpec
from ddf.layers.layer import in_layer
from ddf.modelfile import about, reading
from ddf.nets.net import NetSpec, channels_of
from ddf.shapes import Shape
from ddf.tensorfile import tensors_from_bytes

_EXTRA = "_extra_state"


def flow_from_bytes(data: bytes, name: str) -> Flow:
    """Load a flow from the contents of its file.

    Arguments:
        data: The contents of the file.
        name: Its name in error messages.
    """
    tensors, header = tensors_from_bytes(data, name)
    if header.get("kind") != "flow":
        raise DamagedFileError(f"{name} does not hold a flow but a model of the kind {header.get('kind')!r}")
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            value = tensor[~tensor.isfinite()][0].item()
            raise DamagedFileError(f"{key} contains {value}: {name} was not loaded")
    with reading(f"{name} does not describe a flow"):
        return _restore(header, tensors)


def _restore(header: dict[str, Any], tensors: dict[str, Tensor]) -> Flow:
    spec = FlowSpec.from_plain(header["spec"])
    shapes = {name: tensor.shape for name, tensor in tensors.items() if name != _EXTRA}
    flow = outline(spec, shapes).eval()
    for name, expected in flow.state_dict().items():
        found = tensors[name]
        if found.dtype != expected.dtype and not (found.is_floating_point() and expected.is_floating_point()):
            raise ValueError(f"{name} is {found.dtype}, but a flow needs {expected.dtype}")
    flow.load_state_dict(tensors, assign=True)  # in the dtypes of the file
    if any(buffer.is_meta for buffer in flow.buffers()):  # buffers that a net computes and that are not stored in files
        flow = spec.build().eval()
        flow.load_state_dict(tensors, assign=True)
    flow.about = about(header)
    for layer in flow.layer_list():
        if isinstance(layer, Shuffle):
            layer.check()
    return flow


def outline(
    spec: FlowSpec, tensors: Mapping[str, Sequence[int]], convert: Callable[[nn.Module], nn.Module] = lambda net: net
) -> Flow:
    """Build a flow for the tensors of a file, after checking that they are the ones that it needs.

    This takes no more time and memory than the tensors: the weights of the nets and of the base are on PyTorch's meta
    device, and each layer is compared with its tensors before the next one is built.

    Arguments:
        spec: The spec of the flow.
        tensors: The shape of each tensor, by its name in the flow.
        convert: A function that converts each net.
    """
    spec.check_limits()
    left = {name: tuple(shape) for name, shape in tensors.items()}
    counts = Counter(name.split(".")[1] for name in left if name.startswith("layers."))
    layers: list[Layer] = []
    shape: Shape = spec.shape
    for i, layer in enumerate(spec.layers):
        with in_layer(i):
            net = getattr(layer, "net", None)
            if isinstance(net, NetSpec):
                if net.least_tensors > counts[str(i)]:
                    raise ValueError(f"{net} needs more tensors than the {counts[str(i)]} that the file has for it")
                layer = replace(cast("Any", layer), net=_Outline(net, convert))
            elif isinstance(layer, ShuffleSpec):
                _compare(f"layers.{i}.order", (channels_of(shape),), left.get(f"layers.{i}.order"))
            layers.append(layer.build(spec.num_classes, shape))
            shape = layers[-1].output_shape(shape)
        _compare_all(f"layers.{i}.", layers[-1], left)
    with torch.device("meta"):
        base = spec.base.build(spec.num_classes, shape)
    _compare_all("base.", base, left)
    if left:
        raise ValueError(f"unexpected tensors: {', '.join(left)}")
    return Flow(layers, base, spec.shape)


@dataclass(frozen=True)
class _Outline(NetSpec):
    """Builds a net on PyTorch's meta device, where tensors take no memory, and converts it there."""

    net: NetSpec
    convert: Callable[[nn.Module], nn.Module]

    def build(self, num_classes: int, given: Shape, predicted: Shape) -> nn.Module:
        with torch.device("meta"):
            return self.convert(self.net.build(num_classes, given, predicted))


def _compare_all(prefix: str, module: nn.Module, left: dict[str, tuple[int, ...]]) -> None:
    """Compare the tensors of a module, and remove them from those that are left."""
    for name, tensor in module.state_dict().items():
        found = left.pop(prefix + name, None)
        if name != _EXTRA or found is not None:  # `load_state_dict` checks that the extra state is not missing
            _compare(prefix + name, tensor.shape, found)


def _compare(name: str, expected: Sequence[int], found: Sequence[int] | None) -> None:
    """Raise an error for a tensor whose shape differs from the one that a flow needs."""
    if found is None:
        raise ValueError(f"the tensor {name} is missing")
    if tuple(found) != tuple(expected):
        raise ValueError(f"{name} has the shape {tuple(found)}, but the spec needs {tuple(expected)}")
