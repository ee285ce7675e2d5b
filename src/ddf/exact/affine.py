"""Affine maps in integer arithmetic, whose results are the same on every machine.

All numbers are binary fractions: a weight is an integer times 2^−s, with an s for each output; an activation is one of
0/128 … 127/128; a logit is a multiple of 1/256 bit. On devices with fast int8 products, those are used (see
`products`). On others, integers are represented in floating point: if the sum of the absolute values of all terms, in
units of the last place, fits the format without rounding, every order of summation and every instruction set gives the
same result. That bound is computed from the weights, and the format is chosen accordingly.
"""

__all__ = ["ACTIVATION_BITS", "ONE", "ExactAffine"]

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.errors import ModelError
from ddf.exact.floats import power_of_two
from ddf.exact.integer_module import IntegerModule
from ddf.exact.products import byte_kernel, byte_product, bytes_are_exact, integer_product
from ddf.logits import PER_BIT
from ddf.nets.convolution import add_taps

ACTIVATION_BITS = 7
"""Activations are multiples of 1/128 from 0 to 127/128."""

ONE = 0.5
"""The value that represents 1 in a one-hot vector where activations are expected."""

_LOGIT_BITS = PER_BIT.bit_length() - 1
_STEPS = 1 << ACTIVATION_BITS
_WEIGHT = 127  # the largest integer weight, which fits 8 bits
_WIDE_WEIGHT = (1 << 13) - 1  # the same for one-hot inputs, which select few weights to be summed
_LEAST_SHIFT, _MOST_SHIFT = 0, 20


class _Integers(NamedTuple):
    """The integers in the layout for their device."""

    taps: Tensor  # weights (kernel · out, in), in floating point
    offset: Tensor  # (out,), added to scaled sums
    scale: Tensor  # (out,), powers of two


class _Bytes(NamedTuple):
    """The same for int8 products, whose sums are 32-bit integers."""

    kernel: Tensor
    outs: int  # the number of products for each row of inputs
    offset: Tensor  # (out,), added to sums
    up: Tensor | None  # (out,), the number of bits by which they are then shifted, if any
    down: Tensor


