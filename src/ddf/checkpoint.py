"""One file in, one flow out: safetensors with the spec inside, never a pickle."""

__all__ = ["CheckpointError", "load", "save"]

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from ddf.files import atomic_write
from ddf.flow import Flow
from ddf.layers import Shuffle
from ddf.spec import FlowSpec, describe, from_plain, to_plain

FORMAT = 1
"""The version of the file format. A file of a newer one is refused; older ones are always read."""

_KEY = "ddf"  # one metadata key: with several, safetensors writes them in a different order in every process


class CheckpointError(ValueError):
    """A file that holds no flow, or a damaged one."""


def save(flow: Flow, path: str | PathLike[str]) -> None:
    """Writes a flow to one file: its spec, its weights and shuffles, and which of its layers are trained.

    The file appears whole or not at all, and equal flows give equal files.

    Example:
        >>> from ddf import architectures
        >>> flow = architectures.eight_gaussians().build(seed=0)
        >>> save(flow, "flow.safetensors")
        >>> load("flow.safetensors").spec == flow.spec
        True
    """
    # Each tensor by itself, for a flow in which two layers share a net.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in flow.state_dict().items()}
    _check_finite(tensors, "the flow was not saved")
    header = {
        "format": FORMAT,
        "spec": to_plain(describe(flow)),
        "frozen": [layer.frozen for layer in flow.parts()],
    }
    header["sha256"] = _digest(header, tensors)
    with atomic_write(path) as temporary:
        temporary.write_bytes(serialize(tensors, metadata={_KEY: json.dumps(header)}))


def load(path: str | PathLike[str], device: torch.device | str = "cpu") -> Flow:
    """Reads a flow that `save` wrote.

    Arguments:
        path: The file.
        device: Where the flow shall be.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not the file of a flow")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error
    if not isinstance(header, dict) or type(header.get("format")) is not int or header["format"] < 1:
        raise CheckpointError(f"{path} is a safetensors file, but ddf did not write it")
    if header["format"] > FORMAT:
        raise CheckpointError(
            f"{path} has format {header['format']}, but this version of ddf reads up to {FORMAT}: install a newer one"
        )
    if header.pop("sha256", None) != _digest(header, tensors):
        raise CheckpointError(f"{path} is damaged: its contents do not match their checksum")
    _check_finite(tensors, f"{path} was not loaded")
    try:
        flow = _restore(header, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not describe a flow: {error}") from error
    return flow.to(device)


def _restore(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> Flow:
    spec = from_plain(header["spec"])
    if not isinstance(spec, FlowSpec):
        raise ValueError(f"its spec is a {type(spec).__name__}")
    flow = spec.build().eval()
    flow.load_state_dict(tensors, assign=True)  # in the dtypes of the file
    for part, frozen in zip(flow.parts(), header["frozen"], strict=True):
        if isinstance(part, Shuffle):
            part.check()
        if frozen is True:
            part.freeze()
    return flow


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A checksum of everything in the file, however it is laid out there."""
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _check_finite(tensors: Mapping[str, Tensor], consequence: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            value = tensor[~tensor.isfinite()][0].item()
            raise CheckpointError(f"{name} contains {value}: {consequence}")
