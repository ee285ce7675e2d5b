"""Dense blocks with a custom backward pass, which need far less memory traffic."""

__all__ = ["dense_blocks"]

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

_WEIGHTS = 4  # tensors per block: the weights and biases of its 1 × 1 and 3 × 3 convolutions


def dense_blocks(planes: Tensor, weights: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Apply a sequence of `DenseBlock`s, faster than the modules when gradients are needed.

    All blocks write to one tensor, so nothing is concatenated, and their gradients are accumulated in place.

    Arguments:
        planes: (batch, channels, height, width)
        weights: For each block, the weight and bias of its 1 × 1 convolution, then those of its 3 × 3 convolution.
        dtype: The dtype of the computation and of the result.

    Returns:
        (batch, channels + sum of growths, height, width), in channels-last memory format.
    """
    return cast("Tensor", _DenseBlocks.apply(planes, dtype, *weights))  # type: ignore[no-untyped-call]


class _DenseBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, planes: Tensor, dtype: torch.dtype, *weights: Tensor) -> Tensor:
        weights = tuple(weight.to(dtype) for weight in weights)
        batch, width, *size = planes.shape
        ctx.width = width
        growths = [weight.shape[0] for weight in weights[2::_WEIGHTS]]
        out = planes.new_empty(batch, *size, width + sum(growths), dtype=dtype)
        out[..., :width].copy_(planes.movedim(1, -1))
        mixed = []
        for i, growth in enumerate(growths):
            mix, mix_bias, grow, grow_bias = weights[_WEIGHTS * i :][:_WEIGHTS]
            rows = torch.addmm(mix_bias, _rows(out, width), mix.view(width, width).t()).relu_()
            mixed.append(rows)
            grown = F.conv2d(rows.view(batch, *size, width).movedim(-1, 1), grow, grow_bias, padding=1)
            torch.clamp_min(grown.movedim(1, -1), 0, out=out[..., width : width + growth])
            width += growth
        ctx.save_for_backward(out, *mixed, *weights)
        return out.movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        out, *saved = ctx.saved_tensors
        blocks = len(saved) // (1 + _WEIGHTS)
        mixed, weights = saved[:blocks], saved[blocks:]
        batch, *size, width = out.shape
        total = grad.movedim(1, -1).clone(memory_format=torch.contiguous_format)
        ones = total.new_ones(1, total[..., 0].numel())  # a matrix product is faster than a sum over rows
        found: list[Tensor] = []
        for i in reversed(range(blocks)):
            mix, _, grow, _ = weights[_WEIGHTS * i :][:_WEIGHTS]
            width -= grow.shape[0]
            new = slice(width, width + grow.shape[0])
            grown = torch.ops.aten.threshold_backward(total[..., new], out[..., new], 0).contiguous()
            above, of_grow, _ = torch.ops.aten.convolution_backward(
                grown.movedim(-1, 1),
                mixed[i].view(batch, *size, width).movedim(-1, 1),
                *(grow, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]),
            )
            rows = torch.ops.aten.threshold_backward(above.movedim(1, -1).reshape(-1, width), mixed[i], 0)
            of_mix = (rows.t() @ _rows(out, width)).view_as(mix)
            found[:0] = [of_mix, (ones @ rows)[0], of_grow, (ones @ grown.flatten(0, -2))[0]]
            _rows(total, width).addmm_(rows, mix.view(width, width))
        return total[..., : ctx.width].movedim(-1, 1), None, *found


def _rows(images: Tensor, width: int) -> Tensor:
    """Return a view of the first `width` planes of (batch, height, width, planes), with one row per pixel."""
    return images.view(-1, images.shape[-1])[:, :width]
