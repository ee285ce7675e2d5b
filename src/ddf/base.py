"""The base distribution at the end of a flow."""

__all__ = ["FactorizedCategorical", "FactorizedCategoricalSpec"]

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, prod

import torch
from torch import Tensor, nn

from ddf.layers.layer import Draw, Emit, Freezable
from ddf.logits import check_limits, checked_limits, impossible_classes, mask_classes
from ddf.plain import Spec, later
from ddf.shapes import Shape, check_size, fits
from ddf.symbols import check_symbols, one_hot


class FactorizedCategorical(Freezable):
    """Independent symbols: a categorical distribution for each position, or for each channel.

    Arguments:
        num_classes: The number of classes K.
        shape: (channels, *spatial) of the symbols. With `shared`, a spatial size may be None: any size.
        shared: Whether all positions of a channel share one distribution.
        limits: The number of classes of each channel, for tables whose columns have different numbers of classes; None
            if all have K.

    Examples:
        >>> base = FactorizedCategorical(num_classes=2, shape=(2,))
        >>> _ = base.fit(torch.tensor([[0, 1], [0, 1], [0, 0]]), smoothing=1)
        >>> base.logits.exp()
        tensor([[0.8000, 0.4000],
                [0.2000, 0.6000]], grad_fn=<ExpBackward0>)
    """

    impossible: Tensor | None

    def __init__(
        self, num_classes: int, shape: Shape, shared: bool = False, limits: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        if not shape or shape[0] is None:
            raise ValueError(f"FactorizedCategorical: the shape {shape} does not include a number of channels")
        check_size("FactorizedCategorical", num_classes=num_classes, channels=shape[0])
        check_size("FactorizedCategorical", **{f"shape[{i}]": size for i, size in enumerate(shape) if size is not None})
        self.num_classes = num_classes
        self.shape = tuple(shape)
        self.shared = shared
        sizes = [1 if shared else size for size in shape[1:]]
        if None in sizes:
            raise ValueError(
                f"FactorizedCategorical: a distribution per position needs a fixed size, not the shape {self.shape}; "
                "pass shared=True for one distribution per channel"
            )
        self.limits = checked_limits(limits, num_classes)
        if self.limits is not None and len(self.limits) != shape[0]:
            raise ValueError(
                f"FactorizedCategorical: limits={self.limits} must have one number for each of {shape[0]} channels"
            )
        self.register_buffer("impossible", impossible_classes(self.limits, num_classes), persistent=False)
        # (K, channels, *spatial), with spatial sizes of 1 where they are shared.
        self.logits = nn.Parameter(torch.zeros(num_classes, shape[0], *(size for size in sizes if size is not None)))

    def forward(self, z: Tensor, emit: Emit) -> None:
        """End the walk from data to latents: emit everything."""
        self.check_shape(tuple(z.shape[1:]))
        emit(z, self._expand(len(z), z.shape[2:]))

    def inverse(self, batch: int, shape: Shape, draw: Draw) -> Tensor:
        """Begin the walk from latents to data: draw `batch` samples of `shape`."""
        self.check_shape(shape)
        spatial = torch.Size(size for size in shape[1:] if size is not None)
        if len(spatial) != len(shape) - 1:
            raise ValueError(f"FactorizedCategorical: cannot draw symbols of the unknown size {shape}")
        return draw(self._expand(batch, spatial))

    def relax(self, z: Tensor, emit: Emit) -> None:
        """Do what `forward` does, on one-hot vectors (batch, K, channels, *spatial)."""
        emit(z, self._expand(len(z), z.shape[3:]))

    def check_shape(self, shape: Shape) -> None:
        """Raise an error for symbols of a shape other than the base's."""
        if not fits(shape, self.shape):
            raise ValueError(f"FactorizedCategorical has the shape {self.shape}, but the symbols have {shape}")

    @torch.no_grad()
    def fit(self, symbols: Tensor | Iterable[Tensor], smoothing: float = 0.5) -> "FactorizedCategorical":
        """Set the probabilities to the frequencies in a data set: maximum likelihood, in closed form.

        Arguments:
            symbols: (samples, channels, *spatial), or an iterable of such batches.
            smoothing: Added to every count, so that no symbol has probability 0.
        """
        return self.set_counts(self.count(symbols), smoothing)

    @torch.no_grad()
    def count(self, symbols: Tensor | Iterable[Tensor]) -> Tensor:
        """Count each class at each position (or in each channel): (K, channels, *spatial), float64."""
        counts = torch.zeros_like(self.logits, dtype=torch.float64)
        for batch in [symbols] if isinstance(symbols, Tensor) else symbols:
            self.check_shape(tuple(batch.shape[1:]))
            batch = check_symbols(batch, self.num_classes, name="symbols").to(self.logits.device)
            check_limits(batch, self.limits)
            for part in batch.split(max(1, (1 << 24) // (self.num_classes * prod(batch.shape[1:])))):
                seen = one_hot(part, self.num_classes, torch.uint8).sum(0)
                counts += seen.sum_to_size(counts.shape)
        return counts

    @torch.no_grad()
    def set_counts(self, counts: Tensor, smoothing: float = 0.5) -> "FactorizedCategorical":
        """Set the probabilities from class counts, after adding `smoothing` to each count."""
        if self.frozen:
            raise ValueError("the base is frozen; call thaw() before fitting it again")
        if not 0 < smoothing < inf:
            raise ValueError(
                f"smoothing={smoothing} must be positive and finite, so that unseen symbols have a probability"
            )
        if not counts.any():
            raise ValueError("there are no symbols to fit the base distribution to")
        counts = counts + smoothing
        self.logits.copy_((counts / counts.sum(0)).log())
        return self

    def _expand(self, batch: int, spatial: torch.Size) -> Tensor:
        logits = self.logits.detach() if self.frozen else self.logits
        return mask_classes(logits.expand(batch, *logits.shape[:2], *spatial), self.impossible)

    def extra_repr(self) -> str:
        return f"shared={self.shared}" + ("" if self.limits is None else f", limits={self.limits}")


@dataclass(frozen=True)
class FactorizedCategoricalSpec(Spec, builds=FactorizedCategorical):
    """See `FactorizedCategorical`."""

    shared: bool = False
    limits: tuple[int, ...] | None = later(None)

    def build(self, num_classes: int, shape: Shape) -> FactorizedCategorical:
        return FactorizedCategorical(num_classes, shape, self.shared, self.limits)
