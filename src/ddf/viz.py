"""Pictures."""

__all__ = ["pair_histograms"]

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from ddf.files import atomic_write


def pair_histograms(samples: Mapping[str, Tensor], num_classes: int, path: str | PathLike[str]) -> None:
    """Draws two-dimensional histograms of pairs of symbols side by side, on one scale.

    Arguments:
        samples: Title → pairs (samples, 2).
        num_classes: The number of classes K.
        path: The picture to write, a PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(samples), 3.7), layout="constrained")
    tables = {
        title: torch.bincount(pairs[:, 0].long() * num_classes + pairs[:, 1].long(), minlength=num_classes**2)
        .view(num_classes, num_classes)
        .div(len(pairs))
        for title, pairs in samples.items()
    }
    brightest = max(float(table.max()) for table in tables.values())
    for axes, (title, table) in zip(figure.subplots(1, len(samples), squeeze=False)[0], tables.items(), strict=True):
        # The square root keeps what is rare in sight.
        axes.imshow(table.t().sqrt().numpy(), origin="lower", cmap="magma", vmin=0, vmax=brightest**0.5)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("first symbol", fontsize=9)
        axes.set_ylabel("second symbol", fontsize=9)
        axes.set_xticks([0, num_classes // 2, num_classes - 1])
        axes.set_yticks([0, num_classes // 2, num_classes - 1])
        axes.tick_params(labelsize=8)
    with atomic_write(Path(path)) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
