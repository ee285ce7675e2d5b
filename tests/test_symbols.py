"""Symbols are integers 0 … K−1, of any integer dtype."""

import pytest
import torch

from ddf.symbols import check_symbols, one_hot, smallest_dtype


@pytest.mark.parametrize(
    ("k", "dtype"),
    [(1, torch.uint8), (2, torch.uint8), (256, torch.uint8), (257, torch.int16), (32769, torch.int32)],
)
def test_smallest_dtype_holds_all_classes(k: int, dtype: torch.dtype) -> None:
    assert smallest_dtype(k) == dtype


def test_one_hot_does_not_mix_space_and_channels() -> None:
    x = torch.randint(5, (3, 4, 6, 7))
    vectors = one_hot(x, 5)
    assert vectors.shape == (3, 5, 4, 6, 7)
    for b, k, c, i, j in torch.cartesian_prod(*(torch.arange(n) for n in vectors.shape)).tolist():
        assert vectors[b, k, c, i, j] == (x[b, c, i, j] == k)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    assert check_symbols(torch.tensor([0, 1], dtype=dtype), 2).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16, torch.uint32, torch.uint64])
def test_dtypes_that_torch_barely_supports_are_converted(dtype: torch.dtype) -> None:
    assert check_symbols(torch.tensor([0, 1], dtype=torch.int64).to(dtype), 2).tolist() == [0, 1]


def test_dtype_is_widened_when_it_cannot_hold_all_classes() -> None:
    assert check_symbols(torch.tensor([100], dtype=torch.int8), 200).dtype == torch.uint8
    assert check_symbols(torch.tensor([100], dtype=torch.uint8), 1000).dtype == torch.int16


def test_empty_tensors_are_supported() -> None:
    assert check_symbols(torch.zeros(0, 3, dtype=torch.uint8), 2).shape == (0, 3)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.tensor([0, 2]), ValueError, r"masks contains the symbol 2, but the data has 2 classes \(0…1\)"),
        (torch.tensor([-1, 7]), ValueError, r"masks contains the symbol -1, but the data has 2 classes \(0…1\)"),
        (torch.tensor([1.0]), TypeError, r"masks must hold integers 0…1, but its dtype is torch.float32"),
    ],
)
def test_invalid_symbols_are_rejected(x: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_symbols(x, 2, name="masks")
