"""Every array survives a round trip, for all dtypes, shapes and labels."""

import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddf.archive import Archive, ArchiveWriter
from ddf.labelmaps import CausalFlow
from ddf.labelmaps.labels import looks_like_noise

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
EVERY_MODEL = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(model: CausalFlow, array: np.ndarray) -> bytes:
    code = model.compress(array)
    assert code is not None
    found = model.decompress(code, array.shape, array.dtype)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    return code


@st.composite
def palettes(draw: st.DrawFn) -> np.ndarray:
    """Draw distinct values of a dtype, often at its limits."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    limits = st.sampled_from([low, low + 1, 0, 1, high - 1, high])
    values = draw(st.lists(st.integers(low, high) | limits, min_size=1, max_size=12, unique=True))
    return np.array(values, dtype=dtype)


def blobs(generator: np.random.Generator, count: int, height: int, width: int, labels: int, noise: float) -> np.ndarray:
    """Return maps of rectangles with some random pixels."""
    maps = np.zeros((count, height, width), dtype=np.int64)
    for one in maps:
        for _ in range(generator.integers(6)):
            top, left = generator.integers(height), generator.integers(width)
            one[top : top + generator.integers(1, 9), left : left + generator.integers(1, 9)] = generator.integers(
                labels
            )
    anywhere = generator.random(maps.shape) < noise
    return np.where(anywhere, generator.integers(labels, size=maps.shape), maps)


SIDES = st.integers(1, 20)


@given(palettes(), SIDES, SIDES, st.integers(1, 3), st.integers(0, 99), st.sampled_from([0, 0.1, 1]))
@EVERY_MODEL
def test_arrays_are_restored(
    model: CausalFlow, palette: np.ndarray, height: int, width: int, count: int, seed: int, noise: float
) -> None:
    array = palette[blobs(np.random.default_rng(seed), count, height, width, len(palette), noise)]
    array[0] = palette[0]  # the first map decides whether an array is noise
    if (array == np.uint64(2**64 - 1)).all():  # the only label without a code
        assert model.compress(array) is None
        return
    check(model, array)


@given(st.integers(0, 2**63 - 1), st.integers(301, 600))
@settings(EVERY_MODEL, max_examples=8)
def test_many_labels_are_restored(model: CausalFlow, seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    labels = generator.choice(2**62, size=count, replace=False)
    check(model, np.repeat(np.resize(labels, (40, 20)), 3, axis=1))


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (2, 3, 9, 11), (1, 1, 1, 1), (5, 1, 7), (3, 2, 1)])
def test_all_shapes_are_restored(model: CausalFlow, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape) // 4 % 3
    check(model, array.astype(np.uint8))


@pytest.mark.parametrize("shape", [(), (4,), (0, 3), (3, 0), (2, 0, 3), (0, 2, 3)])
def test_arrays_that_are_not_maps_are_not_coded(model: CausalFlow, shape: tuple[int, ...]) -> None:
    assert model.compress(np.zeros(shape, dtype=np.uint8)) is None


def test_the_label_without_a_code_is_not_coded(model: CausalFlow) -> None:
    highest = 2**64 - 1
    assert model.compress(np.full((4, 5), highest, dtype=np.uint64)) is None
    check(model, np.full((4, 5), highest - 1, dtype=np.uint64))
    check(model, np.where(np.eye(6, dtype=bool), np.uint64(highest), np.uint64(highest - 1)))


def test_long_maps_are_restored(any_labels: CausalFlow) -> None:
    """The maps have more rows than the ring buffer, and more pixels than one call codes."""
    generator = np.random.default_rng(0)
    tall = blobs(generator, 1, 700, 5, 4, 0.05)[0]
    large = np.kron(generator.integers(0, 3, (40, 40)), np.ones((10, 9), dtype=np.int64))
    large[::50, ::7] = 5
    check(any_labels, tall)
    check(any_labels, large)


def test_views_and_byte_orders_are_restored(any_labels: CausalFlow, maps: list[np.ndarray]) -> None:
    code = check(any_labels, maps[0])
    transposed = np.ascontiguousarray(maps[0].T).T
    assert any_labels.compress(transposed) == code
    assert any_labels.compress(maps[0].astype(">i4")) == code
    check(any_labels, maps[1][::-2, ::-1])


def test_classes_may_have_any_order_and_exceed_the_dtype(known: CausalFlow, scenes: list[np.ndarray]) -> None:
    """The classes of the model are 7, 0, 255, −1 and 300, of which uint8 can represent only three."""
    for scene in scenes:
        inside = np.where((scene < 0) | (scene > 255), 7, scene)
        code = check(known, inside)
        for dtype in ("uint8", "int16", "uint64"):
            assert check(known, inside.astype(dtype)) == code
        check(known, scene)
        check(known, np.where(scene == 0, 12345, scene))  # unknown
        check(known, scene == 0)


def test_ten_thousand_instances_are_restored(any_labels: CausalFlow) -> None:
    ids = np.arange(10_000).reshape(100, 100)
    array = np.kron(ids, np.ones((3, 3), dtype=np.int64))
    array[0, 0] = 77  # not merely upsampled
    code = check(any_labels, array)
    assert len(code) < array.size  # less than a byte per pixel


def test_unlikely_labels_do_not_overflow_the_header(any_labels: CausalFlow) -> None:
    """Distances between labels that the counters predict poorly cost 50 times as much as usual."""
    steps = [1 << bits for bits in range(54, -1, -1) for _ in range(400)] + [1 << 55]
    labels = np.cumsum(np.array([0, *steps], dtype=np.uint64))
    for shift in (0, 77):
        check(any_labels, np.repeat(labels[shift:].astype(np.uint64)[:, None], 2, axis=1))


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
@pytest.mark.parametrize("labels", [2, 7, 200])
def test_noise_never_grows(model: CausalFlow, dtype: str, labels: int) -> None:
    noise = np.random.default_rng(labels).integers(0, labels, (64, 64)).astype(dtype)
    code = model.compress(noise)
    assert (code is None) == looks_like_noise(noise)
    sizes = []
    for codec in (model, None):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, codec) as writer:
            writer.add(noise, "noise")
        sizes.append(len(buffer.getvalue()))
        assert np.array_equal(Archive(buffer.getvalue(), model)["noise"], noise)
    assert sizes[0] <= min(sizes[1], noise.nbytes + 100)
