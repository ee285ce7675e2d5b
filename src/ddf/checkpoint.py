"""Save and load flows: one safetensors file with the spec inside, never a pickle."""

__all__ = ["flow_from_bytes", "load_flow", "read_tensors", "save", "write_tensors"]

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddf.data.classes import classes_from_plain
from ddf.files import atomic_write
from ddf.flow import Flow
from ddf.layers import Shuffle
from ddf.modelfile import DamagedFileError, Entry, about, pack, read, reading, unpack
from ddf.spec import FlowSpec, describe, from_plain, to_plain

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "I64": torch.int64,
    "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def save(flow: Flow, path: str | PathLike[str]) -> None:
    """Write a flow to one file: its spec, its weights and shuffles, and which of its layers are trained.

    The file is written atomically, and equal flows give equal files.

    Examples:
        >>> from ddf import architectures
        >>> flow = architectures.eight_gaussians().build(seed=0)
        >>> save(flow, "flow.safetensors")
        >>> load_flow("flow.safetensors").spec == flow.spec
        True
    """
    spec, tensors = describe(flow), flow.state_dict()
    spec.check_limits()
    _check_finite(tensors, ValueError, "the flow was not saved")
    header = {
        "kind": "flow",
        "spec": to_plain(spec),
        "frozen": [layer.frozen for layer in flow.parts()],
        "classes": None if flow.classes is None else flow.classes.to_plain(),
        "about": flow.about,
    }
    write_tensors(Path(path), tensors, header)


def load_flow(path: str | PathLike[str], device: torch.device | str = "cpu") -> Flow:
    """Load a flow that `save` wrote; refuse models of other kinds."""
    return flow_from_bytes(read(path), str(path)).to(device)


def flow_from_bytes(data: bytes, name: str) -> Flow:
    """Load a flow from the bytes of its file.

    Arguments:
        data: The bytes.
        name: What to call them in errors.
    """
    tensors, header = _tensors(data, name)
    if header.get("kind") != "flow":
        raise DamagedFileError(f"{name} holds a model of the kind {header.get('kind')!r}; pass the float flow instead")
    _check_finite(tensors, DamagedFileError, f"{name} was not loaded")
    with reading(f"{name} does not describe a flow"):
        return _restore(header, tensors)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a header to a safetensors file, atomically.

    Examples:
        >>> write_tensors(Path("ones.safetensors"), {"ones": torch.ones(3)}, {"kind": "example"})
        >>> read_tensors(Path("ones.safetensors"))
        ({'ones': tensor([1., 1., 1.])}, {'kind': 'example'})
    """
    entries = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        entries[name] = Entry(_NAMES[plain.dtype], tuple(plain.shape), plain.flatten().view(torch.uint8).numpy().data)
    data = pack(entries, header)
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the header that `write_tensors` wrote."""
    return _tensors(read(path), str(path))


def _tensors(data: bytes, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    entries, header = unpack(data, name)
    tensors = {}
    for key, (dtype, shape, values) in entries.items():
        if dtype not in _DTYPES:
            raise DamagedFileError(f"{name}: {key} has the dtype {dtype}, which ddf does not write")
        # Into memory of its own, which is aligned: libraries may add in another order where it is not.
        tensor = torch.empty(shape, dtype=_DTYPES[dtype])
        tensor.flatten().view(torch.uint8).numpy().data[:] = values
        tensors[key] = tensor
    return tensors, header


def _restore(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> Flow:
    spec = from_plain(header["spec"])
    if not isinstance(spec, FlowSpec):
        raise ValueError(f"its spec is a {type(spec).__name__}")
    flow = spec.outline({name: tensor.shape for name, tensor in tensors.items()}).eval()
    for name, wanted in flow.state_dict().items():
        have = tensors[name]
        if have.dtype != wanted.dtype and not (have.is_floating_point() and wanted.is_floating_point()):
            raise ValueError(f"{name} is {have.dtype}, but a flow needs {wanted.dtype}")
    flow.load_state_dict(tensors, assign=True)  # in the dtypes of the file
    if any(buffer.is_meta for buffer in flow.buffers()):  # buffers that a net computes and that are not stored in files
        flow = spec.build().eval()
        flow.load_state_dict(tensors, assign=True)
    if header.get("classes") is not None:
        flow.classes = classes_from_plain(header["classes"])
        if flow.classes.num_classes != flow.num_classes:
            raise ValueError(f"it names {flow.classes.num_classes} classes, but the flow has {flow.num_classes}")
    flow.about = about(header)
    frozen = header["frozen"]
    if not isinstance(frozen, list) or [type(one) for one in frozen] != [bool] * len(flow.parts()):
        raise ValueError(f"`frozen` has true or false for each of its {len(flow.parts())} parts, but it is {frozen!r}")
    for part, is_frozen in zip(flow.parts(), frozen, strict=True):
        if isinstance(part, Shuffle):
            part.check()
        if is_frozen:
            part.freeze()
    return flow


def _check_finite(tensors: Mapping[str, Tensor], error: type[ValueError], consequence: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            value = tensor[~tensor.isfinite()][0].item()
            raise error(f"{name} contains {value}: {consequence}")
