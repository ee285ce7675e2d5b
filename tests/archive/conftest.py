"""A second codec, and shared fixtures for the tests of archives."""

import zlib
from typing import Any

import numpy as np
import pytest

from ddf.archive import Codec, InvalidCodeError
from ddf.exact import IntegerFlow
from tests.zoo import coupling_flow, noise_maps


class PackingCodec:
    """Packs two values below 16 into a byte and deflates the result."""

    def __init__(self, name: str = "packing") -> None:
        self.fingerprint = name.encode().ljust(16, b"\0")

    def compress(self, array: np.ndarray) -> bytes | None:
        if array.ndim < 2 or array.min() < 0 or array.max() > 15:
            return None
        flat = np.append(array.astype(np.uint8).ravel(), np.zeros(array.size % 2, np.uint8))
        return zlib.compress((flat[::2] << 4 | flat[1::2]).tobytes(), 9, wbits=-15)

    def decompress(self, data: bytes, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64))
        half = -(-size // 2)
        try:
            packed = np.frombuffer(zlib.decompressobj(wbits=-15).decompress(data, half + 1), np.uint8)
        except zlib.error as error:
            raise InvalidCodeError(str(error)) from error
        if len(shape) < 2 or len(packed) != half:
            raise InvalidCodeError(f"{len(packed)} bytes for an array of shape {shape}")
        return np.stack([packed >> 4, packed & 15], axis=1).ravel()[:size].reshape(shape).astype(dtype)

    def to_bytes(self) -> bytes:
        return b"packing"


@pytest.fixture(scope="session")
def model() -> Codec:
    return PackingCodec()


@pytest.fixture(scope="session")
def other_model() -> Codec:
    return PackingCodec("others")


@pytest.fixture(scope="session")
def maps() -> list[np.ndarray]:
    """Return maps that the codec compresses better than a general-purpose compressor."""
    return noise_maps(20, (43, 38))


@pytest.fixture(scope="session")
def flow() -> IntegerFlow:
    """Return a model for arrays of shape (8, 6) that can be embedded."""
    return coupling_flow()
