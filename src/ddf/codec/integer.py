"""Nets in integer arithmetic: what is trained to be exact, and what is then exact everywhere.

All numbers are binary fractions: a weight is an integer times 2^−s with an s for each output, an activation one of
0/128 … 127/128, a logit a multiple of 1/256 bit. Floating point carries them: as long as no sum of the absolute values
of its terms, in units of the last place, exceeds what the format holds without rounding, any order of summation and any
instruction set gives the same result. That bound is computed from the weights themselves, and the format chosen by it.
"""

__all__ = ["ExactAffine", "InexactNetError", "quantise_net"]

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.codec.frequencies import PER_BIT
from ddf.nets import MLP, ContextNet, DenseNet, Net
from ddf.nets.convolution import as_products

ACTIVATION_BITS = 7
"""Activations are multiples of 1/128 from 0 to 127/128."""

_LOGIT_BITS = PER_BIT.bit_length() - 1
_STEPS = 1 << ACTIVATION_BITS
_PEAK = 0.9  # what the largest activation seen in calibration becomes
_WEIGHT = 127  # the largest integer weight, so that it fits 8 bits
_WIDE_WEIGHT = (1 << 13) - 1  # the same for weights of one-hot vectors, of which few add up
_LEAST_SHIFT, _MOST_SHIFT = 0, 20


class InexactNetError(ValueError):
    """A net that has no exact integer form."""


