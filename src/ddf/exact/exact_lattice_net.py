"""The exact form of a `LatticeNet`, with 16-bit weights and inputs; it needs no fine-tuning."""

__all__ = ["ExactLatticeNet", "exact_lattice_net"]

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ddf.exact.exact_attention import ExactAttention
from ddf.exact.exact_nets import BITS_PER_NAT
from ddf.exact.floats import floats_are_exact, hardswish6, nearest, normalized
from ddf.exact.integer_module import IntegerModule
from ddf.exact.wide_affine import WideAffine, bits_for, from_fixed_point, to_fixed_point
from ddf.logits import PER_BIT
from ddf.nets import LatticeNet
from ddf.nets.convolution import Convolution
from ddf.nets.lattice import LatticeWalk, pad_planes
from ddf.nets.lattice_net import CausalConvolution
from ddf.nets.unet import Attention, Block, UNet, from_cells, to_cells
from ddf.plain import describe

_LARGEST_LOGIT = 1 << 24  # in units of 1/256 bit
_ENTER_BITS = 14  # of the frequencies of given pixels, which are at most 1
_PIXELS = {"cpu": 1 << 10, "cuda": 1 << 16}
"""Known pixels that are processed together: few enough for a CPU's cache, and enough to keep a GPU busy."""


class ExactLatticeNet(LatticeWalk, IntegerModule):
    """A `LatticeNet` whose logits are the same on every machine: integers in units of 1/256 bit.

    Weights and the numbers they are multiplied by are rounded to 16 bits, so that sums of their products are exact.
    Everything else is in floating point, mostly in single precision (see `floats`). The result is so close to that of
    the original net that no fine-tuning is needed.

    Arguments:
        net: The original net, of which only the shapes are used; `exact_lattice_net` converts its weights.
    """

    exact = True
    trainable = False
    position: Tensor | None

    def __init__(self, net: LatticeNet) -> None:
        super().__init__()
        self.spec = describe(net)
        self.num_classes, self.channels, self.levels, self.cell = net.num_classes, net.channels, net.levels, net.cell
        self.size, self.hints, self.unit, self.groups = net.size, net.hints, net.unit, net.groups
        embeddings = net.embedding.num_embeddings
        self.enter = _affine(net.enter)
        self.unet = ExactUNet(net.unet, embeddings)
        self.mix, self.seen, self.leave = _affine(net.mix), _affine(net.seen), _affine(net.leave)
        self.stack = nn.ModuleList(ExactCausalBlock(block) for block in net.stack)
        self.start = None if net.start is None else _affine(net.start)
        shape = None if net.position is None else net.position[0].permute(1, 2, 0).shape
        self.register_buffer("position", None if shape is None else torch.zeros(shape, dtype=torch.int32))

    def forward(self, *arguments: Any, **more: Any) -> Tensor:
        """Return integer logits, int32; see `LatticeWalk.forward`."""
        with torch.no_grad(), torch.autocast(self.enter.weight.device.type, enabled=False):
            return super().forward(*arguments, **more)

    def features(self, x: Tensor, given: Tensor | None, level: int) -> Tensor:
        def some(x: Tensor, given: Tensor | None) -> Tensor:
            planes = self.lattice(x, level, torch.float32)[:, :, ::2, ::2]
            return self.mix(self._trunk(planes, x, given, level, level)).permute(0, 3, 1, 2)

        return self._in_parts(some, x, given)

    def group_logits(self, features: Tensor, x: Tensor, level: int) -> Tensor:
        def some(features: Tensor, x: Tensor) -> Tensor:
            own, seen = self.to_groups(features, self.lattice(x, level, torch.float32))
            h = self.seen(_rows(pad_planes(seen, self.seen.in_channels))).add_(_rows(own))
            for block in self.stack:
                h = block(h, self.groups)
            return self._logits(self.leave(hardswish6(_normalized(h, self.groups))), self.groups)

        return self._in_parts(some, features, x)

    def start_logits(self, x: Tensor, given: Tensor) -> Tensor:
        def some(x: Tensor, given: Tensor) -> Tensor:
            assert self.start is not None
            planes = torch.zeros_like(self.lattice(x, 0, torch.float32)[:, :, ::2, ::2])
            logits = self._logits(self.start(self._trunk(planes, x, given, 0, self.levels)), 1)[:, 0]
            rows, columns = (-(-side >> self.levels) for side in x.shape[2:])
            return logits[..., :rows, :columns]

        return self._in_parts(some, x, given)

    def _trunk(self, planes: Tensor, x: Tensor, given: Tensor | None, level: int, embedding: int) -> Tensor:
        """Return 6 times what the U-net computes from the known pixels of a level: (batch, height, width, planes)."""
        if self.hints:
            planes = torch.cat([planes, self.hints_of(x, given, level, planes.dtype)], dim=1)
        h = self.enter(_rows(pad_planes(planes, self.enter.in_channels)))
        if self.position is not None:
            spacing = 1 << (self.levels - 1 - level)
            position = from_fixed_point(self.position[::spacing, ::spacing])
            h[:, : len(position), : position.shape[1]] += position
        return hardswish6(normalized(self.unet(h, embedding)))

    def _logits(self, h: Tensor, groups: int) -> Tensor:
        """Round logits (batch, rows, columns, planes): (batch, groups, K, channels, rows, columns)."""
        integers = nearest(h, PER_BIT).clamp_(-_LARGEST_LOGIT, _LARGEST_LOGIT).to(torch.int32).permute(0, 3, 1, 2)
        integers = integers[:, : groups * self.num_classes * self.channels]
        return integers.unflatten(1, (groups, self.num_classes, self.channels))

    def _in_parts(self, function: Callable[..., Tensor], *arguments: Tensor | None) -> Tensor:
        """Apply a function to parts of the batch that are small enough to be processed together."""
        first = arguments[0]
        assert first is not None
        pixels = max(1, first[0, 0].numel() // (1 if first.is_floating_point() else 4))
        together = max(1, _PIXELS.get(first.device.type, _PIXELS["cpu"]) // pixels)
        parts = [[None] * len(first) if one is None else one.split(together) for one in arguments]
        return torch.cat([function(*part) for part in zip(*parts, strict=False)])

    def is_exact(self) -> bool:
        """Return whether floating-point operations are exact on this device; the parts have their own tests."""
        return floats_are_exact(self.enter.weight.device)

    def __repr__(self) -> str:
        return f"ExactLatticeNet({self.extra_repr()})"

    def extra_repr(self) -> str:
        spec = self.spec
        return f"planes={spec.planes}, blocks={spec.blocks}, width={spec.width}, depth={spec.depth}"


class ExactBlock(IntegerModule):
    """A residual block, with a table of what it adds at each level.

    Arguments:
        block: The original block.
        levels: The number of embeddings.
    """

    table: Tensor

    def __init__(self, block: Block, levels: int) -> None:
        super().__init__()
        self.first = _affine(block.first)
        self.second = _affine(block.second)
        self.register_buffer("table", torch.zeros(levels, len(block.level.weight), dtype=torch.int32))

    def forward(self, x: Tensor, level: int) -> Tensor:
        h = self.first(normalized(x)).add_(from_fixed_point(self.table[level]))
        out: Tensor = self.second(hardswish6(h)).add_(x)
        return out


class ExactCausalBlock(nn.Module):
    """A residual block of causal convolutions."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.first = _affine(block.first)
        self.second = _affine(block.second)

    def forward(self, x: Tensor, groups: int) -> Tensor:
        out: Tensor = self.second(hardswish6(self.first(_normalized(x, groups)))).add_(x)
        return out


class ExactUNet(nn.Module):
    """One resolution of a U-net, and all lower ones."""

    def __init__(self, net: UNet, levels: int) -> None:
        super().__init__()
        self.before = nn.ModuleList(ExactBlock(block, levels) for block in net.before)  # type: ignore[arg-type]
        self.attention = nn.ModuleList(ExactAttention(part) for part in net.attention)  # type: ignore[arg-type]
        self.after = nn.ModuleList(ExactBlock(block, levels) for block in net.after)  # type: ignore[arg-type]
        self.next: ExactUNet | None = None
        if net.next is not None:
            self.next = ExactUNet(net.next, levels)
            self.down = _affine(net.down)
            self.up = _affine(net.up)

    def forward(self, x: Tensor, level: int) -> Tensor:
        for i, block in enumerate(self.before):
            x = block(x, level)
            if self.next is None:
                x = self.attention[i](x)
        if self.next is not None:
            cells = to_cells(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            above = self.up(self.next(self.down(cells), level)).permute(0, 3, 1, 2)
            x = from_cells(above).permute(0, 2, 3, 1).add(x)
        for block in self.after:
            x = block(x, level)
        return x


def _affine(layer: nn.Linear | nn.Conv2d) -> WideAffine:
    if isinstance(layer, CausalConvolution):
        return WideAffine(layer.weight.shape, layer.bias is not None, layer.reached, layer.reached_count)
    return WideAffine(layer.weight.shape, layer.bias is not None)


def _rows(planes: Tensor) -> Tensor:
    """Move planes to the end: (batch, height, width, planes)."""
    return planes.permute(0, 2, 3, 1)


def _normalized(x: Tensor, groups: int) -> Tensor:
    """Apply `normalized` to each group of planes."""
    return normalized(x.unflatten(-1, (groups, -1))).flatten(-2)


# ---- Conversion ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def exact_lattice_net(net: LatticeNet, given: Iterable[Any]) -> ExactLatticeNet:
    """Return the exact form of a net.

    Arguments:
        net: A trained net.
        given: Batches of typical inputs, with which the range of its activations is measured: tuples of symbols and,
            for a net with hints, a mask of the pixels that are given in advance.
    """
    peaks = _peaks(net, given)
    exact = ExactLatticeNet(net)
    modules = dict(net.named_modules())
    for name, part in exact.named_modules():
        module: Any = modules.get(name)
        if isinstance(part, WideAffine):
            unit = {"leave": BITS_PER_NAT * net.scale, "start": BITS_PER_NAT}.get(name, 1.0)
            factor = 6 if name in ("mix", "leave", "start") or name.endswith(".second") else 1  # see `hardswish6`
            bits = bits_for(peaks.get(name, 1.0) * factor)
            bits = {"enter": _ENTER_BITS if net.hints else 0, "seen": 0}.get(name, bits)
            part.convert(module.weight * (unit / factor), None if module.bias is None else module.bias * unit, bits)
        elif isinstance(part, ExactBlock):
            part.table = to_fixed_point(net.embedding.weight.double() @ module.level.weight.double().T)
    if net.position is not None:
        exact.position = to_fixed_point(net.position[0].permute(1, 2, 0))
    return exact.to(net.enter.weight.device)


def _peaks(net: LatticeNet, given: Iterable[Any]) -> dict[str, float]:
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
