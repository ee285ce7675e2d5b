"""Encode arrays as blocks of an archive, with a codec or with a general-purpose compressor, and decode them."""

__all__ = ["decode_block", "encode_blocks", "kind_of"]

import lzma
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from ddf.archive.blocks import DTYPES, Block, Kind, Method, checksum, placed, raw_bytes
from ddf.archive.limits import MAX_DIMENSIONS
from ddf.archive.varint import read_column, write_column
from ddf.errors import InvalidCodeError
from ddf.protocol import Codec
from ddf.shapes import Array

Item = TypeVar("Item")

_SMALLEST_DICTIONARY, _LARGEST_DICTIONARY = 1 << 12, 1 << 24  # bytes
_SMALLEST_LZMA = 12  # bytes of an LZMA2 stream that is not empty
_PIECE = 1 << 20  # values that are compared, or bytes that are decompressed, at once
_GOOD = 32  # a code this many times smaller than the array is kept without trying a general-purpose compressor
_BAND = 1 << 24  # values; larger arrays are encoded in bands


def kind_of(array: Array, shared: bool = False) -> Kind:
    """Return the kind of an uncompressed array; raise an error unless it is an array of integers."""
    if array.dtype.kind not in "iub":
        raise TypeError(f"archives hold arrays of integers, but this array has dtype {array.dtype}")
    if array.ndim > MAX_DIMENSIONS:
        raise ValueError(f"archives hold arrays of up to {MAX_DIMENSIONS} dimensions, but this array has {array.ndim}")
    return Kind(Method.RAW, DTYPES.index(array.dtype.newbyteorder("<").str), array.shape, shared)


# ---- Encoding --------------------------------------------------------------------------------------------------------


def encode_blocks(
    codec: Codec | None, kind: Kind, arrays: Sequence[Array], verify: bool = True, threads: int = 1
) -> list[Block]:
    """Encode arrays as one block, or as several if the codec supports only some of them.

    Arguments:
        codec: The codec to try first.
        kind: The kind of the arrays; its method is ignored.
        arrays: The arrays; one, unless the kind is shared.
        verify: Whether to decode each block and compare.
        threads: The number of threads for the bands of a large array.
    """
    kind, code = _code(codec, kind, arrays, threads)
    runs = [(code, list(range(len(arrays))))]
    if code is None and codec is not None and len(arrays) > 1:
        accepted = [_code(codec, kind, [array])[1] is not None for array in arrays]
        parts = [list(run) for _, run in groupby(range(len(arrays)), accepted.__getitem__)]
        runs = [
            (_code(codec, kind, [arrays[i] for i in part])[1] if accepted[part[0]] else None, part) for part in parts
        ]
    blocks = []
    for found, part in runs:
        some = [arrays[i] for i in part]
        block = _smallest(kind, some, found)
        if verify and not _decodes_to(codec, block, some):
            raise RuntimeError("decoding an array did not restore it; nothing was written")
        blocks.append(block)
    return blocks


