"""The conditional permutation: a class becomes its rank under a prediction (section 3.1 of the paper).

`argsort_top` is the permutation itself, as the paper defines it. `rank` and `unrank` apply it to one symbol per
prediction, forwards and backwards, without building it. All three only compare, and break ties towards the lowest
class: their results are the same on every device.
"""

__all__ = ["argsort_top", "rank", "unrank"]

from collections.abc import Callable

import torch
from torch import Tensor

from ddf.symbols import check_symbols, smallest_dtype


def argsort_top(theta: Tensor, top: int, dim: int = -1) -> Tensor:
    """Lists the classes with the `top` most likely ones sorted to the front, the others left where they were.

    A partial selection sort by swaps: for i = 0 … `top` − 1, the largest entry not yet sorted is swapped with the one
    at position i. `top` = K is the ordinary descending argsort.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021), section 3.1 and figure 1

    Arguments:
        theta: Predictions, one entry per class along `dim`.
        top: How many classes to sort, 1 … K: the paper's h.
        dim: The axis of the classes.

    Returns:
        int64 of the shape of `theta`: the class at each position.

    Examples:
        >>> theta = torch.tensor([0.10, 0.30, 0.05, 0.40, 0.15])
        >>> argsort_top(theta, top=2)
        tensor([3, 1, 2, 0, 4])
        >>> argsort_top(theta, top=5)
        tensor([3, 1, 4, 0, 2])
    """
    num_classes = _check_theta(theta, top, dim)
    theta = _positive_zero(theta.detach()).movedim(dim, -1)
    order = theta.argsort(dim=-1, descending=True, stable=True)
    if top < num_classes - 1:
        leaders = order[..., :top]
        order = torch.arange(num_classes, device=theta.device).expand(theta.shape).clone()
        for i in range(top):
            leader = leaders[..., i : i + 1]
            origin = (order == leader).int().argmax(dim=-1, keepdim=True)
            order.scatter_(-1, origin, order[..., i : i + 1].clone())
            order[..., i : i + 1] = leader
    return order.movedim(-1, dim)


def rank(x: Tensor, theta: Tensor, top: int, dim: int = -1) -> Tensor:
    """Replaces every class by its position in `argsort_top(theta, top)`: the paper's cond_perm.

    Arguments:
        x: Classes 0 … K − 1, of the shape of `theta` without the axis `dim`.
        theta: Predictions, one entry per class along `dim`.
        top: How many classes are sorted, 1 … K: the paper's h.
        dim: The axis of the classes.

    Returns:
        Positions 0 … K − 1, of the shape and dtype of `x`: 0 where `x` is the class predicted.

    Examples:
        >>> theta = torch.tensor([0.10, 0.30, 0.05, 0.40, 0.15])
        >>> rank(torch.arange(5), theta.expand(5, 5), top=2)
        tensor([3, 1, 2, 0, 4])
        >>> rank(torch.arange(5), theta.expand(5, 5), top=5)
        tensor([3, 1, 4, 0, 2])
    """
    num_classes = _check_theta(theta, top, dim)
    x = check_symbols(x, num_classes)
    if num_classes == 2:
        return _swap_pair(x, theta, dim)
    if top >= num_classes - 1:
        return _in_blocks(_count_ahead, x, theta, dim)
    return _in_blocks(lambda planes, x: _rank_top(planes, x, top), x, theta, dim)


def unrank(z: Tensor, theta: Tensor, top: int, dim: int = -1) -> Tensor:
    """Looks up the class at every position of `argsort_top(theta, top)`: the inverse of `rank`.

    Arguments:
        z: Positions 0 … K − 1, of the shape of `theta` without the axis `dim`.
        theta: Predictions, one entry per class along `dim`.
        top: How many classes are sorted, 1 … K: the paper's h.
        dim: The axis of the classes.

    Returns:
        Classes 0 … K − 1, of the shape and dtype of `z`.

    Examples:
        >>> theta = torch.randn(100, 8)
        >>> x = torch.randint(8, (100,))
        >>> torch.equal(unrank(rank(x, theta, top=4), theta, top=4), x)
        True
    """
    num_classes = _check_theta(theta, top, dim)
    z = check_symbols(z, num_classes, name="z")
    if num_classes == 2:
        return _swap_pair(z, theta, dim)
    return _in_blocks(lambda planes, z: _unrank_top(planes, z, top), z, theta, dim)


