"""Lossless compression with integer flows: files that decode bit for bit on any machine."""

__all__ = ["IntegerFlow", "ModelError"]

from ddf.codec.flow import IntegerFlow, ModelError
