"""The conditional permutation: a class becomes its rank under a prediction (section 3.1 of the paper).

Given the prediction θ of a symbol, `argsort_top` lists the classes with the most likely ones first. `rank` replaces a
class by its position in that list, so that the predicted class becomes 0, and `unrank` looks the class up again:

    z = rank(x | θ)    such that    argsort_top(θ)[z] = x

All three only compare numbers and break ties in favor of the lowest class, so their results are the same on every
device. `rank` and `unrank` are computed in `fast_permutation` without building the list.
"""

__all__ = ["argsort_top", "rank", "unrank"]

import torch
from torch import Tensor

from ddf.fast_permutation import check_theta, fast_rank, fast_unrank, positive_zero
from ddf.symbols import check_symbols


def argsort_top(theta: Tensor, top: int, dim: int = -1) -> Tensor:
    """List the classes with the `top` most likely ones sorted to the front and the others left in place.

    This is a partial selection sort by swaps: for i = 0 … `top` − 1, the largest of the entries at positions i … K − 1
    is swapped with the entry at position i. With `top` = K, it is the descending argsort.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021), section 3.1 and figure 1

    Arguments:
        theta: Predictions, one entry per class along `dim`.
        top: Number of classes to sort, 1 … K: the paper's h.
        dim: The axis of the classes.

    Returns:
        The class at each position: int64, of the shape of `theta`.

    Examples:
        >>> theta = torch.tensor([0.10, 0.30, 0.05, 0.40, 0.15])
        >>> argsort_top(theta, top=2)
        tensor([3, 1, 2, 0, 4])
        >>> argsort_top(theta, top=5)
        tensor([3, 1, 4, 0, 2])
    """
    num_classes = check_theta(theta, top, dim)
    theta = positive_zero(theta.detach()).movedim(dim, -1)
    descending = theta.argsort(dim=-1, descending=True, stable=True)
    if top >= num_classes - 1:
        return descending.movedim(-1, dim)
    order = torch.arange(num_classes, device=theta.device).expand(theta.shape).clone()
    for i in range(top):
        largest = descending[..., i : i + 1]
        origin = (order == largest).int().argmax(dim=-1, keepdim=True)
        order.scatter_(-1, origin, order[..., i : i + 1].clone())
        order[..., i : i + 1] = largest
    return order.movedim(-1, dim)


def rank(x: Tensor, theta: Tensor, top: int, dim: int = -1) -> Tensor:
    """Replace each class by its position in `argsort_top(theta, top)`: the paper's cond_perm.

    Arguments:
        x: Classes 0 … K − 1, of the shape of `theta` without the axis `dim`.
        theta: Predictions, one entry per class along `dim`.
        top: Number of classes that are sorted, 1 … K: the paper's h.
        dim: The axis of the classes.

    Returns:
        Positions 0 … K − 1, of the shape and dtype of `x`: 0 where `x` is the predicted class.

    Examples:
        >>> theta = torch.tensor([0.10, 0.30, 0.05, 0.40, 0.15])
        >>> rank(torch.arange(5), theta.expand(5, 5), top=2)
        tensor([3, 1, 2, 0, 4])
        >>> rank(torch.arange(5), theta.expand(5, 5), top=5)
        tensor([3, 1, 4, 0, 2])
    """
    return fast_rank(check_symbols(x, check_theta(theta, top, dim)), theta, top, dim)


def unrank(z: Tensor, theta: Tensor, top: int, dim: int = -1) -> Tensor:
    """Look up the class at each position of `argsort_top(theta, top)`: the inverse of `rank`.

    Arguments:
        z: Positions 0 … K − 1, of the shape of `theta` without the axis `dim`.
        theta: Predictions, one entry per class along `dim`.
        top: Number of classes that are sorted, 1 … K: the paper's h.
        dim: The axis of the classes.

    Returns:
        Classes 0 … K − 1, of the shape and dtype of `z`.

    Examples:
        >>> theta = torch.randn(100, 8)
        >>> x = torch.randint(8, (100,))
        >>> torch.equal(unrank(rank(x, theta, top=4), theta, top=4), x)
        True
    """
    return fast_unrank(check_symbols(z, check_theta(theta, top, dim), name="z"), theta, top, dim)
