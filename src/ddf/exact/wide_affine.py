"""Affine maps of 16-bit integers, accurate enough to need no fine-tuning.

Inputs and weights are rounded to integers times powers of two. The integers are at most ±32639, which two signed bytes
can represent. Sums of their products are exact, either in double precision or with int8 products of the bytes.
Everything around them is in single precision (see `floats`).
"""

__all__ = ["WideAffine", "bits_for", "from_fixed_point", "to_fixed_point"]

from collections.abc import Callable, Mapping
from math import floor, log2
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ddf.errors import ModelError
from ddf.exact.floats import nearest, power_of_two
from ddf.exact.integer_module import IntegerModule
from ddf.exact.products import byte_kernel, byte_product, bytes_are_exact, integer_product

_LARGEST = 127 * 256 + 127  # of the integers 256 a + b, where a and b are signed bytes
_HEADROOM = 2  # inputs may exceed those of the calibration by this factor
_LEAST_BITS, _MOST_BITS = -16, 24  # fraction bits of inputs
_MOST_SHIFT = 30  # fraction bits of weights
_FIXED_POINT = 2.0**16
_PIXELS = {"cpu": 1 << 9, "cuda": 1 << 16}
"""Pixels that are processed together: what fits a CPU's cache, and enough to occupy a GPU."""


class _Prepared(NamedTuple):
    """What is derived from the integers, in the layout for their device."""

    kernel: Tensor  # (out, taps · in) in double precision, or the result of `byte_kernel` for the bytes (2 out, …)
    bytes: bool
    input_bits: int
    scale: Tensor  # (out,), powers of two
    bias: Tensor | None


