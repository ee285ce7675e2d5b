"""Discrete Denoising Flows: exact-likelihood models of categorical data that score, sample and compress.

Read `permutation`, `layers` and `flow` in that order to have read the paper.
"""

__all__ = [
    "MLP",
    "ChannelSplit",
    "Checkerboard",
    "CheckpointError",
    "DenoisingCoupling",
    "DenseNet",
    "FactorizedCategorical",
    "Flow",
    "FlowSpec",
    "Latents",
    "Layer",
    "ModularCoupling",
    "Net",
    "Shuffle",
    "SplitPrior",
    "Squeeze",
    "TrainingConfig",
    "__version__",
    "analysis",
    "architectures",
    "argsort_top",
    "codec",
    "data",
    "describe",
    "fit",
    "load",
    "rank",
    "save",
    "spec",
    "unrank",
]

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddf import analysis, architectures, codec, data, spec
    from ddf.checkpoint import CheckpointError, load, save
    from ddf.flow import Flow, Latents
    from ddf.layers import (
        ChannelSplit,
        Checkerboard,
        DenoisingCoupling,
        Layer,
        ModularCoupling,
        Shuffle,
        SplitPrior,
        Squeeze,
    )
    from ddf.nets import MLP, DenseNet, Net
    from ddf.permutation import argsort_top, rank, unrank
    from ddf.prior import FactorizedCategorical
    from ddf.spec import FlowSpec, describe
    from ddf.training import TrainingConfig, fit

__version__ = "0.1.0"

_HOMES = {  # where each name comes from: it is imported, and PyTorch with it, when it is first used
    "ddf.checkpoint": ("CheckpointError", "load", "save"),
    "ddf.flow": ("Flow", "Latents"),
    "ddf.layers": (
        "ChannelSplit",
        "Checkerboard",
        "DenoisingCoupling",
        "Layer",
        "ModularCoupling",
        "Shuffle",
        "SplitPrior",
        "Squeeze",
    ),
    "ddf.nets": ("MLP", "DenseNet", "Net"),
    "ddf.permutation": ("argsort_top", "rank", "unrank"),
    "ddf.prior": ("FactorizedCategorical",),
    "ddf.spec": ("FlowSpec", "describe"),
    "ddf.training": ("TrainingConfig", "fit"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    elif name in ("analysis", "architectures", "codec", "data", "spec"):
        value = import_module(f"ddf.{name}")
    else:
        raise AttributeError(f"module 'ddf' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
