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
    "architectures",
    "argsort_top",
    "data",
    "describe",
    "fit",
    "load",
    "rank",
    "save",
    "spec",
    "unrank",
]

from ddf import architectures, data, spec
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
