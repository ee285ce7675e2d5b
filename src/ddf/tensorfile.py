"""A file of tensors with a header of plain data, and a checksum over both."""

__all__ = ["DamagedFileError", "read_tensors", "tensors_to_bytes", "write_tensors"]

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from ddf.files import atomic_write

FORMAT = 1
"""The version of the file format. A file of a newer one is refused; older ones are always read."""

_KEY = "ddf"  # one metadata key: with several, safetensors writes them in a different order in every process


class DamagedFileError(ValueError):
    """A file that is not what was written."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Writes tensors and a header to a safetensors file, whole or not at all. Equal contents give equal files.

    Examples:
        >>> write_tensors(Path("numbers.safetensors"), {"one": torch.ones(3)}, {"what": "ones"})
        >>> read_tensors(Path("numbers.safetensors"))
        ({'one': tensor([1., 1., 1.])}, {'what': 'ones'})
    """
    data = tensors_to_bytes(tensors, header)
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def tensors_to_bytes(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    """What `write_tensors` writes."""
    # Each tensor by itself: two of them may share memory.
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    whole = {"format": FORMAT, **header}
    whole["sha256"] = _digest(whole, plain)
    return serialize(plain, metadata={_KEY: json.dumps(whole)})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_tensors` wrote, and refuses anything else."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, "null"))
            # Cloned into memory that is aligned as it always is: libraries may add up in another order where it is not.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is no model, or a damaged one (not a whole safetensors file: {error})"
        ) from error
    if not isinstance(header, dict) or type(header.get("format")) is not int or header["format"] < 1:
        raise DamagedFileError(f"{path} is a safetensors file, but ddf did not write it")
    if header["format"] > FORMAT:
        raise DamagedFileError(
            f"{path} has format {header['format']}, but this version of ddf reads up to {FORMAT}: install a newer one"
        )
    if header.pop("sha256", None) != _digest(header, tensors):
        raise DamagedFileError(f"{path} is damaged: its contents do not match their checksum")
    del header["format"]
    return tensors, header


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A checksum of everything in the file, however it is laid out there."""
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
