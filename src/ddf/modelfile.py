"""Model files: arrays, a header of plain data and a checksum over both, in one safetensors file.

The header's `"kind"` names what the file holds: `"flow"`, `"integer"` or `"labelmaps"`. Nothing here imports PyTorch or
numba before a model that needs it is loaded.
"""

__all__ = [
    "DamagedFileError",
    "Entry",
    "arrays_from_bytes",
    "arrays_to_bytes",
    "from_bytes",
    "load",
    "pack",
    "read_arrays",
    "unpack",
    "write_arrays",
]

import hashlib
import json
from collections.abc import Mapping
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddf.files import atomic_write

if TYPE_CHECKING:
    import torch

    from ddf.exact import IntegerFlow
    from ddf.flow import Flow
    from ddf.labelmaps import CausalFlow

FORMAT = 1
"""The version of the file format. Newer versions are refused."""

_KEY = "ddf"  # the one metadata key
_LONGEST_HEADER = 100_000_000  # bytes, the limit of the safetensors format
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
_SIZES |= {"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
_NUMPY = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
_NUMPY |= {"U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}

Array = np.ndarray[Any, Any]


class DamagedFileError(ValueError):
    """A file that is not a model file, or whose contents do not match their checksum."""


class Entry(NamedTuple):
    """A tensor as a safetensors file stores it.

    Arguments:
        dtype: The name of its dtype in the format, such as `"F32"`.
        shape: Its shape.
        data: Its values, little-endian, in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


# ---- Models ----------------------------------------------------------------------------------------------------------


def load(path: str | PathLike[str], device: "torch.device | str" = "cpu") -> "Flow | IntegerFlow | CausalFlow":
    """Load a model of any kind.

    Arguments:
        path: The model file.
        device: Where to put a model that runs on PyTorch.
    """
    return _load(_read(Path(path)), str(path), device)


def from_bytes(data: bytes, name: str = "the model") -> "Flow | IntegerFlow | CausalFlow":
    """Load a model from the bytes of its file.

    Arguments:
        data: The bytes.
        name: What to call them in errors.
    """
    return _load(data, name, "cpu")


def _load(data: bytes, name: str, device: "torch.device | str") -> "Flow | IntegerFlow | CausalFlow":
    kind = _parse(data, name)[0].get("kind")
    if kind == "labelmaps":
        from ddf.labelmaps import CausalFlow

        return CausalFlow.from_bytes(data)
    if kind == "integer":
        from ddf.exact import IntegerFlow

        return IntegerFlow.from_bytes(data, name).to(device)
    if kind == "flow":
        from ddf.checkpoint import flow_from_bytes

        return flow_from_bytes(data, name).to(device)
    raise DamagedFileError(f"{name} holds a model of the unknown kind {kind!r}; a newer version of ddf may read it")


# ---- Arrays ----------------------------------------------------------------------------------------------------------


def write_arrays(path: Path, arrays: Mapping[str, Array], header: Mapping[str, Any]) -> None:
    """Write arrays and a header to a file, atomically. Equal contents give equal files.

    Examples:
        >>> write_arrays(Path("ones.safetensors"), {"ones": np.ones(3)}, {"kind": "example"})
        >>> read_arrays(Path("ones.safetensors"))
        ({'ones': array([1., 1., 1.])}, {'kind': 'example'})
    """
    data = arrays_to_bytes(arrays, header)
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read the arrays and the header that `write_arrays` wrote."""
    return arrays_from_bytes(_read(path), str(path))


def arrays_to_bytes(arrays: Mapping[str, Array], header: Mapping[str, Any]) -> bytes:
    """Return the contents of a file of arrays and a header."""
    entries = {}
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
        entries[name] = Entry(_NAMES[plain.dtype.str], plain.shape, plain.tobytes())
    return pack(entries, header)


def arrays_from_bytes(data: bytes, name: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the header of a file.

    Arguments:
        data: The contents of the file.
        name: What to call it in errors.
    """
    entries, header = unpack(data, name)
    arrays = {}
    for key, entry in entries.items():
        if entry.dtype not in _NUMPY:
            raise DamagedFileError(f"{name}: {key} has the dtype {entry.dtype}, which NumPy does not have")
        arrays[key] = np.frombuffer(entry.data, dtype=_NUMPY[entry.dtype]).reshape(entry.shape).copy()
    return arrays, header


# ---- The format ------------------------------------------------------------------------------------------------------


def pack(entries: Mapping[str, Entry], header: Mapping[str, Any]) -> bytes:
    """Return a safetensors file of entries, with the header and a checksum as metadata."""
    full = {"format": FORMAT, **header}
    full["sha256"] = _digest(full, entries)
    table: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(full)}}
    order = sorted(entries, key=lambda name: (-_SIZES[entries[name].dtype], name))  # which keeps values aligned
    end = 0
    for name in order:
        dtype, shape, values = entries[name]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(values)]}
        end += len(values)
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(entries[name].data for name in order)])


def unpack(data: bytes, name: str) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Return the entries and the header of a file that `pack` made, after checking them.

    Arguments:
        data: The contents of the file.
        name: What to call it in errors.
    """
    header, entries = _parse(data, name)
    if header.pop("sha256", None) != _digest(header, entries):
        raise DamagedFileError(f"{name} is damaged: its contents do not match their checksum")
    del header["format"]
    return entries, header


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a model file")
    return path.read_bytes()


def _parse(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Return the header and the entries of a file; their checksum is not compared yet."""
    view = memoryview(data)
    try:
        size = int.from_bytes(view[:8], "little")
        if len(view) < 8 or size > min(_LONGEST_HEADER, len(view) - 8):
            raise ValueError("its header is cut off")
        table = json.loads(bytes(view[8 : 8 + size]))
        metadata = table.pop("__metadata__", None) or {}
        header = json.loads(metadata.get(_KEY, "null"))
        values = view[8 + size :]
        entries: dict[str, Entry] = {}
        end = 0
        for key, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if dtype not in _SIZES or not all(type(side) is int and side >= 0 for side in shape):
                raise ValueError(f"{key} has the dtype {dtype} and the shape {shape}")
            if first != end or last - first != prod(shape) * _SIZES[dtype] or last > len(values):
                raise ValueError(f"{key} is cut off or misplaced")
            entries[key] = Entry(dtype, shape, values[first:last])
            end = last
        if end != len(values):
            raise ValueError(f"it has {len(values) - end} bytes too many")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(
            f"{name} is not a model file, or it is damaged (not a complete safetensors file: {error})"
        ) from error
    if not isinstance(header, dict) or type(header.get("format")) is not int or header["format"] < 1:
        raise DamagedFileError(f"{name} is a safetensors file that ddf did not write")
    if header["format"] > FORMAT:
        raise DamagedFileError(
            f"{name} has format {header['format']}, but this version of ddf reads up to {FORMAT}: install a newer one"
        )
    return header, entries


def _digest(header: Mapping[str, Any], entries: Mapping[str, Entry]) -> str:
    """Return the checksum of everything in a file, independent of its layout."""
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, (dtype, shape, data) in sorted(entries.items()):
        sha.update(f"{name} {dtype} {tuple(shape)}\n".encode())
        sha.update(data)
    return sha.hexdigest()
