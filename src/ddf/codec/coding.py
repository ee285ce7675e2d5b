"""Arrays to blocks of an archive and back: by the model, or by a general compressor."""

__all__ = ["decode_blocks", "encode_blocks", "kind_of"]

import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from ddf.codec.blocks import (
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
from ddf.codec.coder import Array, Decoder, Encoder, InvalidCodeError, Prediction
from ddf.codec.flow import IntegerFlow
from ddf.codec.labels import Labels, relabelled

TILE = 2048
"""Larger maps are cut into tiles of so many rows and columns, each coded by itself."""

BATCH_PIXELS = 1 << 22
"""So many pixels of one block are worked on together at most."""

_MOST_PADDING = 64  # a model is not used on maps so thin that so many times their pixels would be worked on
_SUSPICIOUS = 2  # a general compressor is tried where a hasty one takes less than so many times what the model takes
_FILTERS: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": 6}]


def kind_of(array: Array, model: IntegerFlow | None, named: bool = True, shared: bool = False) -> Kind:
    """The kind of an array, coded by the model if it can be; refuses what is no array of integers."""
    if array.dtype.kind not in "iub":
        raise TypeError(f"an archive holds arrays of integers, but this one has the dtype {array.dtype}")
    if array.ndim > MOST_DIMENSIONS:
        raise ValueError(f"an archive holds arrays of up to {MOST_DIMENSIONS} dimensions, not of {array.ndim}")
    if array.nbytes > MOST_BYTES:
        raise ValueError(f"an archive holds arrays of up to {MOST_BYTES} bytes, not of {array.nbytes}")
    dtype = DTYPES.index(array.dtype.newbyteorder("<").str)
    modelled = model is not None and array.size > 0 and _sample_shape(model, array.shape) is not None
    return Kind(Method.MODEL if modelled else Method.LZMA, dtype, array.shape, named, shared)


def encode_blocks(
    model: IntegerFlow | None,
    kind: Kind,
    labels: Sequence[Labels],
    arrays: Sequence[Array],
    names: Sequence[str],
    verify: bool = True,
) -> list[Block]:
    """Codes arrays of one kind: one block for all of them if the kind is shared, else one for each.

    What the model cannot code, or does badly, goes through a general compressor, or stays as it is: such blocks are of
    another kind.

    Arguments:
        model: What to code with.
        kind: The kind of all of them, but for labels.
        labels: Those of each array; of all the same if the kind is shared.
        arrays: The arrays.
        names: What they are called.
        verify: Whether to decode them again.
    """
    blocks: list[Block] = []
    general = replace(kind, method=Method.LZMA)
    if kind.method == Method.MODEL:
        assert model is not None
        symbols = [_symbols(model, array, own) for array, own in zip(arrays, labels, strict=True)]
        known = [i for i, part in enumerate(symbols) if part is not None]
        if kind.shared and len(known) < len(arrays):  # what the model knows shares blocks, and the rest does
            for is_known, run in groupby(range(len(arrays)), lambda i: symbols[i] is not None):
                which = list(run)
                job = [labels[i] for i in which], [arrays[i] for i in which], [names[i] for i in which], verify
                blocks += encode_blocks(model, kind if is_known else general, *job)
            return blocks
        coded = _encode_with_model(model, kind, [part for part in symbols if part is not None])
        if verify and coded:
            decoded = _decode_with_model(model, kind, [payload for payload, _ in coded], len(known))
            for i, found_symbols in zip(known, decoded, strict=True):
                if not np.array_equal(_values(model, replace(kind, labels=labels[i]), found_symbols), arrays[i]):
                    raise RuntimeError(f"{names[i] or 'an array'} did not decode to itself; nothing was written")
        groups = [list(range(len(arrays)))] if kind.shared else [[i] for i in range(len(arrays))]
        found = dict(zip([0] if kind.shared else known, coded, strict=True)) if coded else {}
        for number, group in enumerate(groups):
            some, called = [arrays[i] for i in group], tuple(names[i] for i in group)
            if number not in found:
                blocks.append(_encode_generally(general, some, called, verify))
                continue
            payload, bits = found[number]
            own = replace(kind, labels=labels[group[0]])
            block = Block(own, called, checksum(own, called, some, payload), payload, bits=bits)
            hasty = zlib.compress(b"".join(np.ascontiguousarray(symbols[i]).tobytes() for i in group), 1)
            if len(hasty) < _SUSPICIOUS * len(payload):
                block = min(block, _encode_generally(general, some, called, verify), key=_length)
            blocks.append(block)
        return blocks
    groups = [list(range(len(arrays)))] if kind.shared else [[i] for i in range(len(arrays))]
    for group in groups:
        blocks.append(_encode_generally(kind, [arrays[i] for i in group], tuple(names[i] for i in group), verify))
    return blocks


def decode_blocks(model: IntegerFlow | None, blocks: Sequence[Block], slack: int = 0) -> list[list[Array]]:
    """Decodes blocks of one kind, labels apart, together where that can be, and makes sure they are what was coded.

    Arguments:
        model: What they were coded with.
        blocks: The blocks.
        slack: How many arrays may be missing before them: for archives of which some is lost.
    """
    if not blocks:
        return []
    kind = blocks[0].kind
    if kind.method != Method.MODEL:
        found = [_decode_generally(block) for block in blocks]
    elif model is None or _sample_shape(model, kind.shape) is None:
        raise DamagedArchiveError(f"the archive is damaged: the model codes no arrays of shape {kind.shape}")
    else:
        try:
            if kind.shared:
                coded = [_decode_with_model(model, kind, [block.payload], len(block.names)) for block in blocks]
            else:
                payloads = [block.payload for block in blocks]
                coded = [[part] for part in _decode_with_model(model, kind, payloads, len(blocks))]
            found = [
                [_values(model, block.kind, part) for part in parts] for block, parts in zip(blocks, coded, strict=True)
            ]
        except InvalidCodeError as error:
            raise DamagedArchiveError("the archive is damaged: the code of an array is not valid") from error
        except MemoryError as error:
            raise DamagedArchiveError(
                f"{blocks[0].label} has the shape {kind.shape}, which fits no memory here, or the archive is damaged"
            ) from error
    for block, arrays in zip(blocks, found, strict=True):
        if len(arrays) != len(block.names) or number_of(block, arrays, slack) is None:
            raise DamagedArchiveError(f"the archive is damaged: {block.label} does not match its checksum")
    return found


# ---- With the model --------------------------------------------------------------------------------------------------


def _sample_shape(model: IntegerFlow, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of the model's samples that an array consists of, or None if it does not consist of such."""
    wanted = len(model.shape)
    found = None
    if wanted <= len(shape) <= wanted + 2 and model.fits(shape[len(shape) - wanted :]):
        found = shape[len(shape) - wanted :]
    elif wanted == 3 and model.shape[0] == 1 and 2 <= len(shape) <= 4 and model.fits((1, *shape[-2:])):
        found = (1, *shape[-2:])
    if found is None or model.padded_pixels(found) > _MOST_PADDING * prod(found):
        return None
    return found


def _symbols(model: IntegerFlow, array: Array, labels: Labels) -> Array | None:
    """An array as samples of symbols, or None if it holds other values than the classes stand for."""
    try:
        symbols = relabelled(model.classes, labels).to_symbols(array)
    except ValueError:
        return None
    shape = _sample_shape(model, array.shape)
    assert shape is not None
    return symbols.reshape(-1, *shape)


def _values(model: IntegerFlow, kind: Kind, symbols: Array) -> Array:
    """The array that symbols of its shape stand for."""
    try:
        classes = relabelled(model.classes, kind.labels)
    except ValueError as error:
        raise DamagedArchiveError(f"the archive is damaged: the labels of an array cannot be ({error})") from error
    return classes.to_values(symbols).astype(DTYPES[kind.dtype])


def _pieces(model: IntegerFlow, samples: int, shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """In which order an array of samples is coded: so many samples at a time, tile by tile."""
    tiles: list[tuple[slice, ...]] = [()]
    if None in model.shape and max(shape[1:]) > TILE:
        tiles = [
            (slice(None), slice(row, min(row + TILE, shape[1])), slice(column, min(column + TILE, shape[2])))
            for row in range(0, shape[1], TILE)
            for column in range(0, shape[2], TILE)
        ]
    together = max(1, BATCH_PIXELS // min(model.padded_pixels(shape), TILE * TILE * shape[0]))
    for first in range(0, samples, together):
        for tile in tiles:
            yield slice(first, min(first + together, samples)), *tile


def _encode_with_model(model: IntegerFlow, kind: Kind, symbols: Sequence[Array]) -> list[tuple[bytes, float]]:
    """The code of each array, or of all together if the kind is shared, and what the model says that it takes."""
    if not symbols:
        return []
    whole = np.concatenate(symbols)
    samples = len(symbols[0])  # in each array
    encoders = [Encoder()] if kind.shared else [Encoder() for _ in symbols]
    for piece in _pieces(model, len(whole), whole.shape[1:]):
        for emitted, predictions in model.forward(whole[piece]):
            for number, (part, prediction) in enumerate(zip(emitted, predictions, strict=True), piece[0].start):
                encoders[0 if kind.shared else number // samples].put(part, prediction)
    return [(encoder.finish(), encoder.bits) for encoder in encoders]


def _decode_with_model(model: IntegerFlow, kind: Kind, payloads: Sequence[bytes], count: int) -> list[Array]:
    """The symbols of arrays: a payload for each, or one payload for all if the kind is shared."""
    shape = _sample_shape(model, kind.shape)
    assert shape is not None
    samples = prod(kind.shape) // prod(shape)
    decoders = [Decoder(payload) for payload in payloads]
    whole = np.empty((samples * count, *shape), dtype=np.uint8 if model.num_classes <= 256 else np.int16)
    for piece in _pieces(model, len(whole), shape):
        start = piece[0].start

        def draw(predictions: list[Prediction], start: int = start) -> Array:
            return np.stack(
                [
                    decoders[0 if kind.shared else number // samples].take(prediction)
                    for number, prediction in enumerate(predictions, start)
                ]
            )

        part = whole[piece]
        whole[piece] = model.inverse(len(part), part.shape[1:], draw)
    return list(whole.reshape(count, *kind.shape))


# ---- Without ---------------------------------------------------------------------------------------------------------


def _encode_generally(kind: Kind, arrays: Sequence[Array], names: Sequence[str], verify: bool) -> Block:
    raw = b"".join(raw_bytes(kind, array) for array in arrays)
    names = tuple(names)
    squeezed = lzma.compress(raw, format=lzma.FORMAT_RAW, filters=_FILTERS)
    method, payload = (Method.LZMA, squeezed) if len(squeezed) < len(raw) else (Method.RAW, raw)
    kind = replace(kind, method=method)
    block = Block(kind, names, checksum(kind, names, arrays, payload), payload, bits=8.0 * len(payload))
    if verify and any(not np.array_equal(*pair) for pair in zip(_decode_generally(block), arrays, strict=True)):
        raise RuntimeError(f"{names[0] or 'an array'} did not decode to itself; nothing was written")
    return block


def _decode_generally(block: Block) -> list[Array]:
    count, size = len(block.names), block.kind.size
    raw = block.payload
    if block.kind.method == Method.LZMA:
        try:
            raw = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS).decompress(raw, max_length=count * size + 1)
        except lzma.LZMAError as error:
            raise DamagedArchiveError(f"the archive is damaged: {block.label} cannot be unpacked") from error
    if len(raw) != count * size:
        raise DamagedArchiveError(f"the archive is damaged: {block.label} has another size than it should")
    dtype = np.dtype(DTYPES[block.kind.dtype])
    if dtype.kind == "b" and raw.strip(b"\0\1"):
        raise DamagedArchiveError(f"the archive is damaged: {block.label} holds what is neither true nor false")
    flat = np.frombuffer(raw, dtype=dtype).reshape(count, -1).copy() if size else np.empty((count, 0), dtype)
    return [part.reshape(block.kind.shape) for part in flat]


def _length(block: Block) -> int:
    return len(block.payload)
