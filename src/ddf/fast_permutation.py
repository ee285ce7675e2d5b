"""Fast forms of the conditional permutation, and the checks of its arguments; `permutation` has the definition."""

__all__ = ["check_theta", "fast_rank", "fast_unrank", "positive_zero"]

from collections.abc import Callable

import torch
from torch import Tensor

from ddf.symbols import smallest_dtype


def check_theta(theta: Tensor, top: int, dim: int) -> int:
    """Return the number of classes of a prediction; raise an error for an invalid one."""
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
    # A sum reveals a NaN in one fast pass; it is also NaN if +inf meets −inf, hence the second check.
    if theta.is_floating_point() and theta.detach().sum().isnan() and theta.isnan().any():
        raise ValueError(f"theta contains NaN ({int(theta.isnan().sum())} of {theta.numel()} entries)")
    return num_classes


def positive_zero(theta: Tensor) -> Tensor:
    """Replace −0 with +0, because sorting tells them apart on some devices."""
    return theta + 0.0 if theta.is_floating_point() else theta


def fast_rank(x: Tensor, theta: Tensor, top: int, dim: int) -> Tensor:
    """Compute `rank` for arguments that have been checked."""
    num_classes = theta.shape[dim]
    if num_classes == 2:
        return _swap_pair(x, theta, dim)
    if top >= num_classes - 1:
        return _in_blocks(_count_ahead, x, theta, dim)
    return _in_blocks(lambda planes, x: _rank_top(planes, x, top), x, theta, dim)


def fast_unrank(z: Tensor, theta: Tensor, top: int, dim: int) -> Tensor:
    """Compute `unrank` for arguments that have been checked."""
    if theta.shape[dim] == 2:
        return _swap_pair(z, theta, dim)
    return _in_blocks(lambda planes, z: _unrank_top(planes, z, top), z, theta, dim)


def _swap_pair(x: Tensor, theta: Tensor, dim: int) -> Tensor:
    """K = 2: an XOR with the predicted class, which is its own inverse."""
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
# Computations use planes: theta as (K, n), one plane per class, so that every step is a few vector operations whatever
# the memory layout. Blocks bound the extra memory, and on a CPU they keep the planes in its cache.

_BLOCK_ENTRIES = {"cpu": 1 << 20}  # entries of theta per block
_BLOCK_ENTRIES_ELSEWHERE = 1 << 27


def _in_blocks(apply: Callable[[Tensor, Tensor], Tensor], symbols: Tensor, theta: Tensor, dim: int) -> Tensor:
    """Apply `apply(planes, symbols)` to blocks of `theta` and assemble the results."""
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
# The leaders are the `top` classes that are sorted, in order: leader i moves to slot i. The other classes stay in
# place, unless they are in a slot. A class in slot i moves to where leader i came from; if that is a slot too, it moves
# again. So two short iterations replace the permutation:
#
#   rank:   a leader goes to its slot. Any other class follows slot → its leader → … until it is outside the slots.
#   unrank: a slot holds its leader. Any other position follows leader → its slot → … until it is not a leader.


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
    """Move every entry of `y` that equals sources[i] to targets[i], repeatedly, until nothing moves."""
    jumps = targets - sources  # may wrap around in unsigned dtypes; the sum below wraps back
    for _ in range(len(sources)):
        moved = y + _matches(sources, y).mul_(jumps).sum(0, dtype=y.dtype)
        if torch.equal(moved, y):
            break
        y = moved
    return y


def _matches(rows: Tensor, y: Tensor) -> Tensor:
    """Return 1 where rows[i] equals `y` and 0 elsewhere, in the dtype of `y`."""
    return _as_numbers(rows == y, y.dtype)


def _as_numbers(flags: Tensor, dtype: torch.dtype) -> Tensor:
    return flags.view(dtype) if dtype == torch.uint8 else flags.to(dtype)


def _rows_of_classes(planes: Tensor) -> Tensor:
    """Return (K, n) with row c full of c: comparing whole rows is much faster than broadcasting a column."""
    dtype = smallest_dtype(len(planes))
    return torch.arange(len(planes), dtype=dtype, device=planes.device)[:, None].repeat(1, planes.shape[1])


def _contiguous(planes: Tensor) -> Tensor:
    # With a third axis, because PyTorch copies transposed matrices on a single core.
    return planes.unsqueeze(-1).contiguous().squeeze(-1)


def _count_ahead(planes: Tensor, x: Tensor) -> Tensor:
    """Return the descending rank of `x`: the number of classes whose entry is larger, or equal with a lower class."""
    planes = _contiguous(planes)
    value = planes.gather(0, x[None].long())
    tied_before = (planes == value).logical_and_(_rows_of_classes(planes) < x)
    return _as_numbers((planes > value).logical_or_(tied_before), x.dtype).sum(0, dtype=x.dtype)


def _leaders(planes: Tensor, classes: Tensor, top: int) -> Tensor:
    """Return the `top` largest classes in descending order, (top, n), by whichever algorithm is fastest."""
    num_classes = len(planes)
    if num_classes <= min(64, 5 * top):
        return _leaders_by_pairs(_contiguous(planes), classes, top)
    table = planes.t().contiguous()
    if top <= 16 and (leaders := _leaders_by_rounds(table, top)) is not None:
        return leaders.to(classes.dtype)
    order = positive_zero(table).sort(dim=1, descending=True, stable=True).indices
    return order[:, :top].t().to(classes.dtype)


def _leaders_by_pairs(planes: Tensor, classes: Tensor, top: int) -> Tensor:
    """Compare every pair of classes once, which gives all ranks. For few classes."""
    ranks = classes.flip(0)
    for c in range(len(planes) - 1):
        before = _as_numbers(planes[c] >= planes[c + 1 :], classes.dtype)
        ranks[c + 1 :].add_(before)
        ranks[c].sub_(before.sum(0, dtype=classes.dtype))
    # ranks[c] started as the number of classes above c, as if c were behind them all; each comparison corrected it.
    return torch.stack([_matches(ranks, slot).mul_(classes).sum(0, dtype=classes.dtype) for slot in classes[:top]])


def _leaders_by_rounds(table: Tensor, top: int) -> Tensor | None:
    """Find the largest entry of each row, mark it as taken, and repeat. For few leaders among many classes.

    Return None if the value that marks taken entries occurs in the table.
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
