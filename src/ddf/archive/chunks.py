"""Single arrays as bytes, for containers that have an index and metadata of their own, such as zarr stores."""

__all__ = ["decode_chunk", "encode_chunk"]

import numpy as np

from ddf.archive.blocks import DTYPES, Block, Kind, Method, placed
from ddf.archive.encoding import decode_block, encode_blocks, kind_of
from ddf.archive.limits import DEFAULT_MAX_BYTES
from ddf.errors import DamagedFileError, InvalidCodeError
from ddf.protocol import Codec
from ddf.shapes import Array, check_bytes

_CHECKSUM = 4  # bytes


def encode_chunk(array: Array, model: Codec | None, verify: bool = True) -> bytes:
    """Encode an array of integers as bytes, which `decode_chunk` decodes.

    Arguments:
        array: The array.
        model: The codec; None to use only a general-purpose compressor.
        verify: Whether to verify the result by decoding it.

    Examples:
        >>> data = encode_chunk(np.zeros((64, 64), np.uint8), model=None)
        >>> len(data), decode_chunk(data, model=None).shape
        (43, (64, 64))
    """
    array = np.asarray(array)
    kind = kind_of(array)
    (block,) = encode_blocks(model, kind, [array.astype(array.dtype.newbyteorder("<"), copy=False)], verify)
    described = block.kind.to_bytes()
    checksum = placed(block.checksum, 0).to_bytes(_CHECKSUM, "little")
    return bytes([len(described)]) + described + checksum + block.payload


def decode_chunk(
    data: bytes,
    model: Codec | None,
    shape: tuple[int, ...] | None = None,
    dtype: "np.dtype[np.generic] | None" = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Array:
    """Return the array that `encode_chunk` encoded.

    Arguments:
        data: The bytes.
        model: The codec that encoded them.
        shape: The shape of the array, if it is known.
        dtype: Its dtype, if it is known.
        max_bytes: The largest array to decode, in bytes, if its shape is not known.

    Raises:
        DamagedFileError: The bytes are damaged, or were encoded with another model or for another array.
    """
    try:
        start = 1 + data[0]
        kind = Kind.from_bytes(bytes(data[1:start]))
        if len(data) < start + _CHECKSUM:
            raise ValueError("they are truncated")
    except (ValueError, IndexError) as error:
        raise DamagedFileError(f"these bytes are not an array encoded by ddf, or are damaged ({error})") from error
    if shape is not None and kind.shape != tuple(shape):
        raise DamagedFileError(f"a chunk is damaged: it holds an array of shape {kind.shape}, not {tuple(shape)}")
    if dtype is not None and DTYPES[kind.dtype] != dtype.newbyteorder("<").str:
        raise DamagedFileError(f"a chunk is damaged: it holds {np.dtype(DTYPES[kind.dtype])}, not {dtype}")
    if shape is None:
        check_bytes("a chunk", kind.size, max_bytes)
    checksum = int.from_bytes(data[start : start + _CHECKSUM], "little")
    block = Block(kind, 1, checksum, bytes(data[start + _CHECKSUM :]))
    try:
        return decode_block(model if kind.method == Method.CODEC else None, block)[0]
    except InvalidCodeError as error:
        raise DamagedFileError(f"a chunk is damaged or was encoded with another model: {error}") from error
