"""The label-map codec: a causal Discrete Denoising Flow in integer arithmetic.

Only `train` needs torch, which is imported on first use.
"""

__all__ = ["PRESETS", "CausalFlow", "Explanation", "Preset", "pretrained", "train"]

from typing import TYPE_CHECKING, Any

from ddf.extras import needed_for
from ddf.labelmaps.model import CausalFlow, Explanation
from ddf.labelmaps.presets import PRESETS, Preset
from ddf.labelmaps.pretrained import pretrained

if TYPE_CHECKING:
    from ddf.labelmaps.training import train


def __getattr__(name: str) -> Any:
    if name == "train":
        with needed_for("training"):
            from ddf.labelmaps.training import train

            return train
    raise AttributeError(f"module 'ddf.labelmaps' has no attribute {name!r}")
