"""Discrete Denoising Flows: exact-likelihood models of categorical data that score, sample and compress.

To understand the method, read `permutation`, `layers` and `flow`, in that order.
"""

__all__ = [
    "MLP",
    "Archive",
    "ArchiveWriter",
    "ChannelSplit",
    "DamagedFileError",
    "DdfError",
    "DenoisingCoupling",
    "DenoisingSplit",
    "DenseNet",
    "FactorizedCategorical",
    "Flow",
    "FlowSpec",
    "IntegerFlow",
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
    "archive",
    "argsort_top",
    "compress",
    "data",
    "decompress",
    "describe",
    "exact",
    "export",
    "fit",
    "labelmaps",
    "load",
    "rank",
    "recover",
    "spec",
    "unrank",
]

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ddf.extras import needed_for

if TYPE_CHECKING:
    from ddf import analysis, architectures, archive, data, exact, labelmaps, spec
    from ddf.archive import Archive, ArchiveWriter, compress, decompress
    from ddf.archive.recover import recover
    from ddf.base import FactorizedCategorical
    from ddf.errors import DamagedFileError, DdfError
    from ddf.exact import IntegerFlow, export
    from ddf.flow import Flow, FlowSpec, Latents
    from ddf.layers import (
        ChannelSplit,
        DenoisingCoupling,
        DenoisingSplit,
        Layer,
        ModularCoupling,
        Shuffle,
        SplitPrior,
        Squeeze,
    )
    from ddf.models import load
    from ddf.nets import MLP, DenseNet, Net
    from ddf.permutation import argsort_top, rank, unrank
    from ddf.plain import describe
    from ddf.training import TrainingConfig, fit

__version__ = "0.1.0"

_HOMES = {  # module: the names defined there; it is imported when one of them is first used
    "ddf.archive": ("Archive", "ArchiveWriter", "compress", "decompress", "recover"),
    "ddf.exact": ("IntegerFlow", "export"),
    "ddf.flow": ("Flow", "FlowSpec", "Latents"),
    "ddf.layers": (
        "ChannelSplit",
        "DenoisingCoupling",
        "DenoisingSplit",
        "Layer",
        "ModularCoupling",
        "Shuffle",
        "SplitPrior",
        "Squeeze",
    ),
    "ddf.errors": ("DamagedFileError", "DdfError"),
    "ddf.models": ("load",),
    "ddf.nets": ("MLP", "DenseNet", "Net"),
    "ddf.permutation": ("argsort_top", "rank", "unrank"),
    "ddf.base": ("FactorizedCategorical",),
    "ddf.plain": ("describe",),
    "ddf.training": ("TrainingConfig", "fit"),
}
_MODULES = ("analysis", "architectures", "archive", "data", "exact", "labelmaps", "spec")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF and name not in _MODULES:
        raise AttributeError(f"module 'ddf' has no attribute {name!r}")
    with needed_for(f"ddf.{name}"):
        value = import_module(_HOME_OF.get(name, f"ddf.{name}"))
        if name in _HOME_OF:
            value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