def _check_theta(theta: Tensor, top: int, dim: int) -> int:
    if not isinstance(theta, Tensor):
        raise TypeError(f"theta must be a tensor, but it is a {type(theta).__name__}")
    if theta.ndim == 0:
        raise ValueError("theta is a single number, but it needs an axis of classes")
    if not -theta.ndim <= dim < theta.ndim:
        raise ValueError(f"dim={dim}, but theta has {theta.ndim} axes")
    num_classes = theta.shape[dim]
    if not isinstance(top, int) or not 1 <= top <= num_classes:
        raise ValueError(f"top={top}, but the data has {num_classes} classes: top must be 1…{num_classes}")
    if theta.is_complex() or theta.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64):
        raise TypeError(f"theta must hold floats, signed integers or bytes, but its dtype is {theta.dtype}")
    # A sum shows a NaN in one quick pass; it is also NaN where +inf meets −inf, so look closer before refusing.
    if theta.is_floating_point() and theta.detach().sum().isnan() and theta.isnan().any():
        raise ValueError(f"theta contains NaN ({int(theta.isnan().sum())} of {theta.numel()} entries)")
    return num_classes


def _positive_zero(theta: Tensor) -> Tensor:
    """Makes −0 and +0 the same for sorts that look at the bits."""
    return theta + 0.0 if theta.is_floating_point() else theta


def _swap_pair(x: Tensor, theta: Tensor, dim: int) -> Tensor:
    """K = 2: an XOR with the class predicted, its own inverse."""
    theta = theta.detach()
    if x.shape != theta.select(dim, 0).shape:
        raise _shape_error(x, theta, dim)
    swapped = (theta.select(dim, 1) > theta.select(dim, 0)).to(x.dtype)
    return swapped.bitwise_xor_(x)


def _shape_error(x: Tensor, theta: Tensor, dim: int) -> ValueError:
    return ValueError(
        f"symbols of shape {tuple(x.shape)} do not fit theta of shape {tuple(theta.shape)} "
        f"with the classes on axis {dim}"
    )


# ---- In blocks -------------------------------------------------------------------------------------------------------
# The work is done on planes: theta as (K, n), one plane per class, so that every step is a few plain vector operations
# whatever the layout. Blocks bound the extra memory, and on a CPU they keep the planes in its cache.

_BLOCK_ENTRIES = {"cpu": 1 << 20}  # entries of theta per block
_BLOCK_ENTRIES_ELSEWHERE = 1 << 27


