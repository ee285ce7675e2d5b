"""The pretrained model, which is included in the package."""

__all__ = ["pretrained"]

from functools import cache
from importlib.resources import files

from ddf.labelmaps.model import CausalFlow


@cache
def pretrained() -> CausalFlow:
    """Load the pretrained model, which was trained on synthetic maps only and accepts any labels.

    Examples:
        >>> pretrained()
        CausalFlow(any labels, 64 pixels, hidden=(128, 64))
    """
    return CausalFlow.from_bytes(
        (files("ddf.labelmaps") / "pretrained.safetensors").read_bytes(), "the pretrained model"
    )
