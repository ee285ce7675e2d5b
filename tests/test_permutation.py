"""The conditional permutation agrees with its definition for all inputs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddf import argsort_top, rank, unrank
from ddf import fast_permutation as internals
from tests.slow_permutation import slow_argsort_top

# Ordinary numbers, ties, both zeros, infinities and the extremes of float32.
ENTRIES = st.one_of(
    st.floats(width=32, allow_nan=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, 3.4e38, -3.4e38, 1e-45, 1.0000001]),
)
INTEGERS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2, 2))


@st.composite
def rows_and_top(draw: st.DrawFn, entries: st.SearchStrategy[float]) -> tuple[list[list[float]], int]:
    k = draw(st.one_of(st.integers(1, 12), st.integers(13, 90)))
    top = draw(st.one_of(st.integers(1, k), st.sampled_from([1, max(1, k - 1), k])))
    few = draw(st.lists(entries, min_size=1, max_size=3))
    tied = st.sampled_from(few)
    row = st.lists(draw(st.sampled_from([entries, tied])), min_size=k, max_size=k)
    return draw(st.lists(row, min_size=1, max_size=4)), top


def agrees_with_definition(theta: torch.Tensor, top: int) -> None:
    k = theta.shape[-1]
    expected = torch.tensor([slow_argsort_top(row, top) for row in theta.tolist()])
    assert torch.equal(argsort_top(theta, top), expected)
    everywhere = theta[:, None].expand(-1, k, -1)  # each row repeated for each class
    symbols = torch.arange(k).expand(len(theta), k)
    assert torch.equal(unrank(symbols, everywhere, top), expected)
    assert torch.equal(rank(symbols, everywhere, top), expected.argsort(-1))


@settings(deadline=None, max_examples=300)
@given(rows_and_top(ENTRIES))
def test_floats_agree_with_the_definition(case: tuple[list[list[float]], int]) -> None:
    rows, top = case
    agrees_with_definition(torch.tensor(rows, dtype=torch.float32), top)


@settings(deadline=None, max_examples=150)
@given(rows_and_top(INTEGERS), st.sampled_from([torch.int32, torch.int64]))
def test_integers_agree_with_the_definition(case: tuple[list[list[float]], int], dtype: torch.dtype) -> None:
    rows, top = case
    agrees_with_definition(torch.tensor(rows, dtype=dtype), top)


@pytest.mark.parametrize("k", [1, 2, 3, 8, 91, 256, 300])
@pytest.mark.parametrize("kind", ["random", "tied", "all equal", "ascending", "descending", "infinite", "impossible"])
def test_every_number_of_classes_agrees_with_the_definition(k: int, kind: str) -> None:
    theta = {
        "random": torch.randn(3, k),
        "tied": torch.randint(-1, 2, (3, k)).float(),
        "all equal": torch.zeros(3, k),
        "ascending": torch.arange(3 * k).view(3, k).float(),
        "descending": -torch.arange(3 * k).view(3, k).float(),
        "infinite": torch.randint(-1, 2, (3, k)) / 0,
        "impossible": torch.full((3, k), -math.inf).index_fill(1, torch.tensor([k // 2]), 1.0),
    }[kind].nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    for top in {1, min(2, k), min(5, k), min(17, k), (k + 1) // 2, max(1, k - 1), k}:
        agrees_with_definition(theta, top)


def test_the_worked_example() -> None:
    theta = torch.tensor([0.10, 0.30, 0.05, 0.40, 0.15])
    assert argsort_top(theta, top=2).tolist() == [3, 1, 2, 0, 4]
    assert [int(rank(torch.tensor(x), theta, top=2)) for x in (3, 1, 2, 0, 4)] == [0, 1, 2, 3, 4]


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 40).flatmap(lambda k: st.tuples(st.just(k), st.integers(1, k))),
    st.lists(st.integers(0, 4), max_size=3),
    st.data(),
)
def test_unrank_undoes_rank_for_any_shape_and_axis(
    k_and_top: tuple[int, int], shape: list[int], data: st.DataObject
) -> None:
    k, top = k_and_top
    dim = data.draw(st.integers(-len(shape) - 1, len(shape)))
    theta = torch.randn(*shape, k).movedim(-1, dim)
    x = torch.randint(k, shape)
    z = rank(x, theta, top, dim=dim)
    assert torch.equal(z, rank(x, theta.movedim(dim, -1), top))
    assert torch.equal(unrank(z, theta, top, dim=dim), x)
    assert torch.equal(argsort_top(theta, top, dim=dim), argsort_top(theta.movedim(dim, -1), top).movedim(-1, dim))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_block_size_does_not_matter(monkeypatch: pytest.MonkeyPatch, dim: int) -> None:
    theta = torch.randint(-3, 4, (50, 60, 7)).movedim(2, dim).float()
    x = torch.randint(7, (50, 60))
    unsplit = rank(x, theta, 3, dim=dim), unrank(x, theta, 3, dim=dim), rank(x, theta, 7, dim=dim)
    monkeypatch.setitem(internals._BLOCK_ENTRIES, "cpu", 7 * 13)
    blocks = rank(x, theta, 3, dim=dim), unrank(x, theta, 3, dim=dim), rank(x, theta, 7, dim=dim)
    assert all(torch.equal(a, b) for a, b in zip(unsplit, blocks, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("top", [1, 4, 8])
def test_dtype_of_predictions_does_not_matter(dtype: torch.dtype, top: int) -> None:
    theta = torch.randint(0, 20, (1000, 8))
    x = torch.randint(8, (1000,))
    assert torch.equal(rank(x, theta.to(dtype), top), rank(x, theta, top))
    assert torch.equal(unrank(x, theta.to(dtype), top), unrank(x, theta, top))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("k", [2, 8])
def test_dtype_of_symbols_is_kept(dtype: torch.dtype, k: int) -> None:
    x, theta = torch.randint(k, (100,)), torch.randn(100, k)
    z = rank(x.to(dtype), theta, k - 1)
    assert z.dtype == dtype
    assert torch.equal(z.long(), rank(x, theta, k - 1))
    assert unrank(z, theta, k - 1).dtype == dtype


def test_dtype_is_widened_when_the_ranks_do_not_fit() -> None:
    theta = torch.arange(300.0).expand(2, 300)
    z = rank(torch.tensor([0, 255], dtype=torch.uint8), theta, 300)
    assert z.tolist() == [299, 44]


@pytest.mark.parametrize("k", [2, 3, 8, 33, 91, 256, 300])
def test_devices_agree(device: str, k: int) -> None:
    for theta in (torch.randn(500, k), torch.randint(-2, 3, (500, k)), torch.randint(-2, 3, (500, k)) * -0.0):
        x = torch.randint(k, (500,))
        for top in {1, (k + 3) // 4, k // 2, k}:
            assert torch.equal(rank(x.to(device), theta.to(device), top).cpu(), rank(x, theta, top))
            assert torch.equal(unrank(x.to(device), theta.to(device), top).cpu(), unrank(x, theta, top))
            assert torch.equal(argsort_top(theta.to(device), top).cpu(), argsort_top(theta, top))


@pytest.mark.parametrize("k", [2, 8, 91])
def test_nan_is_rejected(k: int) -> None:
    theta = torch.zeros(10, k)
    theta[3, 1] = math.nan
    x = torch.zeros(10, dtype=torch.long)
    for operation in (lambda: argsort_top(theta, 1), lambda: rank(x, theta, k), lambda: unrank(x, theta, 1)):
        with pytest.raises(ValueError, match=rf"theta contains NaN \(1 of {10 * k} entries\)"):
            operation()


def test_opposite_infinities_are_not_mistaken_for_nan() -> None:
    assert rank(torch.tensor([0]), torch.tensor([[-math.inf, math.inf, 0.0]]), 3).item() == 2


@pytest.mark.parametrize(
    ("x", "theta", "top", "error", "message"),
    [
        (torch.tensor([8]), torch.zeros(1, 8), 4, ValueError, r"x contains the symbol 8, .* 8 classes \(0…7\)"),
        (torch.tensor([-1]), torch.zeros(1, 8), 4, ValueError, r"x contains the symbol -1, .* 8 classes"),
        (torch.tensor([2]), torch.zeros(1, 2), 2, ValueError, r"x contains the symbol 2, .* 2 classes"),
        (torch.tensor([0.5]), torch.zeros(1, 8), 4, TypeError, r"x must hold integers 0…7, .* torch.float32"),
        (torch.tensor([0]), torch.zeros(1, 8), 9, ValueError, r"top=9, but the data has 8 classes"),
        (torch.tensor([0]), torch.zeros(1, 8), 0, ValueError, r"top=0, but the data has 8 classes"),
        (torch.tensor([0, 1]), torch.zeros(1, 8), 4, ValueError, r"shape \(2,\) do not fit theta of shape \(1, 8\)"),
        (torch.tensor([0, 1]), torch.zeros(1, 2), 2, ValueError, r"shape \(2,\) do not fit theta of shape \(1, 2\)"),
        (torch.tensor([0]), torch.tensor(1.0), 1, ValueError, r"theta is a single number"),
        (torch.tensor([0]), torch.zeros(1, 8, dtype=torch.bool), 1, TypeError, r"torch.bool"),
        (torch.tensor([0]), torch.zeros(1, 8, dtype=torch.uint16), 1, TypeError, r"torch.uint16"),
        (torch.tensor([0]), torch.zeros(1, 8), 4.5, ValueError, r"top=4.5, but the data has 8 classes"),
        (torch.tensor([0]), [[0.0, 1.0]], 1, TypeError, r"theta must be a tensor, but it is a list"),
    ],
)
def test_bad_input_is_rejected(
    x: torch.Tensor, theta: torch.Tensor, top: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rank(x, theta, top)
    with pytest.raises(error, match=message.replace("x ", "z ", 1) if message.startswith("x ") else message):
        unrank(x, theta, top)
    if x.shape == (1,) and top in (0, 9):
        with pytest.raises(error, match=message):
            argsort_top(theta, top)


def test_a_missing_axis_is_rejected() -> None:
    with pytest.raises(ValueError, match="dim=2, but theta has 2 axes"):
        rank(torch.tensor([0]), torch.zeros(1, 8), 4, dim=2)