def _code(codec: Codec | None, kind: Kind, arrays: Sequence[Array], threads: int = 1) -> tuple[Kind, bytes | None]:
    """Return the kind and the code of arrays, None if the codec does not support them."""
    if codec is None or not arrays[0].size:
        return kind, None
    if kind.shared:
        return kind, codec.compress(np.stack(arrays))
    array = arrays[0]
    if array.ndim < 2 or array.size < 2 * _BAND or len(array) < 2:
        return kind, codec.compress(array)
    count = min(len(array), array.size // _BAND)
    banded = replace(kind, method=Method.CODEC, band=-(-len(array) // count))
    codes = list(_in_threads(codec.compress, [array[rows] for rows in banded.bands], threads))
    if any(code is None for code in codes):
        return kind, None
    found = [code for code in codes if code is not None]
    return banded, write_column(map(len, found[:-1])) + b"".join(found)


def _smallest(kind: Kind, arrays: Sequence[Array], code: bytes | None) -> Block:
    """Return the smallest block: with the given code, compressed by the general-purpose compressor, or raw."""
    candidates = [] if code is None else [(Method.CODEC, code)]
    if code is None or _GOOD * len(code) > kind.size * len(arrays):
        raw = b"".join(raw_bytes(kind, array) for array in arrays)
        if code is None or len(code) > _SMALLEST_LZMA:
            candidates.append((Method.LZMA, lzma.compress(raw, lzma.FORMAT_RAW, filters=_filters(len(raw)))))
        candidates.append((Method.RAW, raw))
    method, payload = min(candidates, key=lambda candidate: len(candidate[1]))
    kind = replace(kind, method=method, band=kind.band if method == Method.CODEC else 0)
    return Block(kind, len(arrays), checksum(kind, arrays, payload), payload)


def _decodes_to(codec: Codec | None, block: Block, arrays: Sequence[Array]) -> bool:
    if not block.kind.band:
        return all(map(_equal, _decoded(codec, block, 1), arrays))
    return all(_equal(band, arrays[0][rows]) for rows, band in _decoded_bands(codec, block))


def _equal(one: Array, two: Array) -> bool:
    """Compare two arrays piece by piece, without temporary copies of them."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    first, second = one.reshape(-1), two.reshape(-1)
    return all(np.array_equal(first[i : i + _PIECE], second[i : i + _PIECE]) for i in range(0, len(first), _PIECE))


# ---- Decoding --------------------------------------------------------------------------------------------------------


def decode_block(codec: Codec | None, block: Block, threads: int = 1) -> list[Array]:
    """Decode the arrays of a block and compare them with their checksum.

    Arguments:
        codec: The codec that the archive was made with.
        block: The block.
        threads: The number of threads for the bands of a large array.

    Raises:
        InvalidCodeError: The block cannot be decoded, or does not match its checksum.
    """
    try:
        arrays = _decoded(codec, block, threads)
    except lzma.LZMAError as error:
        raise InvalidCodeError(str(error)) from error
    except MemoryError as error:
        raise InvalidCodeError(f"an array of shape {block.kind.shape} does not fit into memory") from error
    if placed(checksum(block.kind, arrays, block.payload), block.number) != block.checksum:
        raise InvalidCodeError("it does not match its checksum")
    return arrays


def _decoded(codec: Codec | None, block: Block, threads: int) -> list[Array]:
    kind = block.kind
    shape = (block.count, *kind.shape) if kind.shared else kind.shape
    dtype = np.dtype(DTYPES[kind.dtype])
    if kind.band:
        whole = np.empty(shape, dtype)
        for rows, band in _decoded_bands(codec, block, threads):
            whole[rows] = band
        return [whole]
    if kind.method == Method.CODEC:
        if codec is None:
            raise InvalidCodeError("it needs a model, but the archive was made without one")
        found = codec.decompress(block.payload, shape, dtype)
    else:
        found = _decoded_generally(block, block.count * kind.size, dtype).reshape(shape)
    arrays = list(found) if kind.shared else [found]
    return [np.asarray(array) for array in arrays]  # the elements of an array of scalars are not arrays


def _decoded_bands(codec: Codec | None, block: Block, threads: int = 1) -> Iterator[tuple[slice, Array]]:
    """Yield the rows of each band of an array, and its values."""
    kind, dtype = block.kind, np.dtype(DTYPES[block.kind.dtype])
    if codec is None:
        raise InvalidCodeError("it needs a model, but the archive was made without one")
    bands = kind.bands
    try:
        sizes, start = read_column(block.payload, 0, len(bands) - 1)
    except ValueError as error:
        raise InvalidCodeError(str(error)) from error
    starts = [start, *(start + sizes.cumsum()).tolist()]
    codes = [block.payload[first:last] for first, last in zip(starts, [*starts[1:], None], strict=True)]

    def decode(number: int) -> Array:
        rows = bands[number]
        return codec.decompress(codes[number], (rows.stop - rows.start, *kind.shape[1:]), dtype)

    yield from zip(bands, _in_threads(decode, range(len(bands)), threads), strict=True)


def _decoded_generally(block: Block, size: int, dtype: "np.dtype[Any]") -> Array:
    """Decode a block that is raw or was compressed by the general-purpose compressor."""
    out = np.empty(size, np.uint8)
    if block.kind.method == Method.RAW:
        if len(block.payload) != size:
            raise InvalidCodeError(f"it has {len(block.payload)} bytes, not {size}")
        out[:] = np.frombuffer(block.payload, np.uint8)
    else:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_filters(size))
        done, data = 0, block.payload
        while True:
            part = unpacker.decompress(data, max_length=_PIECE)
            data = b""
            if done + len(part) > size:
                raise InvalidCodeError(f"it has more than {size} bytes")
            out[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
            if unpacker.eof or not part:
                break
        if done != size:
            raise InvalidCodeError(f"it has {done} bytes, not {size}")
    if dtype.kind == "b" and (out > 1).any():
        raise InvalidCodeError("it contains truth values other than 0 and 1")
    return out.view(dtype)


def _filters(size: int) -> list[dict[str, Any]]:
    """Return the settings of `xz -9e`, with a dictionary for data of this size, but at most 16 MiB."""
    needed = 1 << max(0, size - 1).bit_length()
    dictionary = min(max(needed, _SMALLEST_DICTIONARY), _LARGEST_DICTIONARY)
    return [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": dictionary}]


def _in_threads(function: Callable[[Any], Item], items: Sequence[Any], threads: int) -> Iterator[Item]:
    if threads < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(function, items)
