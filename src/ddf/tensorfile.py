"""PyTorch tensors in model files."""

__all__ = ["read_tensors", "tensors_from_bytes", "write_tensors"]

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddf.errors import DamagedFileError
from ddf.files import atomic_write
from ddf.modelfile import Entry, pack, read, unpack

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


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a header to a model file, atomically. Equal contents give equal files.

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
    return tensors_from_bytes(read(path), str(path))


def tensors_from_bytes(data: bytes, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a model file.

    Arguments:
        data: The contents of the file.
        name: Its name in error messages.
    """
    entries, header = unpack(data, name)
    tensors = {}
    for key, (dtype, shape, values) in entries.items():
        if dtype not in _DTYPES:
            raise DamagedFileError(f"{name}: {key} has the dtype {dtype}, which ddf does not write")
        # Copied to aligned memory: libraries may add numbers in another order if it is not aligned.
        tensor = torch.empty(shape, dtype=_DTYPES[dtype])
        tensor.flatten().view(torch.uint8).numpy().data[:] = values
        tensors[key] = tensor
    return tensors, header
