"""The pretrained model, which is included in the package."""

__all__ = ["FILE", "pretrained"]

from functools import cache
from pathlib import Path

from ddf.labelmaps.model import CausalFlow

FILE = Path(__file__).with_name("pretrained.safetensors")


@cache
def pretrained() -> CausalFlow:
    """Load the pretrained model, which was trained on synthetic maps only and accepts any labels.

    Examples:
        >>> pretrained()
        CausalFlow(any labels, 64 pixels, hidden=(128, 64))
    """
    return CausalFlow.from_bytes(FILE.read_bytes(), "the pretrained model")
