"""The codec for zarr 3: label maps as the chunks of an array.

Such an array can be read wherever `ddf` is installed, because zarr finds the codec by its name.
"""

__all__ = ["LabelCodec"]

import asyncio
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from ddf.archive.chunks import decode_chunk, encode_chunk
from ddf.codec_metadata import checked_metadata, located_model
from ddf.extras import needed_for
from ddf.protocol import Codec
from ddf.registry import codec_of
from ddf.shapes import Array

with needed_for("ddf.zarr"):
    from zarr.abc.codec import ArrayBytesCodec
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.common import JSON, parse_named_configuration

NAME = "ddf.labels"


@dataclass(frozen=True, init=False)
class LabelCodec(ArrayBytesCodec):
    """Compresses chunks of integers, in particular label maps whose last two axes are the height and the width.

    Pass it as the `serializer` of an array, with `compressors=None`. Chunks that are not label maps (noise, vectors)
    are compressed by a general-purpose compressor.

    Arguments:
        model: A model, its file or URL, or its fingerprint; None for the pretrained model. The metadata of the array
            holds only its fingerprint; `ddf models add` stores the model where other processes find it.
        location: The folder or URL where readers look for the model; it is stored in the metadata.
        verify: Whether to verify every chunk by decoding it before it is written.

    Examples:
        >>> import numpy as np, zarr
        >>> masks = np.kron(np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.ones((40, 60), np.uint8))
        >>> array = zarr.create_array(
        ...     "masks.zarr", data=masks, chunks=(1, 80, 120), serializer=LabelCodec(), compressors=None, overwrite=True
        ... )
        >>> bool((zarr.open_array("masks.zarr")[:] == masks).all())
        True
    """

    is_fixed_size = False

    model: str
    location: str | None
    verify: bool = field(compare=False)
    _codec: "Codec | None" = field(compare=False, repr=False)

    def __init__(
        self,
        model: "Codec | str | PathLike[str] | None" = None,
        location: str | None = None,
        verify: bool = True,
    ) -> None:
        fingerprint, codec = codec_of(model)
        checked_metadata(NAME, {"model": fingerprint.hex(), "location": location})
        object.__setattr__(self, "model", fingerprint.hex())
        object.__setattr__(self, "location", location)
        object.__setattr__(self, "verify", verify)
        object.__setattr__(self, "_codec", codec)

    @classmethod
    def from_dict(cls, data: dict[str, JSON]) -> "LabelCodec":
        """Return the codec that the metadata of an array describes."""
        _, configuration = parse_named_configuration(data, NAME)
        return cls(**checked_metadata(NAME, configuration))

    def to_dict(self) -> dict[str, JSON]:
        """Return the metadata of the codec."""
        location: dict[str, JSON] = {} if self.location is None else {"location": self.location}
        return {"name": NAME, "configuration": {"model": self.model, **location}}

    def validate(self, *, dtype: Any, **_: Any) -> None:
        """Raise an error unless the codec supports arrays of this dtype."""
        native = dtype.to_native_dtype()
        if native.kind not in "iub":
            raise TypeError(f"{NAME} compresses arrays of integers or truth values, not of {native}")

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        """Raise an error, because the encoded size depends on the data."""
        raise NotImplementedError

    @property
    def codec(self) -> Codec:
        """The model."""
        if self._codec is None:
            object.__setattr__(self, "_codec", located_model(self.model, self.location, "this zarr array"))
        assert self._codec is not None
        return self._codec

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        data = encode_chunk(chunk_array.as_numpy_array(), self.codec, self.verify)
        return chunk_spec.prototype.buffer.from_bytes(data)

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        dtype = chunk_spec.dtype.to_native_dtype()
        array: Array = decode_chunk(chunk_bytes.to_bytes(), self.codec, chunk_spec.shape, dtype)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(array.astype(dtype, copy=False))

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._encode_sync, chunk_array, chunk_spec)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)
