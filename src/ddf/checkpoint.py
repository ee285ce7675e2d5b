"""One file in, one flow out: safetensors with the spec inside, never a pickle."""

__all__ = ["CheckpointError", "load", "load_flow", "save"]

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddf.data.classes import classes_from_plain
from ddf.flow import Flow
from ddf.layers import Shuffle
from ddf.spec import FlowSpec, describe, from_plain, to_plain
from ddf.tensorfile import DamagedFileError, read_tensors, write_tensors

if TYPE_CHECKING:
    from ddf.codec.flow import IntegerFlow


class CheckpointError(ValueError):
    """A file that holds no flow, or a damaged one."""


def save(flow: Flow, path: str | PathLike[str]) -> None:
    """Writes a flow to one file: its spec, its weights and shuffles, and which of its layers are trained.

    The file appears whole or not at all, and equal flows give equal files.

    Examples:
        >>> from ddf import architectures
        >>> flow = architectures.eight_gaussians().build(seed=0)
        >>> save(flow, "flow.safetensors")
        >>> load("flow.safetensors").spec == flow.spec
        True
    """
    tensors = flow.state_dict()
    _check_finite(tensors, "the flow was not saved")
    header = {
        "spec": to_plain(describe(flow)),
        "frozen": [layer.frozen for layer in flow.parts()],
        "classes": None if flow.classes is None else flow.classes.to_plain(),
        "about": flow.about,
    }
    write_tensors(Path(path), tensors, header)


def load(path: str | PathLike[str], device: torch.device | str = "cpu") -> "Flow | IntegerFlow":
    """Reads a model: a flow that `save` wrote, or an integer flow, as the codec's training makes them.

    Arguments:
        path: The file.
        device: Where the model shall be.
    """
    tensors, header = _read(Path(path))
    if header.get("integer") == 1:
        from ddf.codec.flow import IntegerFlow

        return IntegerFlow.load(path).to(device)
    return _flow(Path(path), tensors, header).to(device)


def load_flow(path: str | PathLike[str], device: torch.device | str = "cpu") -> Flow:
    """Reads a flow that `save` wrote, and refuses integer flows."""
    tensors, header = _read(Path(path))
    if header.get("integer") == 1:
        raise CheckpointError(f"{path} holds an integer flow, which is for coding; this takes the flow it was made of")
    return _flow(Path(path), tensors, header).to(device)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not the file of a flow")
    try:
        return read_tensors(path)
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from error


def _flow(path: Path, tensors: Mapping[str, Tensor], header: dict[str, Any]) -> Flow:
    _check_finite(tensors, f"{path} was not loaded")
    try:
        return _restore(header, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not describe a flow: {error}") from error


def _restore(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> Flow:
    spec = from_plain(header["spec"])
    if not isinstance(spec, FlowSpec):
        raise ValueError(f"its spec is a {type(spec).__name__}")
    flow = spec.build().eval()
    flow.load_state_dict(tensors, assign=True)  # in the dtypes of the file
    if header.get("classes") is not None:
        flow.classes = classes_from_plain(header["classes"])
        if flow.classes.num_classes != flow.num_classes:
            raise ValueError(f"it names {flow.classes.num_classes} classes, but the flow has {flow.num_classes}")
    flow.about = dict(header.get("about") or {})
    for part, frozen in zip(flow.parts(), header["frozen"], strict=True):
        if isinstance(part, Shuffle):
            part.check()
        if frozen is True:
            part.freeze()
    return flow


def _check_finite(tensors: Mapping[str, Tensor], consequence: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            value = tensor[~tensor.isfinite()][0].item()
            raise CheckpointError(f"{name} contains {value}: {consequence}")