class ExactAffine(nn.Module):
    """A linear map or a convolution, with a clipped ReLU, on binary fractions.

    In training, weights and results are rounded, and gradients pass as if they were not.

    Arguments:
        weight: (out, in) or (out, in, rows, columns), in units in which activations lie between 0 and 1.
        bias: (out,)
        input_bits: The inputs are multiples of 2^−input_bits and at most 1.
        reads_out: Whether the results are logits in bits, which are not clipped.
        terms: How many inputs of each place are not 0 at most, if that is known: one-hot vectors are like that.
    """

    shift: Tensor

    def __init__(
        self, weight: Tensor, bias: Tensor, input_bits: int, reads_out: bool = False, terms: int | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone().float())
        self.bias = nn.Parameter(bias.detach().clone().float())
        self.input_bits = input_bits
        self.reads_out = reads_out
        self.terms = terms
        self.limit = _WEIGHT if terms is None else _WIDE_WEIGHT
        largest = self.weight.detach().abs().flatten(1).amax(dim=1).clamp(min=2.0**-30)
        shift = (self.limit / largest).log2().floor().clamp(_LEAST_SHIFT, _MOST_SHIFT)
        self.register_buffer("shift", shift.to(torch.int32))
        self.fixed: tuple[Tensor, Tensor] | None = None
        self._sums = torch.float32  # what carries sums exactly

    def train(self, mode: bool = True) -> "ExactAffine":
        """In evaluation mode the numbers are fixed, in training mode they may move."""
        super().train(mode)
        if mode:
            self.fixed = None
            self.float()
        elif self.fixed is None:
            weight, bias = (part.detach().double() for part in self.integers())
            self.fix(weight, bias, self.shift.clone())
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> "ExactAffine":
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self.fixed is not None:
            self.fixed = self.integers()
        return self

    def integers(self) -> tuple[Tensor, Tensor]:
        """Weights and biases as the integers that they stand for, in their own dtype; gradients pass."""
        scale = _power_of_two(self.shift, self.weight.dtype)
        weight = _rounded(self.weight * scale.view(-1, *[1] * (self.weight.ndim - 1))).clamp(-self.limit, self.limit)
        return weight, _rounded(self.bias * scale * 2.0**self.input_bits)

    @torch.no_grad()
    def bound(self) -> int:
        """The largest absolute value that any partial sum can have, in units of its last place."""
        weight, bias = self._wide_integers()
        sizes = weight.abs().flatten(1)
        if self.terms is not None:
            sizes = sizes.topk(min(self.terms, sizes.shape[1]), dim=1).values
        largest = sizes.sum(dim=1) * 2**self.input_bits + bias.abs()
        down = self._down().double()
        rounded = torch.where(down > 0, largest + 2.0 ** (down - 1), largest * 2.0 ** (1 - down) + 1)
        return int(rounded.max())

    def _down(self) -> Tensor:
        """By how many bits sums are moved down; to round them, half of the last bit that stays is added before."""
        return self.shift + self.input_bits - (_LOGIT_BITS if self.reads_out else ACTIVATION_BITS)

    @torch.no_grad()
    def tap_bound(self) -> int:
        """The same for the sum over the inputs at one place, which a convolution computes as one product."""
        weight, _ = self._wide_integers()
        return int(weight.abs().sum(dim=1).max()) << self.input_bits

    def _wide_integers(self) -> tuple[Tensor, Tensor]:
        weight, bias = self.integers()
        return weight.double(), bias.double()

    @torch.no_grad()
    def fix(self, weight: Tensor, bias: Tensor, shift: Tensor) -> None:
        """Takes integers, for good, and the floating-point formats that carry all sums of them exactly."""
        self.shift.copy_(shift)
        scale = _power_of_two(-self.shift, torch.float64)
        self.weight.copy_(weight * scale.view(-1, *[1] * (weight.ndim - 1)))
        self.bias.copy_(bias * scale * 2.0**-self.input_bits)
        bound = self.bound()
        if bound >= 1 << 53:
            raise InexactNetError(f"sums of up to {bound} fit no accumulator; were its weights trained?")
        self._sums = torch.float64 if bound >= 1 << 24 else torch.float32
        # The products of a convolution may be narrower than what adds them up.
        narrow = weight.ndim == 4 and self.tap_bound() < 1 << 24
        self.to(torch.float32 if narrow else self._sums).requires_grad_(False)
        self.fixed = self.integers()

    def is_exact(self) -> bool:
        """Whether this device gives what 64-bit integers give, on a few probes."""
        assert self.fixed is not None
        weight, bias = (part.cpu().to(torch.int64) for part in self.fixed)
        generator = torch.Generator().manual_seed(0)
        spatial = [] if weight.ndim == 2 else [3, 4]
        most = 2**self.input_bits - (self.input_bits > 0)
        probes = torch.randint(most + 1, (3, weight.shape[1], *spatial), generator=generator)
        probes[0] = most
        if self.terms is not None:  # no more of them than there can be
            probes[:, torch.randperm(weight.shape[1], generator=generator)[self.terms :]] = 0
        got = self(probes.to(self.weight.device) / 2**self.input_bits)
        if weight.ndim == 2:
            sums = _integer_product(probes, weight) + bias
        else:
            reach = weight.shape[2] // 2
            taps = F.pad(probes, [reach] * 4).unfold(2, weight.shape[2], 1).unfold(3, weight.shape[3], 1)
            rows = taps.permute(0, 2, 3, 1, 4, 5).flatten(3)
            sums = (_integer_product(rows, weight.flatten(1)) + bias).movedim(-1, 1)
        shape = (-1, *[1] * len(spatial))
        down = self._down().cpu().to(torch.int64).view(shape)
        sums = sums << (-down).clamp(min=0)
        half = torch.where(down > 0, 1 << (down - 1).clamp(min=0), 0)
        want = (sums + half) >> down.clamp(min=0)
        if not self.reads_out:
            want = want.clamp(0, _STEPS - 1)
        return torch.equal((got.double() * (PER_BIT if self.reads_out else _STEPS)).cpu().to(torch.int64), want)

    def forward(self, x: Tensor) -> Tensor:
        if self.fixed is not None:
            weight, _ = self.fixed
            with torch.autocast(x.device.type, enabled=False):
                sums = self._fixed_products(x.to(weight.dtype) * 2.0**self.input_bits, weight)
                result = self.settle_integers(sums.movedim(1, -1) if weight.ndim == 4 else sums)
                result.mul_(1 / PER_BIT if self.reads_out else 1 / _STEPS)
                return result.movedim(-1, 1) if weight.ndim == 4 else result
        weight, bias = self.integers()
        with torch.autocast(x.device.type, enabled=False):
            return self.settle(self._products(x.to(weight.dtype) * 2.0**self.input_bits, weight), bias)

    def settle(self, sums: Tensor, bias: Tensor) -> Tensor:
        """Adds the bias, shifts, rounds and clips: sums of integers → activations or logits."""
        shape = (1, -1, *[1] * (sums.ndim - 2)) if self.weight.ndim == 4 else (-1,)
        unit = _power_of_two(-(self.shift + self.input_bits), sums.dtype)
        result = (sums + bias.view(shape)) * unit.view(shape)
        if self.reads_out:
            return _rounded(result * PER_BIT) / PER_BIT
        return _rounded((result * _STEPS).clamp(0, _STEPS - 1)) / _STEPS

    def settle_integers(self, sums: Tensor) -> Tensor:
        """`settle` in integers, in place: sums (…, out) → activations 0 … 127, or logits in units of 1/256 bit."""
        assert self.fixed is not None
        _, bias = self.fixed
        unit = PER_BIT if self.reads_out else _STEPS
        scale = unit * _power_of_two(-(self.shift + self.input_bits), sums.dtype)
        result = sums.add_(bias).mul_(scale).add_(0.5).floor_()
        return result if self.reads_out else result.clamp_(0, _STEPS - 1)

    def _products(self, x: Tensor, weight: Tensor) -> Tensor:
        if weight.ndim == 2:
            return F.linear(x, weight)
        return F.conv2d(x, weight, padding=weight.shape[2] // 2)

    def _fixed_products(self, x: Tensor, weight: Tensor) -> Tensor:
        if weight.ndim == 2:
            return F.linear(x, weight)
        # Not the libraries' convolutions, which may transform their inputs and round.
        return as_products(x, weight, torch.promote_types(self._sums, x.dtype))

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, input_bits={self.input_bits}, reads_out={self.reads_out}"


class Scale(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def _power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent, to the bit: the powers of the libraries may be off by a unit in the last place."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64).to(dtype)


def _integer_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Rows (…, in) times weights (out, in), in 64-bit integers: NumPy's, since PyTorch's are slower by far."""
    return torch.from_numpy(rows.numpy() @ weight.T.numpy())


def _rounded(x: Tensor) -> Tensor:
    """To the nearest integer, halves up; gradients pass."""
    return x + ((x + 0.5).floor() - x).detach()


# ---- From a trained net to one that rounds ---------------------------------------------------------------------------


def quantise_net(net: Net, given: Iterable[Tensor]) -> Net:
    """A copy of a net whose layers are exact, yet to be fine-tuned.

    Arguments:
        net: A trained net.
        given: Batches of symbols such as it will be given, to see how large its activations become.
    """
    handlers: dict[type[Net], Callable[[Net, Iterable[Tensor]], Net]] = {
        ContextNet: _quantise_stack,
        MLP: _quantise_stack,
        DenseNet: _quantise_dense,
    }
    if type(net) not in handlers or getattr(net, "activation", "relu") != "relu":
        raise InexactNetError(
            f"there is no integer form of {net}; there is one of ContextNet, DenseNet, and MLP with ReLU"
        )
    return handlers[type(net)](net, given)


def _peaks(net: Net, modules: list[nn.Linear | nn.Conv2d], given: Iterable[Tensor]) -> list[Tensor]:
    """The largest output of each channel of each module, as it goes through the ReLU after it."""
    peaks: dict[int, Tensor] = {}

    def watch(number: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.numel():
                return
            moved = output.detach().float().movedim(1, -1) if output.ndim == 4 else output.detach().float()
            peak = moved.flatten(0, -2).amax(dim=0)
            peaks[number] = torch.maximum(peaks[number], peak) if number in peaks else peak

        return hook

    hooks = [module.register_forward_hook(watch(i)) for i, module in enumerate(modules)]
    try:
        with torch.no_grad():
            for batch in given:
                net(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return [peaks.get(i, torch.ones(len(module.weight))).clamp(min=1e-3) for i, module in enumerate(modules)]


_BITS = 1.4426950408889634  # of a nat


def _quantise_stack(net: Net, given: Iterable[Tensor]) -> Net:
    """Linear layers in a row, the first of them on one-hot vectors."""
    assert isinstance(net, MLP | ContextNet)
    linear = [layer for layer in net.stack if isinstance(layer, nn.Linear)]
    peaks = _peaks(net, list(linear[:-1]), given)
    exact = copy.deepcopy(net)
    exact.stack = nn.Sequential()
    incoming = torch.ones(1)  # real value of an input / its value here
    for i, layer in enumerate(linear):
        last = i == len(linear) - 1
        outgoing = torch.full((1,), 1 / _BITS) if last else peaks[i].cpu() / _PEAK
        weight = layer.weight.detach().cpu() * incoming / outgoing.view(-1, 1)
        terms = None
        if i == 0:
            terms = len(net.offsets) if isinstance(net, ContextNet) else net.in_channels
        exact.stack.append(
            ExactAffine(weight, layer.bias.detach().cpu() / outgoing, 0 if i == 0 else ACTIVATION_BITS, last, terms)
        )
        incoming = outgoing
    exact.stack.append(Scale(1 / _BITS))
    if isinstance(exact, ContextNet):
        flat = exact.flat
        assert isinstance(flat, nn.Linear)
        table = ExactAffine(flat.weight.detach().cpu() * _BITS, flat.bias.detach().cpu() * _BITS, 0, True, terms=1)
        exact.flat = nn.Sequential(table, Scale(1 / _BITS))  # type: ignore[assignment]
    return exact.to(next(net.parameters()).device)


_ONE = 0.5  # what the 1 of a one-hot vector becomes: an activation


def _quantise_dense(net: Net, given: Iterable[Tensor]) -> Net:
    """Blocks of two convolutions whose outputs are appended to their inputs."""
    assert isinstance(net, DenseNet)
    modules: list[Any] = [module for block in list(net.stack)[:-1] for module in (block.mix, block.grow)]
    peaks = [peak.cpu() / _PEAK for peak in _peaks(net, modules, given)]
    exact = copy.deepcopy(net)
    incoming = torch.full((net.in_planes,), 1 / _ONE)
    *blocks, readout = list[Any](exact.stack)
    for i, block in enumerate(blocks):
        mix, grow = peaks[2 * i : 2 * i + 2]
        block.mix = _exact_convolution(block.mix, incoming, mix)
        block.grow = _exact_convolution(block.grow, mix, grow)
        incoming = torch.cat([incoming, grow])
    last = _exact_convolution(readout, incoming, torch.full((net.out_planes,), 1 / _BITS), reads_out=True)
    exact.stack = nn.Sequential(Scale(_ONE), *blocks, last, Scale(1 / _BITS))
    return exact.to(next(net.parameters()).device)


def _exact_convolution(layer: nn.Conv2d, incoming: Tensor, outgoing: Tensor, reads_out: bool = False) -> ExactAffine:
    assert layer.bias is not None
    weight = layer.weight.detach().cpu() * incoming.view(1, -1, 1, 1) / outgoing.view(-1, 1, 1, 1)
    return ExactAffine(weight, layer.bias.detach().cpu() / outgoing, ACTIVATION_BITS, reads_out)