class ExactAffine(IntegerModule):
    """A linear map or a convolution, with a clipped ReLU, on binary fractions.

    In training, weights and results are rounded, and gradients are computed as if they were not rounded.

    Arguments:
        weight: (out, in) or (out, in, rows, columns), in units in which activations are between 0 and 1.
        bias: (out,).
        input_bits: Inputs are multiples of 2^−input_bits and at most 1.
        reads_out: Whether the results are logits in bits, which are not clipped.
        terms: The maximum number of nonzero inputs at each place, if known, as with one-hot vectors.
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
        shift = self.bias.detach()  # a placeholder on the meta device, where nothing is computed
        if not self.weight.is_meta:
            largest = self.weight.detach().abs().flatten(1).amax(dim=1).clamp(min=2.0**-30)
            shift = (self.limit / largest).log2().floor().clamp(_LEAST_SHIFT, _MOST_SHIFT)
        self.register_buffer("shift", shift.to(torch.int32))
        self.fixed: tuple[Tensor, Tensor] | None = None
        self._bound = 0
        self._sums = torch.float32  # the dtype that represents sums exactly
        self._integers: _Integers | None = None
        self._bytes: _Bytes | None = None
        self._may_use_bytes = True

    def train(self, mode: bool = True) -> "ExactAffine":
        """Set the mode: in evaluation mode the integers are fixed, in training mode they are not."""
        super().train(mode)
        if mode:
            self.fixed = self._integers = self._bytes = None
            self.float()
        elif self.fixed is None:
            weight, bias = (part.detach().double() for part in self.integers())
            self.fix(weight, bias, self.shift.clone())
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> "ExactAffine":
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self.fixed is not None:
            self._prepare()
        return self

    def integers(self) -> tuple[Tensor, Tensor]:
        """Return weights and biases as integers in their floating-point dtype, passing gradients."""
        scale = power_of_two(self.shift, self.weight.dtype)
        weight = _rounded(self.weight * scale.view(-1, *[1] * (self.weight.ndim - 1))).clamp(-self.limit, self.limit)
        return weight, _rounded(self.bias * scale * 2.0**self.input_bits)

    def _largest(self) -> Tensor:
        """Return the largest absolute value that the partial sums of each output can have."""
        weight, bias = self._wide_integers()
        sizes = weight.abs().flatten(1)
        if self.terms is not None:
            sizes = sizes.topk(min(self.terms, sizes.shape[1]), dim=1).values
        return sizes.sum(dim=1) * 2**self.input_bits + bias.abs()

    @torch.no_grad()
    def bound(self) -> int:
        """Return the largest absolute value that any partial sum can have, in units of its last place."""
        largest, down = self._largest(), self._down().double()
        rounded = torch.where(down > 0, largest + 2.0 ** (down - 1), largest * 2.0 ** (1 - down) + 1)
        return int(rounded.max())

    def _down(self) -> Tensor:
        """Return the number of bits by which sums are shifted down, after adding half of the last remaining bit."""
        return self.shift + self.input_bits - (_LOGIT_BITS if self.reads_out else ACTIVATION_BITS)

    def integer_tensors(self) -> dict[str, Tensor]:
        assert self.fixed is not None
        weight, bias = self.fixed
        small = torch.int8 if self.limit <= _WEIGHT else torch.int16
        return {"weight": weight.to(small), "bias": bias.to(torch.int32), "shift": self.shift.to(torch.int8)}

    def set_integers(self, tensors: Mapping[str, Tensor]) -> None:
        self.to_empty(device="cpu")
        self.fix(*(tensors[name].double() for name in ("weight", "bias", "shift")))

    @torch.no_grad()
    def check(self) -> None:
        """Raise a `ModelError` if shifts are out of range, or biases or logits do not fit 32 bits."""
        low, high = self.shift.aminmax()
        if low < _LEAST_SHIFT or high > _MOST_SHIFT:
            raise ModelError(f"shifts of {int(low)} … {int(high)} are out of range ({_LEAST_SHIFT} … {_MOST_SHIFT})")
        bias = self._wide_integers()[1].abs().max()
        logits = (self._largest() * 2.0 ** -self._down().double()).max() if self.reads_out else 0
        if max(bias, logits) >= (1 << 31) - 1:
            raise ModelError(
                f"biases of up to {int(bias)} and logits of up to {int(logits)} do not fit 32 bits: "
                "train the net with smaller weights"
            )

    @torch.no_grad()
    def tap_bound(self) -> int:
        """Return a bound on the sum over the inputs at one place, which a convolution computes as one product."""
        weight, _ = self._wide_integers()
        return int(weight.abs().sum(dim=1).max()) << self.input_bits

    def _wide_integers(self) -> tuple[Tensor, Tensor]:
        weight, bias = self.integers()
        return weight.double(), bias.double()

    @torch.no_grad()
    def fix(self, weight: Tensor, bias: Tensor, shift: Tensor) -> None:
        """Fix the integers, and choose the floating-point formats that represent all their sums exactly."""
        self.shift.copy_(shift)
        scale = power_of_two(-self.shift, torch.float64)
        self.weight.copy_(weight * scale.view(-1, *[1] * (weight.ndim - 1)))
        self.bias.copy_(bias * scale * 2.0**-self.input_bits)
        self._bound = self.bound()
        if self._bound >= 1 << 53:
            raise ModelError(
                f"sums of up to {self._bound} do not fit into a double: train the net with smaller weights"
            )
        self._sums = torch.float64 if self._bound >= 1 << 24 else torch.float32
        # The products of a convolution may be in a narrower format than their sums.
        narrow = weight.ndim == 4 and self.tap_bound() < 1 << 24
        self.to(torch.float32 if narrow else self._sums).requires_grad_(False)
        self._prepare()

    @torch.no_grad()
    def _prepare(self) -> None:
        """Prepare the layout of the integers for the device."""
        weight, bias = self.fixed = self.integers()
        taps = weight.permute(2, 3, 0, 1).flatten(0, 2) if weight.ndim == 4 else weight
        down = self._down()
        sums = torch.promote_types(self._sums, weight.dtype)
        scale = power_of_two(-down, sums)
        # Wide weights are doubles, which TF32 and the like do not affect.
        self._integers = _Integers(taps.double() if self.limit > _WEIGHT else taps, bias * scale + 0.5, scale)
        self._bytes = None
        if self._may_use_bytes and self._fits_bytes and bytes_are_exact(weight.device):
            half = torch.where(down > 0, 1 << (down - 1).clamp(min=0), 0)
            up = (-down).clamp(min=0)
            self._bytes = _Bytes(
                byte_kernel(taps), len(taps), bias.to(torch.int32) + half.to(torch.int32), up if up.any() else None,
                down.clamp(min=0),
            )  # fmt: skip

    @property
    def _fits_bytes(self) -> bool:
        """Whether weights and inputs are bytes, and all sums fit 32 bits."""
        return self.limit <= _WEIGHT and self.input_bits <= ACTIVATION_BITS and self._bound < 1 << 31

    def use_no_bytes(self) -> None:
        self._may_use_bytes = False
        self._prepare()

    def use_doubles(self) -> None:
        self.double()

    @property
    def dtype(self) -> torch.dtype:
        """The fastest dtype of the integers passed to `run`."""
        return self.weight.dtype if self._bytes is None else torch.int8

    def is_exact(self) -> bool:
        """Return whether this device agrees with 64-bit integers on a few probes."""
        assert self.fixed is not None
        weight, bias = (part.cpu().to(torch.int64) for part in self.fixed)
        generator = torch.Generator().manual_seed(0)
        spatial = [] if weight.ndim == 2 else [3, 4]
        most = 2**self.input_bits - (self.input_bits > 0)
        probes = torch.randint(most + 1, (3, weight.shape[1], *spatial), generator=generator)
        probes[0] = most
        if self.terms is not None:  # no more nonzero inputs than one-hot vectors have
            probes[:, torch.randperm(weight.shape[1], generator=generator)[self.terms :]] = 0
        got = self(probes.to(self.weight.device) / 2**self.input_bits)
        if weight.ndim == 2:
            sums = integer_product(probes, weight) + bias
        else:
            reach = weight.shape[2] // 2
            taps = F.pad(probes, [reach] * 4).unfold(2, weight.shape[2], 1).unfold(3, weight.shape[3], 1)
            rows = taps.permute(0, 2, 3, 1, 4, 5).flatten(3)
            sums = (integer_product(rows, weight.flatten(1)) + bias).movedim(-1, 1)
        shape = (-1, *[1] * len(spatial))
        down = self._down().cpu().to(torch.int64).view(shape)
        sums = sums << (-down).clamp(min=0)
        half = torch.where(down > 0, 1 << (down - 1).clamp(min=0), 0)
        want = (sums + half) >> down.clamp(min=0)
        if not self.reads_out:
            want = want.clamp(0, _STEPS - 1)
        return torch.equal((got.double() * (PER_BIT if self.reads_out else _STEPS)).cpu().to(torch.int64), want)

    def forward(self, x: Tensor) -> Tensor:
        if self.fixed is None:
            weight, bias = self.integers()
            with torch.autocast(x.device.type, enabled=False):
                return self._settle(self._products(x.to(weight.dtype) * 2.0**self.input_bits, weight), bias)
        rows = x.movedim(1, -1) if self.weight.ndim == 4 else x
        result = self.run(rows.to(self.weight.dtype) * 2.0**self.input_bits)
        result = result.to(self._sums).mul_(1 / PER_BIT if self.reads_out else 1 / _STEPS)
        return result.movedim(-1, 1) if self.weight.ndim == 4 else result

    def run(self, x: Tensor) -> Tensor:
        """Apply the map to integers and return integers: activations 0 … 127, or logits in units of 1/256 bit.

        Arguments:
            x: (…, in); for a convolution (batch, height, width, in). Integers, in any dtype.

        Returns:
            (…, out). Integers, in some dtype.
        """
        kernel = self.weight.shape[2:]
        used = self._bytes  # other threads may change the attribute
        if used is not None:
            try:
                products = byte_product(x.to(torch.int8), used.kernel, used.outs)
                return self._settle_bytes(add_taps(products, kernel, torch.int32), used)
            except RuntimeError:  # libraries do not support int8 products of some sizes
                self.use_no_bytes()
        assert self._integers is not None
        taps, _, scale = self._integers
        with torch.autocast(x.device.type, enabled=False):
            products = F.linear(x.to(taps.dtype), taps)
        # Not library convolutions, which may transform their inputs and round.
        return self.settle_integers(add_taps(products, kernel, scale.dtype))

    def settle_integers(self, sums: Tensor) -> Tensor:
        """Convert sums of products (…, out), in floating point, to activations 0 … 127 or logits."""
        assert self._integers is not None
        _, offset, scale = self._integers
        result = torch.addcmul(offset, sums, scale).floor_()
        return result if self.reads_out else result.clamp_(0, _STEPS - 1)

    def _settle_bytes(self, sums: Tensor, used: _Bytes) -> Tensor:
        """Do the same to sums in 32-bit integers, in place."""
        sums.add_(used.offset)
        if used.up is not None:
            sums.bitwise_left_shift_(used.up)
        sums.bitwise_right_shift_(used.down)
        return sums if self.reads_out else sums.clamp_(0, _STEPS - 1).to(torch.int8)

    def _settle(self, sums: Tensor, bias: Tensor) -> Tensor:
        """Convert sums of integers to activations or logits: add the bias, shift, round and clip, passing gradients."""
        shape = (1, -1, *[1] * (sums.ndim - 2)) if self.weight.ndim == 4 else (-1,)
        unit = power_of_two(-(self.shift + self.input_bits), sums.dtype)
        result = (sums + bias.view(shape)) * unit.view(shape)
        if self.reads_out:
            return _rounded(result * PER_BIT) / PER_BIT
        return _rounded((result * _STEPS).clamp(0, _STEPS - 1)) / _STEPS

    def _products(self, x: Tensor, weight: Tensor) -> Tensor:
        if weight.ndim == 2:
            return F.linear(x, weight)
        return F.conv2d(x, weight, padding=weight.shape[2] // 2)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, input_bits={self.input_bits}, reads_out={self.reads_out}"


def _rounded(x: Tensor) -> Tensor:
    """Round to the nearest integer, halves up, passing gradients."""
    return x + ((x + 0.5).floor() - x).detach()
