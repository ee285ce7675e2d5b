"""A perceptron that looks at the nearest known pixels, for large maps that are mostly flat."""

__all__ = ["ContextNet"]

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.nets.net import Net, Shape, check_size, start_at_zero
from ddf.symbols import one_hot

_SURE = 9.0  # nats by which a flat place starts out to prefer its class


class ContextNet(Net):
    """Predicts each pixel from a list of pixels around it, on maps of any size.

    Most of a label map is flat, and there the answer is as good as certain. Where the nearest pixels are all of one
    class, the logits are looked up in a table, one row for each class; the perceptron is asked only about the rest.
    It has one spatial step, the gathering of the pixels around, so it costs nothing where it is not asked.

    Arguments:
        num_classes: The number of classes K.
        in_channels: The channels of symbols that are given.
        out_channels: 1: it predicts one channel.
        offsets: Which pixels to look at, nearest first: (channel, rows down, columns to the right). Pixels beyond the
            edge of the map are of no class.
        near: How many of them must be of one class for a place to count as flat.
        hidden: The widths of the hidden layers.

    Examples:
        >>> net = ContextNet(3, 1, 1, offsets=((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)), near=4, hidden=(8,))
        >>> net(torch.randint(3, (2, 1, 5, 7))).shape
        torch.Size([2, 3, 1, 5, 7])
    """

    wants_symbols = True

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        out_channels: int,
        offsets: Sequence[Sequence[int]],
        near: int,
        hidden: Sequence[int] = (64, 48),
    ) -> None:
        super().__init__(num_classes, in_channels, out_channels)
        self.offsets = tuple((int(channel), int(row), int(column)) for channel, row, column in offsets)
        self.near = near
        self.hidden = tuple(hidden)
        check_size("ContextNet", near=near, **{f"hidden[{i}]": width for i, width in enumerate(self.hidden)})
        if out_channels != 1:
            raise ValueError(f"ContextNet predicts one channel, but out_channels={out_channels}")
        if not self.hidden:
            raise ValueError("ContextNet: hidden=(), but it takes at least one hidden layer")
        if not near <= len(self.offsets) or any(not 0 <= channel < in_channels for channel, _, _ in self.offsets):
            raise ValueError(
                f"ContextNet: near={near} and {len(self.offsets)} offsets in {in_channels} channels do not go together"
            )
        self.reach = max(max(abs(row), abs(column)) for _, row, column in self.offsets)
        widths = [len(self.offsets) * num_classes, *self.hidden]
        self.stack = nn.Sequential()
        for wide, next_wide in itertools.pairwise(widths):
            self.stack.extend([nn.Linear(wide, next_wide), nn.ReLU()])
        first = self.stack[0]
        assert isinstance(first, nn.Linear)
        nn.init.normal_(first.weight, std=(2 * len(self.offsets)) ** -0.5)  # one-hot vectors: so many terms add up
        self.stack.append(start_at_zero(nn.Linear(widths[-1], num_classes)))
        self.flat = nn.Linear(num_classes, num_classes)
        nn.init.zeros_(self.flat.bias)
        with torch.no_grad():
            self.flat.weight.copy_(_SURE * torch.eye(num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Predicts; see `Net`. From symbols, as they are, when training and coding; else from one-hot vectors."""
        if x.is_floating_point():
            return super().forward(x)
        return self._logits(x, None).unsqueeze(2)

    def body(self, planes: Tensor) -> Tensor:
        vectors = planes[:, : self.num_classes * self.in_channels].unflatten(1, (self.num_classes, self.in_channels))
        return self._logits(vectors.detach().argmax(dim=1), vectors if vectors.requires_grad else None)

    def _logits(self, x: Tensor, vectors: Tensor | None) -> Tensor:
        """Symbols (batch, channels, height, width) → logits (batch, K, height, width).

        Where gradients are to reach one-hot vectors, what the perceptron sees is taken from those.
        """
        k, reach = self.num_classes, self.reach
        batch, channels, height, width = x.shape
        symbols = F.pad(x.to(torch.int16), [reach] * 4, value=k)
        flat = self.is_flat(symbols)
        asked = (~flat).flatten().nonzero().squeeze(1)
        places = self.places(batch, channels, height, width, x.device)
        steps = self.steps(height, width).to(x.device)
        seen = places[asked].unsqueeze(1) + steps
        if vectors is None:
            dtype = next(self.parameters()).dtype
            flattened = symbols.flatten()
            nearest = one_hot(flattened[places + steps[0]], k, dtype)
            given = one_hot(flattened[seen].flatten(), k, dtype).view(len(asked), k * len(self.offsets))
        else:
            rows = F.pad(vectors, [reach] * 4).permute(0, 2, 3, 4, 1).reshape(-1, k)
            nearest, given = rows[places + steps[0]], rows[seen].flatten(1)
        out = self.flat(nearest)
        out = out.index_copy(0, asked, self.stack(given).to(out.dtype))
        return out.view(batch, height, width, k).permute(0, 3, 1, 2)

    def is_flat(self, symbols: Tensor) -> Tensor:
        """Where the nearest pixels are all of one class: (batch, height, width), of padded symbols."""
        if symbols.is_cuda:
            return self.is_flat_at_once(symbols)
        reach = self.reach
        height, width = symbols.shape[2] - 2 * reach, symbols.shape[3] - 2 * reach
        seen = (
            symbols[:, channel, reach + row : reach + row + height, reach + column : reach + column + width]
            for channel, row, column in self.offsets[: self.near]
        )
        first = next(seen)
        flat = first != self.num_classes
        for part in seen:
            flat &= part == first
        return flat

    def is_flat_at_once(self, symbols: Tensor) -> Tensor:
        """`is_flat` in few calls on much memory, as GPUs like it."""
        batch, channels, high, wide = symbols.shape
        height, width = high - 2 * self.reach, wide - 2 * self.reach
        steps = self.steps(height, width)[: self.near].to(symbols.device)
        places = self.places(batch, channels, height, width, symbols.device)
        seen = symbols.flatten()[places.unsqueeze(1) + steps]
        flat = (seen == seen[:, :1]).all(dim=1) & (seen[:, 0] != self.num_classes)
        return flat.view(batch, height, width)

    def places(self, batch: int, channels: int, height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
        """The index of every pixel (batch · height · width) in the first channel of padded and flattened maps."""
        high, wide = height + 2 * self.reach, width + 2 * self.reach
        maps = torch.arange(batch, device=device).view(-1, 1, 1) * (channels * high * wide)
        rows = torch.arange(height, device=device).view(-1, 1) * wide
        pixels = rows + torch.arange(width, device=device) + self.reach * (wide + 1)
        return (maps + pixels).flatten()

    def steps(self, height: int, width: int) -> Tensor:
        """How far it is from there to each of the pixels to look at."""
        high, wide = height + 2 * self.reach, width + 2 * self.reach
        return torch.tensor([(channel * high + row) * wide + column for channel, row, column in self.offsets])

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] != self.in_channels:
            raise ValueError(
                f"ContextNet takes maps ({self.in_channels}, height, width), but is given symbols of shape {shape}"
            )
        return (1, *shape[1:])

    def extra_repr(self) -> str:
        return f"{len(self.offsets)} pixels, near={self.near}, hidden={self.hidden}"
