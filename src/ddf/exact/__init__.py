"""Flows in exact integer arithmetic, on PyTorch: what they encode decodes to the same bits on every machine."""

__all__ = ["IntegerFlow", "ModelError", "export"]

from ddf.exact.export import export
from ddf.exact.flow import IntegerFlow, ModelError
