"""What an archive expects of a codec."""

__all__ = ["Codec", "check_model"]

from typing import Any, Protocol, runtime_checkable

import numpy as np

from ddf.shapes import Array


@runtime_checkable
class Codec(Protocol):
    """A lossless codec of integer arrays. Several threads may call it at once."""

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that identify the model."""

    def compress(self, array: Array) -> bytes | None:
        """Compress an array; return None if the codec does not support its shape or values."""

    def decompress(self, data: bytes, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
        """Decompress what `compress` returned for an array of this shape and dtype.

        Raises:
            InvalidCodeError: No encoder returns these bytes for such an array.
        """

    def to_bytes(self) -> bytes:
        """Return the model file; `ddf.models.model_from_bytes` loads it."""


def check_model(model: Codec | None) -> None:
    """Raise an error unless the model is a codec."""
    if model is not None and not isinstance(model, Codec):
        raise TypeError(
            f"a {type(model).__name__} is not a codec: pass a model from ddf.load(path), or ddf.export(flow, …) for a "
            "trained flow"
        )
