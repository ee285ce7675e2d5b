"""Symbols: the integers 0 … K − 1 that flows model."""

__all__ = ["check_symbols", "one_hot", "smallest_dtype"]

import torch
from torch import Tensor

# The integer dtypes that all PyTorch operations support, in ascending order of size.
_WORKING_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def smallest_dtype(num_classes: int) -> torch.dtype:
    """Return the smallest integer dtype that holds 0 … `num_classes` − 1.

    Examples:
        >>> smallest_dtype(256), smallest_dtype(257)
        (torch.uint8, torch.int16)
    """
    return next(d for d in _WORKING_DTYPES if torch.iinfo(d).max >= num_classes - 1)


def check_symbols(x: Tensor, num_classes: int, name: str = "x") -> Tensor:
    """Return `x` if it holds symbols 0 … `num_classes` − 1; raise an error otherwise.

    The dtype is kept unless it cannot hold every symbol (int8 with 200 classes) or PyTorch barely supports it (bool and
    the large unsigned ones); then `x` is converted to one that works.

    Arguments:
        x: Integers of any shape.
        num_classes: The number of classes K.
        name: The name of `x` in error messages.

    Examples:
        >>> check_symbols(torch.tensor([0, 3, 8]), num_classes=8)
        Traceback (most recent call last):
            ...
        ValueError: x contains the symbol 8, but the data has 8 classes (0…7)
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, not a {type(x).__name__}; convert it with torch.as_tensor")
    if x.is_floating_point() or x.is_complex():
        raise TypeError(f"{name} must hold integers 0…{num_classes - 1}, but its dtype is {x.dtype}; convert it first")
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    elif x.dtype not in _WORKING_DTYPES:
        x = x.to(torch.int64)  # the upper half of uint64 becomes negative, which is rejected below
    if x.numel():
        low, high = (int(bound) for bound in x.aminmax())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise ValueError(
                f"{name} contains the symbol {wrong}, but the data has {num_classes} classes (0…{num_classes - 1})"
            )
    return x if torch.iinfo(x.dtype).max >= num_classes - 1 else x.to(smallest_dtype(num_classes))


def one_hot(x: Tensor, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert symbols (batch, channels, \\*spatial) to one-hot vectors (batch, K, channels, \\*spatial).

    This is the only function that does so. The class axis comes second, as in logits, so the order of channels and
    space is kept.

    Examples:
        >>> one_hot(torch.tensor([[2, 0]]), num_classes=3)
        tensor([[[0., 1.],
                 [0., 0.],
                 [1., 0.]]])
    """
    classes = torch.arange(num_classes, device=x.device).view(num_classes, *[1] * (x.ndim - 1))
    return (x.unsqueeze(1) == classes).to(dtype)
