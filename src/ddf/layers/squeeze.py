"""Space to channels."""

__all__ = ["Squeeze", "channels_to_space", "space_to_channels", "squeezed_shape"]

from torch import Tensor

from ddf.layers.layer import Rearrangement, Shape


def squeezed_shape(shape: Shape, owner: str) -> Shape:
    """(channels, height, width) → (4 · channels, height / 2, width / 2); odd sizes are refused in `owner`'s name."""
    if len(shape) != 3 or shape[0] is None:
        raise ValueError(f"{owner} needs maps (channels, height, width), but is given symbols of shape {shape}")
    for name, size in zip(("height", "width"), shape[1:], strict=True):
        if size is not None and size % 2:
            raise ValueError(f"{owner} needs an even {name}, but is given symbols of shape {shape}")
    return (4 * shape[0], *(None if size is None else size // 2 for size in shape[1:]))


def space_to_channels(x: Tensor) -> Tensor:
    """(batch, channels, height, width) → (batch, 4 · channels, height / 2, width / 2)."""
    cells = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return cells.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)


def channels_to_space(z: Tensor) -> Tensor:
    """(batch, 4 · channels, height, width) → (batch, channels, 2 · height, 2 · width): undoes `space_to_channels`."""
    cells = z.unflatten(1, (-1, 2, 2))
    return cells.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)


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
        ValueError: Squeeze needs an even width, but is given symbols of shape (1, 28, 27)
    """

    def output_shape(self, shape: Shape) -> Shape:
        return squeezed_shape(shape, "Squeeze")

    def arrange(self, x: Tensor) -> Tensor:
        return space_to_channels(x)

    def restore(self, z: Tensor) -> Tensor:
        return channels_to_space(z)
