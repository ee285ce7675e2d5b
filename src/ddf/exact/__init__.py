"""Flows in exact integer arithmetic, on PyTorch: their codes decode to the same bits on every machine."""

__all__ = ["IntegerFlow", "export"]

from ddf.exact.export import export
from ddf.exact.integer_flow import IntegerFlow
