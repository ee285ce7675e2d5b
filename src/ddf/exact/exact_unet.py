"""The exact form of the U-net, in 16-bit integers, which needs no fine-tuning."""

__all__ = ["ExactUNet", "exact_unet"]

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.exact.exact_attention import ExactAttention
from ddf.exact.exact_nets import BITS_PER_NAT
from ddf.exact.floats import floats_are_exact, hardswish6, nearest, normalized
from ddf.exact.integer_module import IntegerModule
from ddf.exact.wide_affine import WideAffine, bits_for, from_fixed_point, to_fixed_point
from ddf.logits import PER_BIT
from ddf.nets import UNet
from ddf.nets.convolution import Convolution
from ddf.nets.unet import Attention, Block, Level, from_cells, to_cells
from ddf.plain import describe

_LARGEST_LOGIT = 1 << 24  # in units of 1/256 bit
_PIXELS = {"cpu": 1 << 10, "cuda": 1 << 16}
"""Patches that are processed together: what fits a CPU's cache, and enough to occupy a GPU."""


class ExactUNet(IntegerModule):
    """A `UNet` whose logits are the same on every machine: integers in units of 1/256 bit.

    Weights and the numbers they are multiplied by are rounded to 16 bits, so that sums of their products are exact.
    Everything else is in floating point, mostly in single precision (see `floats`). The result is so close to that of
    the original net that no fine-tuning is needed.

    Arguments:
        net: The original net, of which only the shapes are used; `exact_unet` converts its weights.
    """

    exact = True
    trainable = False
    position: Tensor | None

    def __init__(self, net: UNet) -> None:
        super().__init__()
        self.spec = describe(net)
        self.num_classes, self.channels, self.steps = net.num_classes, net.channels, net.steps
        self.size, self.patch, self.unit = net.size, net.patch, net.unit
        self.enter = _affine(net.enter)
        self.level = ExactLevel(net.level, net.steps)
        self.leave = _affine(net.leave)
        shape = None if net.position is None else net.position[0].permute(1, 2, 0).shape
        self.register_buffer("position", None if shape is None else torch.zeros(shape, dtype=torch.int32))

    def forward(self, x: Tensor, known: Tensor, step: Tensor) -> Tensor:
        """Return the integer logits of all pixels, int32; see `UNet`."""
        patches = -(-x.shape[2] // self.patch) * -(-x.shape[3] // self.patch)
        together = max(1, _PIXELS.get(x.device.type, _PIXELS["cpu"]) // max(1, patches))
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            parts = zip(x.split(together), known.split(together), step.split(together), strict=True)
            return torch.cat([self._logits(*part) for part in parts])

    def _logits(self, x: Tensor, known: Tensor, step: Tensor) -> Tensor:
        height, width = x.shape[2:]
        h = self.enter(UNet.encode(self, x, known).permute(0, 2, 3, 1).float())  # type: ignore[arg-type]
        if self.position is not None:
            h.add_(from_fixed_point(self.position))
        h = self.leave(hardswish6(normalized(self.level(h, step))))
        integers = nearest(h, PER_BIT).clamp_(-_LARGEST_LOGIT, _LARGEST_LOGIT).to(torch.int32)
        cells = self.patch * self.patch * self.channels
        planes = integers[..., : self.num_classes * cells].permute(0, 3, 1, 2)
        logits = F.pixel_shuffle(planes, self.patch)[..., :height, :width]
        return logits.unflatten(1, (self.num_classes, self.channels))

    def is_exact(self) -> bool:
        """Return whether floating-point operations are exact on this device; the parts have their own tests."""
        return floats_are_exact(self.enter.weight.device)

    def __repr__(self) -> str:
        return f"ExactUNet({self.extra_repr()})"

    def extra_repr(self) -> str:
        return f"planes={self.spec.planes}, blocks={self.spec.blocks}, patch={self.patch}"


class ExactBlock(IntegerModule):
    """A residual block, with a table of what it adds for each step.

    Arguments:
        block: The original block.
        steps: The number of steps.
    """

    table: Tensor

    def __init__(self, block: Block, steps: int) -> None:
        super().__init__()
        self.first = _affine(block.first)
        self.second = _affine(block.second)
        self.register_buffer("table", torch.zeros(steps, len(block.step.weight), dtype=torch.int32))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        h = self.first(normalized(x)).add_(from_fixed_point(self.table[step])[:, None, None])
        out: Tensor = self.second(hardswish6(h)).add_(x)
        return out


class ExactLevel(nn.Module):
    """One resolution of a U-net, and all lower ones."""

    def __init__(self, level: Level, steps: int) -> None:
        super().__init__()
        self.before = nn.ModuleList(ExactBlock(block, steps) for block in level.before)  # type: ignore[arg-type]
        self.attention = nn.ModuleList(ExactAttention(part) for part in level.attention)  # type: ignore[arg-type]
        self.after = nn.ModuleList(ExactBlock(block, steps) for block in level.after)  # type: ignore[arg-type]
        self.next: ExactLevel | None = None
        if level.next is not None:
            self.next = ExactLevel(level.next, steps)
            self.down = _affine(level.down)
            self.up = _affine(level.up)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        for i, block in enumerate(self.before):
            x = block(x, step)
            if self.next is None:
                x = self.attention[i](x)
        if self.next is not None:
            cells = to_cells(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            above = self.up(self.next(self.down(cells), step)).permute(0, 3, 1, 2)
            x = from_cells(above).permute(0, 2, 3, 1).add(x)
        for block in self.after:
            x = block(x, step)
        return x


def _affine(layer: nn.Linear | nn.Conv2d) -> WideAffine:
    return WideAffine(layer.weight.shape, layer.bias is not None)


# ---- Conversion ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def exact_unet(net: UNet, given: Iterable[Any]) -> ExactUNet:
    """Return the exact form of a net.

    Arguments:
        net: A trained net.
        given: Batches of typical inputs (x, known, step), with which the range of its activations is measured.
    """
    peaks = _peaks(net, given)
    exact = ExactUNet(net)
    modules = dict(net.named_modules())
    for name, part in exact.named_modules():
        module: Any = modules.get(name)
        if isinstance(part, WideAffine):
            unit = BITS_PER_NAT if name == "leave" else 1
            factor = 6 if name == "leave" or name.endswith(".second") else 1  # on the inputs; see `hardswish6`
            bits = 0 if name == "enter" else bits_for(peaks.get(name, 1.0) * factor)
            part.convert(module.weight * (unit / factor), None if module.bias is None else module.bias * unit, bits)
        elif isinstance(part, ExactBlock):
            part.table = to_fixed_point(net.embedding.weight.double() @ module.step.weight.double().T)
    if net.position is not None:
        exact.position = to_fixed_point(net.position[0].permute(1, 2, 0))
    return exact.to(net.enter.weight.device)


def _peaks(net: UNet, given: Iterable[Any]) -> dict[str, float]:
    """Return the largest absolute input of each affine map, by its name."""
    peaks: dict[str, Tensor] = {}

    def watch(name: str, values: Tensor) -> None:
        peak = values.abs().max()
        peaks[name] = torch.maximum(peaks[name], peak) if name in peaks else peak

    def inputs(name: str) -> Callable[..., None]:
        return lambda module, args: watch(name, args[0])

    def values(name: str) -> Callable[..., None]:
        return lambda module, args, output: watch(name, output.chunk(3, dim=-1)[2])

    hooks = []
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear | Convolution):
            hooks.append(module.register_forward_pre_hook(inputs(name)))
        elif isinstance(module, Attention):
            hooks.append(module.mix.register_forward_hook(values(f"{name}.out")))
    try:
        for batch in given:
            net(*batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: float(peak) for name, peak in peaks.items()}
