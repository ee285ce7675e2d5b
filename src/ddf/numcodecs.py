"""The codec for numcodecs, which zarr 2 uses, as does zarr 3 for arrays of format 2."""

__all__ = ["LabelCodec"]

from os import PathLike
from typing import Any

from ddf.archive.chunks import decode_chunk, encode_chunk
from ddf.archive.limits import DEFAULT_MAX_BYTES
from ddf.codec_metadata import checked_metadata, located_model
from ddf.errors import DamagedFileError
from ddf.extras import needed_for
from ddf.protocol import Codec
from ddf.registry import codec_of
from ddf.shapes import Array

with needed_for("ddf.numcodecs"):
    from numcodecs.abc import Codec as NumCodec
    from numcodecs.compat import ensure_bytes, ensure_ndarray, ndarray_copy


class LabelCodec(NumCodec):  # type: ignore[misc]
    """Compresses arrays of integers, in particular label maps whose last two axes are the height and the width.

    Pass it as the `compressor` of an array. Arrays that are not label maps (noise, vectors) are compressed by a
    general-purpose compressor.

    Arguments:
        model: A model, its file or URL, or its fingerprint; None for the pretrained model. The configuration holds only
            its fingerprint; `ddf models add` stores the model where other processes find it.
        location: The folder or URL where readers look for the model; it is part of the configuration.
        verify: Whether to verify the result of every `encode` by decoding it.
        max_bytes: The largest array to decode, in bytes.

    Examples:
        >>> import numpy as np
        >>> codec = LabelCodec()
        >>> mask = np.kron(np.eye(4, dtype=np.uint8), np.full((20, 30), 255, np.uint8))
        >>> code = codec.encode(mask)
        >>> len(code) < 60
        True
        >>> np.array_equal(codec.decode(code), mask)
        True
    """

    codec_id = "ddf.labels"

    def __init__(
        self,
        model: "Codec | str | PathLike[str] | None" = None,
        location: str | None = None,
        verify: bool = True,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        fingerprint, self._codec = codec_of(model)
        self.model = fingerprint.hex()
        checked_metadata(self.codec_id, {"model": self.model, "location": location})
        self.location = location
        self.verify = verify
        self.max_bytes = max_bytes

    @property
    def codec(self) -> Codec:
        """The model."""
        if self._codec is None:
            self._codec = located_model(self.model, self.location, "this array")
        return self._codec

    def encode(self, buf: Any) -> bytes:
        """Encode an array.

        The order of the values in memory and the byte order are kept: an array in Fortran order is encoded, and
        later decoded, with its axes reversed.
        """
        array: Array = ensure_ndarray(buf)
        if array.dtype.kind not in "iub":
            raise TypeError(f"{self.codec_id} compresses arrays of integers or truth values, not of {array.dtype}")
        if array.flags.f_contiguous and not array.flags.c_contiguous:
            array = array.T
        return bytes([array.dtype.str[0] == ">"]) + encode_chunk(array, self.codec, self.verify)

    def decode(self, buf: Any, out: Any = None) -> Array:
        """Decode an array.

        Arguments:
            buf: What `encode` returned.
            out: The array to write to.
        """
        data = ensure_bytes(buf)
        if data[:1] not in (b"\0", b"\1"):
            raise DamagedFileError(f"these bytes were not encoded by {self.codec_id}, or are damaged")
        array = decode_chunk(data[1:], self.codec, max_bytes=self.max_bytes)
        array = array.astype(array.dtype.newbyteorder("<>"[data[0]]), copy=False)
        return array if out is None else ndarray_copy(array, out)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LabelCodec":
        """Return the codec with the given configuration."""
        return cls(**checked_metadata(cls.codec_id, config))

    def get_config(self) -> dict[str, Any]:
        """Return the configuration as plain data for JSON."""
        location = {} if self.location is None else {"location": self.location}
        return {"id": self.codec_id, "model": self.model, **location}

    def __repr__(self) -> str:
        return f"LabelCodec(model={self.model!r}, location={self.location!r})"
