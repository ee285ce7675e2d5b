"""Encode arrays as blocks of an archive, with a codec or with a general compressor, and decode them."""

__all__ = ["decode_block", "encode_blocks", "kind_of"]

import lzma
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from ddf.archive.blocks import (
    DTYPES,
    MOST_BYTES,
    MOST_DIMENSIONS,
    Block,
    DamagedArchiveError,
    Kind,
    Method,
    checksum,
    number_of,
    raw_bytes,
)
from ddf.archive.protocol import Array, Codec, InvalidCodeError

_SMALLEST_DICTIONARY, _LARGEST_DICTIONARY = 1 << 12, 1 << 26  # bytes
_PIECE = 1 << 20  # values that are compared at once
_GOOD = 32  # a code this many times smaller than the array is kept without trying a general compressor


def kind_of(array: Array, named: bool = True, shared: bool = False) -> Kind:
    """Return the kind of an array, uncompressed; refuse what is not an array of integers."""
    if array.dtype.kind not in "iub":
        raise TypeError(f"an archive holds arrays of integers, but this one has dtype {array.dtype}")
    if array.ndim > MOST_DIMENSIONS:
        raise ValueError(
            f"an archive holds arrays of up to {MOST_DIMENSIONS} dimensions, but this one has {array.ndim}"
        )
    if array.nbytes > MOST_BYTES:
        raise ValueError(f"an archive holds arrays of up to {MOST_BYTES} bytes, but this one has {array.nbytes}")
    dtype = DTYPES.index(array.dtype.newbyteorder("<").str)
    return Kind(Method.RAW, dtype, array.shape, named, shared)


def encode_blocks(
    codec: Codec | None, kind: Kind, arrays: Sequence[Array], names: Sequence[str], verify: bool = True
) -> list[Block]:
    """Encode arrays as one block, or as several if the codec takes only some of them.

    Arguments:
        codec: The codec to try first.
        kind: The kind of the arrays; its method is ignored.
        arrays: The arrays; one, unless the kind is shared.
        names: Their names.
        verify: Whether to decode each block and compare.
    """
    code = _code(codec, kind, arrays)
    runs = [(code, list(range(len(arrays))))]
    if code is None and codec is not None and len(arrays) > 1:
        accepted = [_code(codec, kind, [array]) is not None for array in arrays]
        parts = [list(run) for _, run in groupby(range(len(arrays)), accepted.__getitem__)]
        runs = [(_code(codec, kind, [arrays[i] for i in part]) if accepted[part[0]] else None, part) for part in parts]
    blocks = []
    for found, part in runs:
        some, called = [arrays[i] for i in part], tuple(names[i] for i in part)
        block = _smallest(kind, some, called, found)
        if verify and not all(map(_equal, decode_block(codec, block, check=False), some)):
            raise RuntimeError(f"{block.label} did not decode to itself; nothing was written")
        blocks.append(block)
    return blocks


def _equal(one: Array, two: Array) -> bool:
    """Compare two arrays piece by piece, which takes no memory."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    first, second = one.reshape(-1), two.reshape(-1)
    return all(np.array_equal(first[i : i + _PIECE], second[i : i + _PIECE]) for i in range(0, len(first), _PIECE))


def decode_block(codec: Codec | None, block: Block, slack: int = 0, check: bool = True) -> list[Array]:
    """Decode the arrays of a block and compare them with their checksum.

    Arguments:
        codec: The codec that the archive was made with.
        block: The block.
        slack: How many arrays may be missing before the block, in an archive that has lost some.
        check: Whether to compare the checksum.
    """
    count, kind = len(block.names), block.kind
    shape = (count, *kind.shape) if kind.shared else kind.shape
    dtype = np.dtype(DTYPES[kind.dtype])
    try:
        if kind.method == Method.CODEC:
            if codec is None:
                raise InvalidCodeError("the archive has no codec")
            found = codec.decode(block.payload, shape, dtype)
        else:
            found = _decode_generally(block, count * kind.size, dtype).reshape(shape)
    except (InvalidCodeError, lzma.LZMAError) as error:
        raise DamagedArchiveError(f"the archive is damaged: {block.label} cannot be decoded ({error})") from error
    except MemoryError as error:
        raise DamagedArchiveError(
            f"{block.label} of shape {kind.shape} does not fit into memory, or the archive is damaged"
        ) from error
    arrays = list(found) if kind.shared else [found]
    arrays = [np.asarray(array) for array in arrays]  # the elements of an array of scalars are not arrays
    if check and number_of(block, arrays, slack) is None:
        raise DamagedArchiveError(f"the archive is damaged: {block.label} does not match its checksum")
    return arrays


def _code(codec: Codec | None, kind: Kind, arrays: Sequence[Array]) -> bytes | None:
    if codec is None or not arrays[0].size:
        return None
    return codec.encode(np.stack(arrays) if kind.shared else arrays[0])


def _smallest(kind: Kind, arrays: Sequence[Array], names: tuple[str, ...], code: bytes | None) -> Block:
    """Return the smallest block: coded as given, by the general compressor, or not at all."""
    candidates = [] if code is None else [(Method.CODEC, code)]
    if code is None or _GOOD * len(code) > kind.size * len(arrays):
        raw = b"".join(raw_bytes(kind, array) for array in arrays)
        candidates.append((Method.LZMA, lzma.compress(raw, lzma.FORMAT_RAW, filters=_filters(len(raw)))))
        candidates.append((Method.RAW, raw))
    method, payload = min(candidates, key=lambda candidate: len(candidate[1]))
    kind = replace(kind, method=method)
    return Block(kind, names, checksum(kind, names, arrays, payload), payload)


def _decode_generally(block: Block, size: int, dtype: "np.dtype[Any]") -> Array:
    raw = block.payload
    if block.kind.method == Method.LZMA:
        raw = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_filters(size)).decompress(raw, max_length=size + 1)
    if len(raw) != size:
        raise InvalidCodeError(f"it has {len(raw)} bytes, not {size}")
    if dtype.kind == "b" and raw.strip(b"\0\1"):
        raise InvalidCodeError("it holds bytes that are neither true nor false")
    return np.frombuffer(raw, dtype=dtype).copy()


def _filters(size: int) -> list[dict[str, Any]]:
    """Return the settings of `xz -9e`, with a dictionary no larger than data of this size needs."""
    needed = 1 << max(0, size - 1).bit_length()
    dictionary = min(max(needed, _SMALLEST_DICTIONARY), _LARGEST_DICTIONARY)
    return [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": dictionary}]
