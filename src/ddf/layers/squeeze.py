"""Space to channels."""

__all__ = ["Squeeze", "SqueezeSpec"]

from dataclasses import dataclass

from torch import Tensor

from ddf.layers.layer import LayerSpec, Rearrangement
from ddf.shapes import Shape


class Squeeze(Rearrangement):
    """Turns every cell of 2 × 2 pixels into one pixel with four times the channels.

    References:
        Density Estimation Using Real NVP (Dinh et al., 2017)

    Examples:
        >>> x = torch.arange(4).view(1, 1, 2, 2)
        >>> Squeeze().arrange(x).shape
        torch.Size([1, 4, 1, 1])
        >>> Squeeze().output_shape((1, 28, 27))
        Traceback (most recent call last):
            ...
        ValueError: Squeeze needs an even width, not symbols of shape (1, 28, 27)
    """

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] is None:
            raise ValueError(f"Squeeze needs maps (channels, height, width), not symbols of shape {shape}")
        for name, size in zip(("height", "width"), shape[1:], strict=True):
            if size is not None and size % 2:
                raise ValueError(f"Squeeze needs an even {name}, not symbols of shape {shape}")
        return (4 * shape[0], *(None if size is None else size // 2 for size in shape[1:]))

    def arrange(self, x: Tensor) -> Tensor:
        cells = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))  # pixel_unshuffle does not support empty batches
        return cells.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)

    def restore(self, z: Tensor) -> Tensor:
        cells = z.unflatten(1, (-1, 2, 2))
        return cells.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)


@dataclass(frozen=True)
class SqueezeSpec(LayerSpec, builds=Squeeze):
    """See `Squeeze`."""

    def build(self, num_classes: int, shape: Shape) -> Squeeze:
        return Squeeze()
