"""Damaged codes decode to something else or are rejected, without crashes; archives detect all damage."""

import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddf.archive import Archive, ArchiveWriter, InvalidCodeError
from ddf.labelmaps import CausalFlow

MANY = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def outcome(model: CausalFlow, code: bytes, shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
    try:
        found = model.decompress(code, shape, dtype)
    except InvalidCodeError:
        return None
    assert found.shape == shape
    assert found.dtype == dtype
    return found


@given(st.binary(max_size=80), st.sampled_from(["bool", "uint8", "int16", "int64", "uint64"]), st.integers(0, 3))
@MANY
def test_any_bytes_decode_or_are_rejected(model: CausalFlow, code: bytes, dtype: str, shape: int) -> None:
    outcome(model, code, [(1, 1), (9, 13), (3, 8, 8), (40, 1)][shape], dtype)


@pytest.mark.parametrize("code", [b"", b"\0" * 9, b"\xff" * 9, b"\xff" * 5000, b"\x7f", b"\0\0\xff" * 300])
@pytest.mark.parametrize("shape", [(1, 1), (30, 40), (2, 5, 6)])
def test_extreme_bytes_decode_or_are_rejected(model: CausalFlow, code: bytes, shape: tuple[int, ...]) -> None:
    for dtype in ("bool", "uint8", "int64"):
        outcome(model, code, shape, dtype)


def test_prefixes_and_flipped_bits_decode_or_are_rejected(model: CausalFlow, maps: list[np.ndarray]) -> None:
    array = maps[2]
    code = model.compress(array)
    assert code is not None
    for length in range(len(code)):
        found = outcome(model, code[:length], array.shape, "int32")
        assert found is None or length > len(code) - 4 or not np.array_equal(found, array)
    generator = np.random.default_rng(0)
    for place in generator.integers(8 * len(code), size=300).tolist():
        damaged = bytearray(code)
        damaged[place // 8] ^= 1 << place % 8
        outcome(model, bytes(damaged), array.shape, "int32")


def test_trailing_zeros_change_nothing(model: CausalFlow, maps: list[np.ndarray]) -> None:
    for array in maps:
        code = model.compress(array)
        assert code is not None
        assert not code.endswith(b"\0")
        assert np.array_equal(model.decompress(code + b"\0\0\0", array.shape, array.dtype), array)


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (4, 0), (0, 3, 3)])
def test_unsupported_shapes_are_rejected(model: CausalFlow, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidCodeError):
        model.decompress(b"\1\2\3", shape, np.uint8)


def test_labels_outside_the_dtype_are_rejected(any_labels: CausalFlow) -> None:
    array = np.where(np.eye(8, dtype=bool), -70_000, 1 << 33)
    code = any_labels.compress(array)
    assert code is not None
    for dtype in ("bool", "uint8", "int32", "uint64"):
        with pytest.raises(InvalidCodeError):
            any_labels.decompress(code, array.shape, dtype)


def test_archives_detect_damage(model: CausalFlow, maps: list[np.ndarray]) -> None:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model) as writer:
        writer.add(maps[2], "map")
    data = buffer.getvalue()
    place = data.index(model.compress(maps[2]) or b"?")
    for i in range(place, place + len(model.compress(maps[2]) or b"")):
        damaged = data[:i] + bytes([data[i] ^ 16]) + data[i + 1 :]
        with pytest.raises(ValueError, match=r"map|damaged"):
            Archive(damaged, model)["map"]