def _in_blocks(apply: Callable[[Tensor, Tensor], Tensor], symbols: Tensor, theta: Tensor, dim: int) -> Tensor:
    """Runs `apply(planes, symbols)` over blocks of `theta` and puts the results together."""
    theta = theta.detach()
    dim %= theta.ndim
    if symbols.shape != theta.shape[:dim] + theta.shape[dim + 1 :]:
        raise _shape_error(symbols, theta, dim)
    if symbols.numel() == 0:
        return symbols.clone()
    num_classes = theta.shape[dim]
    working = smallest_dtype(num_classes)
    grid = theta.reshape(theta.shape[:dim].numel(), num_classes, theta.shape[dim + 1 :].numel())
    outer, _, inner = grid.shape
    flat = symbols.reshape(outer, inner)
    result = torch.empty_like(flat, memory_format=torch.contiguous_format)
    entries = _BLOCK_ENTRIES.get(theta.device.type, _BLOCK_ENTRIES_ELSEWHERE)
    inner_step = min(inner, max(1, entries // num_classes))
    outer_step = max(1, entries // (num_classes * inner_step))
    for i in range(0, outer, outer_step):
        for j in range(0, inner, inner_step):
            block = (slice(i, i + outer_step), slice(j, j + inner_step))
            planes = grid[block[0], :, block[1]].movedim(1, 0).flatten(1)
            part = flat[block]
            result[block] = apply(planes, part.to(working).flatten()).view(part.shape)
    return result.view(symbols.shape)


# ---- On planes (K, n) ------------------------------------------------------------------------------------------------
# The leaders are the `top` classes that get sorted, in their order: leader i ends up at slot i. Of the others, those
# outside the slots stay where they are. One inside a slot makes way for the leader that comes there and takes the place
# that leader came from; if that is a slot as well, it makes way again. So two short walks replace the permutation:
#
#   rank:   a leader goes to its slot. Any other class follows slot → its leader → … until it is outside the slots.
#   unrank: a slot holds its leader. Any other position follows leader → its slot → … until it is no leader.


def _rank_top(planes: Tensor, x: Tensor, top: int) -> Tensor:
    classes = _rows_of_classes(planes)
    slots, leaders = classes[:top], _leaders(planes, classes, top)
    at = _matches(leaders, x)
    is_leader = at.sum(0, dtype=torch.bool)
    return torch.where(is_leader, at.mul_(slots).sum(0, dtype=x.dtype), _follow(slots, leaders, x))


def _unrank_top(planes: Tensor, z: Tensor, top: int) -> Tensor:
    classes = _rows_of_classes(planes)
    slots, leaders = classes[:top], _leaders(planes, classes, top)
    at_slot = _matches(slots, z).mul_(leaders).sum(0, dtype=z.dtype)
    if top == len(planes):
        return at_slot
    return torch.where(z < top, at_slot, _follow(leaders, slots, z))


def _follow(sources: Tensor, targets: Tensor, y: Tensor) -> Tensor:
    """Moves every entry of `y` that equals sources[i] to targets[i], again and again until nothing moves."""
    jumps = targets - sources  # may wrap around in unsigned dtypes; so does the sum that takes it back
    for _ in range(len(sources)):
        moved = y + _matches(sources, y).mul_(jumps).sum(0, dtype=y.dtype)
        if torch.equal(moved, y):
            break
        y = moved
    return y


def _matches(rows: Tensor, y: Tensor) -> Tensor:
    """1 where rows[i] equals `y` and 0 elsewhere, in the dtype of `y`."""
    return _as_numbers(rows == y, y.dtype)


def _as_numbers(flags: Tensor, dtype: torch.dtype) -> Tensor:
    return flags.view(dtype) if dtype == torch.uint8 else flags.to(dtype)


def _rows_of_classes(planes: Tensor) -> Tensor:
    """(K, n) with row c full of c. Whole rows, because comparing them is much faster than broadcasting a column."""
    dtype = smallest_dtype(len(planes))
    return torch.arange(len(planes), dtype=dtype, device=planes.device)[:, None].repeat(1, planes.shape[1])


def _contiguous(planes: Tensor) -> Tensor:
    # With a third axis, because PyTorch copies transposed matrices on one core only.
    return planes.unsqueeze(-1).contiguous().squeeze(-1)


def _count_ahead(planes: Tensor, x: Tensor) -> Tensor:
    """The descending rank of `x`: how many classes are larger, or equal and lower."""
    planes = _contiguous(planes)
    value = planes.gather(0, x[None].long())
    tied_before = (planes == value).logical_and_(_rows_of_classes(planes) < x)
    return _as_numbers((planes > value).logical_or_(tied_before), x.dtype).sum(0, dtype=x.dtype)


def _leaders(planes: Tensor, classes: Tensor, top: int) -> Tensor:
    """The `top` largest classes in descending order, (top, n), by whichever way is cheapest."""
    num_classes = len(planes)
    if num_classes <= min(64, 5 * top):
        return _leaders_by_pairs(_contiguous(planes), classes, top)
    table = planes.t().contiguous()
    if top <= 16 and (leaders := _leaders_by_rounds(table, top)) is not None:
        return leaders.to(classes.dtype)
    order = _positive_zero(table).sort(dim=1, descending=True, stable=True).indices
    return order[:, :top].t().to(classes.dtype)


def _leaders_by_pairs(planes: Tensor, classes: Tensor, top: int) -> Tensor:
    """Compares every two classes once: the ranks of all follow. For few classes."""
    ranks = classes.flip(0)
    for c in range(len(planes) - 1):
        before = _as_numbers(planes[c] >= planes[c + 1 :], classes.dtype)
        ranks[c + 1 :].add_(before)
        ranks[c].sub_(before.sum(0, dtype=classes.dtype))
    # ranks[c] began as the number of classes above c, as if c were behind them all, and each comparison mended it.
    return torch.stack([_matches(ranks, slot).mul_(classes).sum(0, dtype=classes.dtype) for slot in classes[:top]])


def _leaders_by_rounds(table: Tensor, top: int) -> Tensor | None:
    """Finds the largest of each row, takes it out, and so on. For few leaders among many classes.

    None where that cannot work: where the value that marks what has been taken occurs in the table itself.
    """
    taken = float("-inf") if table.is_floating_point() else torch.iinfo(table.dtype).min
    if table.amin() == taken:
        return None
    table = table.clone()
    leaders = []
    for _ in range(top):
        leaders.append(table.argmax(dim=1))
        table.scatter_(1, leaders[-1][:, None], taken)
    return torch.stack(leaders)
