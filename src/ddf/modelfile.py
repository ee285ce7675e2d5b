"""Model files: arrays, a header of plain data and a checksum over both, in one safetensors file.

The header's `"kind"` names what the file holds: `"flow"`, `"integer"` or `"labelmaps"`. Neither PyTorch
nor numba is imported here.
"""

__all__ = [
    "Entry",
    "about",
    "arrays_from_bytes",
    "arrays_to_bytes",
    "kind_of_file",
    "pack",
    "read",
    "read_arrays",
    "reading",
    "unpack",
    "write_arrays",
]

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddf.errors import DamagedFileError, LimitError, UnknownKindError
from ddf.files import atomic_write
from ddf.remote import is_url, read_bytes
from ddf.shapes import Array

FORMAT = 1
"""The version of the file format. Newer versions are rejected."""

_INCOMPLETE = "{} is not a model file, or it is damaged (not a complete safetensors file)"
_KEY = "ddf"  # the one metadata key
_ARCHIVE = b"\x89DDF"  # how archives begin
_LONGEST_HEADER = 1 << 26  # bytes; an entry takes 50 of them, so this bounds the number of entries as well
_DEEPEST = 64  # levels of nested objects and lists in a header
_MOST_SIDES = 32  # dimensions of a tensor, the most that all versions of NumPy support
_LARGEST = 1 << 40  # bytes of a tensor, where dimensions of size 0 count as 1
_LONGEST_REASON = 500  # characters of a file's contents that an error message quotes
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
_SIZES |= {"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
_NUMPY = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
_NUMPY |= {"U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


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


# ---- Reading ---------------------------------------------------------------------------------------------------------


def kind_of_file(data: bytes, name: str) -> object:
    """Return the kind of the model in a file; its checksum is not checked.

    Arguments:
        data: The contents of the file.
        name: Its name in error messages.
    """
    kind = _parse(data, name)[0].get("kind")
    return _brief(kind) if isinstance(kind, str) else kind


def read(path: str | PathLike[str]) -> bytes:
    """Return the contents of a model file, given its path or URL. A path to another file is rejected early."""
    if is_url(path):
        return read_bytes(str(path))
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a model file")
    with Path(path).open("rb") as file:
        _header_size(file.peek(8)[:8], str(path))
        return file.read()


def about(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known about a model in addition to what is needed to use it."""
    found = header.get("about")
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"its `about` is not an object, but {found!r}")
    return dict(found or {})


@contextmanager
def reading(message: str) -> Iterator[None]:
    """Turn every error that the contents of a file can cause into a `DamagedFileError`.

    Arguments:
        message: The beginning of its message: the name of the file, and what is wrong with it.
    """
    try:
        yield
    except UnknownKindError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DamagedFileError(f"{message}: {_brief(reason)}") from error


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
    return arrays_from_bytes(read(path), str(path))


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
        name: Its name in error messages.
    """
    entries, header = unpack(data, name)
    arrays = {}
    for key, entry in entries.items():
        if entry.dtype not in _NUMPY:
            raise DamagedFileError(f"{name}: {key} has the dtype {entry.dtype}, which NumPy does not support")
        arrays[key] = np.frombuffer(entry.data, dtype=_NUMPY[entry.dtype]).reshape(entry.shape).copy()
    return arrays, header


# ---- The format ------------------------------------------------------------------------------------------------------


def pack(entries: Mapping[str, Entry], header: Mapping[str, Any]) -> bytes:
    """Return a safetensors file of entries, with the header and a checksum as metadata."""
    full = {"format": FORMAT, **header}
    _check_depth(full)
    full["sha256"] = _digest(full, entries)
    table: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(full)}}
    order = sorted(entries, key=lambda name: (-_SIZES[entries[name].dtype], name))  # keeps values aligned
    end = 0
    for name in order:
        dtype, shape, values = entries[name]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(values)]}
        end += len(values)
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LONGEST_HEADER:
        raise LimitError(f"a model file has a header of at most {_LONGEST_HEADER} bytes, but this one has {len(text)}")
    return b"".join([len(text).to_bytes(8, "little"), text, *(entries[name].data for name in order)])


def unpack(data: bytes, name: str) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Return the entries and the header of a file that `pack` made, after checking them.

    Arguments:
        data: The contents of the file.
        name: Its name in error messages.
    """
    header, entries = _parse(data, name)
    if header.pop("sha256", None) != _digest(header, entries):
        raise DamagedFileError(f"{name} is damaged: its contents do not match their checksum")
    del header["format"]
    return entries, header


def _header_size(head: bytes | memoryview, name: str) -> int:
    """Return the size of the header of a file that begins with these 8 bytes."""
    if head[:4] == _ARCHIVE:
        raise DamagedFileError(f"{name} is an archive, not a model file")
    size = int.from_bytes(head, "little")
    if len(head) < 8 or size > _LONGEST_HEADER:
        raise DamagedFileError(_INCOMPLETE.format(name) + ": its header is truncated")
    return size


def _parse(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Return the header and the entries of a file; their checksum is not checked yet."""
    view = memoryview(data)
    size = _header_size(view[:8], name)
    with reading(_INCOMPLETE.format(name)):
        if size > len(view) - 8:
            raise ValueError("its header is truncated")
        table = _from_json(str(view[8 : 8 + size], "utf-8"))
        header = _from_json(table.pop("__metadata__", {}).get(_KEY, "null"))
        values = view[8 + size :]
        entries: dict[str, Entry] = {}
        end = 0
        for key, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
            key.encode()  # raises an error for unpaired surrogates
            dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if dtype not in _SIZES or not all(type(number) is int and number >= 0 for number in (*shape, first, last)):
                raise ValueError(f"{key} has the dtype {dtype}, the shape {shape} and the offsets {first}, {last}")
            small = len(shape) <= _MOST_SIDES and max(shape, default=0) <= _LARGEST
            if not small or prod(max(1, side) for side in shape) * _SIZES[dtype] > _LARGEST:
                raise ValueError(f"{key} has the shape {shape}, which is too large")
            if first != end or last - first != prod(shape) * _SIZES[dtype] or last > len(values):
                raise ValueError(f"{key} is truncated or misplaced")
            entries[key] = Entry(dtype, shape, values[first:last])
            end = last
        if end != len(values):
            raise ValueError(f"it has {len(values) - end} superfluous bytes")
    if not isinstance(header, dict) or type(header.get("format")) is not int or header["format"] < 1:
        raise DamagedFileError(f"{name} is a safetensors file that ddf did not write")
    if header["format"] > FORMAT:
        raise DamagedFileError(
            f"{name} has format {header['format']}, but this version of ddf reads up to {FORMAT}: install a newer one"
        )
    return header, entries


def _from_json(text: str) -> Any:
    """Parse JSON; reject duplicate keys and excessive nesting."""
    value = json.loads(text, object_pairs_hook=_object)
    _check_depth(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"one of the keys {', '.join(sorted(found))} occurs twice")
    return found


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [item for part in level if isinstance(part, dict | list | tuple) for item in _items(part)]
        if not level:
            return
    raise LimitError(f"the header of a model file has more than {_DEEPEST} levels of objects and lists")


def _items(part: Any) -> Any:
    return part.values() if isinstance(part, dict) else part


def _brief(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"


def _digest(header: Mapping[str, Any], entries: Mapping[str, Entry]) -> str:
    """Return the checksum of everything in a file, independent of its layout."""
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, (dtype, shape, data) in sorted(entries.items()):
        sha.update(f"{name} {dtype} {tuple(shape)}\n".encode())
        sha.update(data)
    return sha.hexdigest()
