"""Upsampled maps are detected, and cost as much as the small map."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddf.data.drawn import draw_regions
from ddf.labelmaps import CausalFlow, pretrained
from ddf.labelmaps.grid import Grid, find_grid


def upsampled(small: np.ndarray, rows: int, columns: int) -> np.ndarray:
    return np.repeat(np.repeat(small, rows, axis=-2), columns, axis=-1)


@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.integers(0, 8), st.integers(0, 8),
    st.integers(0, 8), st.integers(0, 8), st.integers(1, 3), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=300, deadline=None, derandomize=True)
def test_expand_inverts_reduce(
    height: int,
    width: int,
    rows: int,
    columns: int,
    top: int,
    left: int,
    bottom: int,
    right: int,
    labels: int,
    seed: int,
) -> None:
    """A grid is lossless for any crop and any number of labels."""
    small = np.random.default_rng(seed).integers(0, labels, (2, height, width))
    large = upsampled(small, rows, columns)
    large = large[:, min(top, height * rows - 1) :, min(left, width * columns - 1) :]
    large = large[:, : max(1, large.shape[1] - bottom), : max(1, large.shape[2] - right)]
    grid = find_grid(large)
    for one in large:
        assert np.array_equal(grid.expand(grid.reduce(one)), one)
        assert grid.reduce(one).shape == grid.shape
    assert Grid.from_numbers(grid.size, list(grid.numbers)) == grid


SIZES = st.lists(st.integers(1, 4) | st.sampled_from([2, 4]), min_size=1, max_size=8)


@given(SIZES, SIZES)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_cells_may_have_different_sizes(heights: list[int], widths: list[int]) -> None:
    cells = np.arange(len(heights) * len(widths)).reshape(len(heights), len(widths))
    large = np.repeat(np.repeat(cells, heights, axis=0), widths, axis=1)
    grid = find_grid(large)
    assert np.array_equal(grid.expand(grid.reduce(large)), large)


def test_a_late_change_is_not_missed() -> None:
    cells = np.repeat(np.repeat(np.arange(16).reshape(4, 4), [2, 2, 3, 2], axis=0), [2, 2, 3, 2], axis=1)
    assert find_grid(cells).is_trivial


@pytest.mark.parametrize(("top", "left"), [(0, 0), (1, 0), (0, 3), (2, 1)])
def test_steps_and_offsets_are_found(top: int, left: int) -> None:
    small = np.arange(63).reshape(7, 9)
    grid = find_grid(upsampled(small, 3, 4)[top:-1, left:-2])
    assert grid.steps == (3, 4)
    assert grid.starts == (-top % 3, -left % 4)
    assert grid.shape == (7, 9)


def test_maps_without_a_grid_are_not_reduced() -> None:
    small = np.arange(63).reshape(7, 9)
    for rows, columns in ((1, 1), (1, 4), (3, 1)):
        assert find_grid(upsampled(small, rows, columns)).is_trivial
    large = upsampled(small, 3, 4)
    large[4, 5] += 1
    assert find_grid(large).is_trivial
    assert find_grid(np.stack([upsampled(small, 4, 4), upsampled(np.ones((14, 18)), 2, 2)])).steps == (4, 4)
    other = upsampled(np.arange(14 * 18).reshape(14, 18), 2, 2)
    assert find_grid(np.stack([upsampled(small, 4, 4), other])).steps == (2, 2)


@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), min_size=4, max_size=4),
    st.integers(1, 9),
    st.integers(1, 9),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_numbers_define_a_valid_grid(numbers: list[int], height: int, width: int) -> None:
    grid = Grid.from_numbers((height, width), numbers)
    rows, columns = grid.shape
    assert 1 <= rows <= height
    assert 1 <= columns <= width
    assert grid.expand(np.zeros(grid.shape)).shape == (height, width)


@pytest.mark.parametrize(("top", "left"), [(0, 0), (1, 2)])
def test_upsampled_maps_cost_as_much_as_small_ones(
    model: CausalFlow, scenes: list[np.ndarray], top: int, left: int
) -> None:
    for scene in scenes:
        large = upsampled(scene, 4, 3)[top:, left:]
        code, small = model.compress(large), model.compress(scene)
        assert code is not None
        assert small is not None
        assert np.array_equal(model.decompress(code, large.shape, large.dtype), large)
        assert len(code) <= len(small) + 6


def test_an_upsampled_map_is_smaller_than_with_other_codecs() -> None:
    import io
    import lzma

    import pillow_jxl  # noqa: F401  (which adds the format to Pillow)
    from PIL import Image

    small = draw_regions(np.random.default_rng(0), 334, 334, 32, 2.0)
    large = small.repeat(3, axis=0).repeat(3, axis=1)[:1000, :1000]
    code = pretrained().compress(large)
    assert code is not None
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(large)).save(buffer, "JXL", lossless=True, effort=9)
    assert len(code) < len(buffer.getvalue())
    assert len(code) < len(lzma.compress(large.tobytes(), preset=9 | lzma.PRESET_EXTREME))
