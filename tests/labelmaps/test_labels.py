"""Labels and the symbols that represent them."""

import numpy as np
import pytest

from ddf.labelmaps.labels import MOST_LABELS, labels_of, looks_like_noise, lookup

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_labels_at_the_limits_of_a_dtype_are_coded(dtype: str) -> None:
    info = np.iinfo(dtype)
    labels = sorted({int(info.min), int(info.min) + 3, 5, int(info.max) - 1, int(info.max)})
    array = np.array(labels * 2, dtype=dtype).reshape(2, -1)
    assert labels_of(array) == labels
    assert lookup(labels, array.dtype)(array).tolist() == [list(range(len(labels)))] * 2


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("place", ["lowest", "highest"])
def test_ranges_at_the_limits_of_a_dtype_are_coded(dtype: str, place: str) -> None:
    info = np.iinfo(dtype)
    labels = [info.min + i for i in (0, 2, 3)] if place == "lowest" else [info.max - i for i in (9, 1, 0)]
    labels = [int(label) for label in labels]
    array = np.array([labels, labels[::-1]], dtype=dtype)
    assert labels_of(array) == labels
    symbols = lookup(labels, array.dtype)(array)
    assert symbols.dtype == np.uint16
    assert symbols.tolist() == [[0, 1, 2], [2, 1, 0]]


def test_booleans_are_coded() -> None:
    array = np.array([[True, False]])
    assert labels_of(array) == [0, 1]
    assert labels_of(array | True) == [1]
    assert lookup([0, 1], array.dtype)(array).tolist() == [[1, 0]]
    assert lookup([1], array.dtype)(array | True).tolist() == [[0, 0]]
    assert lookup([7, 1, 0], array.dtype)(array).tolist() == [[1, 2]]


@pytest.mark.parametrize("scale", [1, 100_000])
def test_labels_in_any_order_are_coded(scale: int) -> None:
    labels = [7 * scale, -1, 255 * scale, 0]
    array = np.array([[0, -1], [255 * scale, 7 * scale]])
    assert lookup(labels, array.dtype)(array).tolist() == [[3, 1], [2, 0]]


def test_labels_outside_the_dtype_are_skipped() -> None:
    array = np.array([[0, 7, 255]], dtype=np.uint8)
    assert lookup([-1, 0, 7, 255, 300, 1 << 40], array.dtype)(array).tolist() == [[1, 2, 3]]


def test_the_number_of_labels_is_limited() -> None:
    dense = np.arange(MOST_LABELS + 1).reshape(256, 256)
    for scale in (1, 1 << 20):
        assert labels_of(dense * scale) is None
        almost = np.minimum(dense, MOST_LABELS - 1) * scale
        labels = labels_of(almost)
        assert labels is not None
        assert len(labels) == MOST_LABELS
        assert np.array_equal(np.array(labels)[lookup(labels, almost.dtype)(almost)], almost)


def test_noise_is_recognized() -> None:
    generator = np.random.default_rng(0)
    assert looks_like_noise(generator.integers(0, 9, (30, 30)))
    assert not looks_like_noise(generator.integers(0, 2, (30, 30)))
    assert not looks_like_noise(generator.integers(0, 9, (1, 900)))
    assert not looks_like_noise(np.kron(generator.integers(0, 9, (9, 9)), np.ones((4, 4))))