class WideAffine(IntegerModule):
    """A linear map or a convolution whose sums are exact. It takes and returns numbers in single precision.

    Arguments:
        shape: The shape of the weights, (out, in) or (out, in, rows, columns).
        bias: Whether there is a bias.
        mask: Returns which weights there are (out, in), on a device; None for all of them. Only these are stored.
        stored: How many of `shape[:2]` there are, if there is a mask.
    """

    weight: Tensor
    shift: Tensor
    input_bits: Tensor
    bias: Tensor | None

    def __init__(
        self,
        shape: torch.Size,
        bias: bool = False,
        mask: Callable[[torch.device], Tensor] | None = None,
        stored: int = 0,
    ) -> None:
        super().__init__()
        self.shape, self.mask = shape, mask
        self.in_channels = shape[1]
        self.size = shape[2] if len(shape) > 2 else 1
        size = shape if mask is None else (stored, *shape[2:])
        self.register_buffer("weight", torch.zeros(size, dtype=torch.int16))
        self.register_buffer("shift", torch.zeros(shape[0], dtype=torch.int8))
        self.register_buffer("input_bits", torch.zeros((), dtype=torch.int8))
        self.register_buffer("bias", torch.zeros(shape[0], dtype=torch.int32) if bias else None)
        self._prepared: _Prepared | None = None
        self._may_use_bytes = True

    @torch.no_grad()
    def convert(self, weight: Tensor, bias: Tensor | None, input_bits: int) -> None:
        """Set the integers that are nearest to these weights.

        Arguments:
            weight: The weights.
            bias: The bias, if there is one.
            input_bits: The number of fraction bits of inputs; see `bits_for`.
        """
        weight = weight.detach().cpu().double()
        largest = weight.abs().flatten(1).amax(dim=1)
        if not largest.max() <= _LARGEST:
            raise ModelError(
                f"weights of up to {float(largest.max()):.4g} do not fit 16 bits: train the net with smaller weights"
            )
        shift = (_LARGEST / largest.clamp(min=2.0**-60)).log2().floor().clamp(0, _MOST_SHIFT)
        scale = power_of_two(shift, torch.float64).view(-1, *[1] * (weight.ndim - 1))
        integers = nearest(weight * scale, 1).clamp(-_LARGEST, _LARGEST)
        integers = integers if self.mask is None else integers[self.mask(integers.device)]
        tensors = {"weight": integers, "shift": shift, "input_bits": torch.tensor(input_bits)}
        if bias is not None:
            tensors["bias"] = to_fixed_point(bias)
        self.set_integers(tensors)

    def set_integers(self, tensors: Mapping[str, Tensor]) -> None:
        super().set_integers(tensors)
        self._prepared = None

    def _apply(self, *args: Any, **kwargs: Any) -> "WideAffine":
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._prepared = None
        return self

    def check(self) -> None:
        """Raise a `ModelError` if a number is out of range, or sums do not fit into a double."""
        for name, tensor, least, most in (
            ("weights", self.weight, -_LARGEST, _LARGEST),
            ("shifts", self.shift, 0, _MOST_SHIFT),
            ("input bits", self.input_bits, _LEAST_BITS, _MOST_BITS),
        ):
            low, high = (int(end) for end in tensor.aminmax())
            if low < least or high > most:
                raise ModelError(f"{name} of {low} … {high} are out of range ({least} … {most})")
        bound = int(self._rows().abs().sum(dim=1, dtype=torch.int64).max()) * _LARGEST
        if bound >= 1 << 53:
            raise ModelError(f"sums of up to {bound} do not fit into a double: train the net with smaller weights")

    def use_no_bytes(self) -> None:
        self._may_use_bytes = False
        self._prepared = None

    def _rows(self) -> Tensor:
        """Return the weights as a matrix (out, taps · in), in the order of `patches`."""
        weight = self.weight
        if self.mask is not None:
            weight = weight.new_zeros(self.shape)
            weight[self.mask(weight.device)] = self.weight
        return weight if weight.ndim == 2 else weight.permute(0, 2, 3, 1).flatten(1)

    def _prepare(self) -> _Prepared:
        made = self._prepared  # other threads may change the attribute
        if made is None:
            rows = self._rows()
            bytes_ = self._may_use_bytes and _fits_bytes(rows.shape[1]) and bytes_are_exact(rows.device)
            input_bits = int(self.input_bits)
            made = self._prepared = _Prepared(
                byte_kernel(_bytes(rows).flatten(0, 1)) if bytes_ else rows.double(),
                bytes_,
                input_bits,
                power_of_two(-(self.shift.to(torch.int64) + input_bits), torch.float64),
                None if self.bias is None else from_fixed_point(self.bias),
            )
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Round the inputs, and apply the map.

        Arguments:
            x: (…, in); for a convolution (batch, height, width, in).

        Returns:
            (…, out).
        """
        return self.product(self.rounded(x))

    @property
    def unit(self) -> float:
        """The number that the integer 1 represents in inputs."""
        return 2.0 ** -self._prepare().input_bits

    def rounded(self, x: Tensor) -> Tensor:
        """Round inputs to integers, in single precision."""
        return nearest(x, 2.0 ** self._prepare().input_bits).clamp_(-_LARGEST, _LARGEST)

    def product(self, x: Tensor) -> Tensor:
        """Apply the map to integers."""
        made = self._prepare()
        try:
            sums = self._sums(x, made)
        except RuntimeError:  # libraries do not support int8 products of some sizes
            if not made.bytes:
                raise
            self.use_no_bytes()
            made = self._prepare()
            sums = self._sums(x, made)
        return sums if made.bias is None else sums.add_(made.bias)

    def _sums(self, x: Tensor, made: _Prepared) -> Tensor:
        """Return scaled sums of products (…, out)."""
        pixels = _PIXELS.get(x.device.type, _PIXELS["cpu"])
        parts = _bytes(x) if made.bytes else x.unsqueeze(0)
        if self.size == 1:
            flat = parts.flatten(1, -2)
            return torch.cat([_products(rows, made) for rows in flat.split(pixels, dim=1)]).unflatten(0, x.shape[:-1])
        batch, height, width, _ = x.shape
        reach = self.size // 2
        padded = F.pad(parts, [0, 0, *[reach] * 4])
        bands = []
        step = max(1, pixels // (batch * width))
        for top in range(0, height, step):
            band = padded[:, :, top : top + step + 2 * reach]
            rows = patches(band.flatten(0, 1), self.size).unflatten(0, (len(parts), batch))
            bands.append(_products(rows.flatten(1, 3), made).unflatten(0, rows.shape[1:4]))
        return bands[0] if len(bands) == 1 else torch.cat(bands, dim=1)

    def is_exact(self) -> bool:
        """Return whether this device agrees with 64-bit integers on a few probes."""
        generator = torch.Generator().manual_seed(0)
        spatial = (2, 3) if self.size > 1 else ()
        probes = torch.randint(-_LARGEST, _LARGEST + 1, (2, *spatial, self.in_channels), generator=generator)
        # One of the largest possible sums: all products of the first output have the same sign.
        weight = self._rows().cpu()[0, : self.in_channels]
        probes[0] = torch.where(weight < 0, -_LARGEST, _LARGEST)
        got = self.product(probes.float().to(self.weight.device)).cpu()
        if self.size > 1:
            reach = self.size // 2
            probes = patches(F.pad(probes, [0, 0, *[reach] * 4]), self.size)
        made = self._prepare()
        sums = integer_product(probes, self._rows().cpu().to(torch.int64)).double()
        want = (sums * made.scale.cpu()).float()
        return torch.equal(got, want if made.bias is None else want + made.bias.cpu())

    def extra_repr(self) -> str:
        return f"{tuple(self.shape)}"


def bits_for(peak: float) -> int:
    """Return the number of fraction bits of inputs, given the largest absolute value in calibration."""
    if not peak <= _LARGEST / _HEADROOM * 2.0**-_LEAST_BITS:
        raise ModelError(f"activations of up to {peak:.4g} are too large for an exact net")
    return min(floor(log2(_LARGEST / (_HEADROOM * max(peak, 2.0**-30)))), _MOST_BITS)


def to_fixed_point(x: Tensor) -> Tensor:
    """Convert numbers that are added to sums to integers, int32."""
    integers = nearest(x.detach().cpu().double(), _FIXED_POINT)
    if not integers.abs().max() < 1 << 31:
        raise ModelError(
            f"numbers of up to {float(x.abs().max()):.4g} do not fit 32 bits: train the net with smaller weights"
        )
    return integers.to(torch.int32)


def from_fixed_point(x: Tensor) -> Tensor:
    """Undo `to_fixed_point`, in single precision."""
    return x.float().mul_(1 / _FIXED_POINT)


def patches(x: Tensor, size: int) -> Tensor:
    """Return the neighborhood of each pixel not in the margin: (batch, height, width, size · size · channels)."""
    if x.dtype == torch.int8 and x.shape[-1] % 8 == 0:
        return patches(x.view(torch.int64), size).view(torch.int8)  # copies eight bytes at a time
    height, width = (side - size + 1 for side in x.shape[1:3])
    taps = [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return torch.stack(taps, dim=3).flatten(3)


def _fits_bytes(terms: int) -> bool:
    """Return whether two sums of this many products of bytes add up to less than 2^31."""
    return terms << 15 < 1 << 31


def _bytes(x: Tensor) -> Tensor:
    """Split integers 256 a + b into bytes a and b, int8."""
    # In memory, the first byte of x + 128 is b with its highest bit flipped, and the second byte is a.
    pairs = (x.to(torch.int16) + 128).bitwise_xor_(128).contiguous().view(torch.int8).unflatten(-1, (-1, 2))
    return torch.stack([pairs[..., 1], pairs[..., 0]])


def _products(rows: Tensor, made: _Prepared) -> Tensor:
    """Multiply rows (1 or 2 bytes, rows, in) by the kernel, and scale the sums: (rows, out), in single precision."""
    if not made.bytes:
        return F.linear(rows[0].double(), made.kernel).mul_(made.scale).float()
    outs = len(made.scale)
    products = byte_product(rows.flatten(0, 1), made.kernel, 2 * outs).unflatten(1, (2, outs)).unflatten(0, (2, -1))
    (high, one), (other, low) = ((part[:, 0], part[:, 1]) for part in products)
    # Nothing is rounded here, so it does not matter whether these operations are fused.
    sums = torch.add(low, torch.add(one + other, high.double(), alpha=256), alpha=256)
    return sums.mul_(made.scale).float()
