"""The base class of the parts of exact nets that hold integers."""

__all__ = ["IntegerModule"]

from collections.abc import Mapping

from torch import Tensor, nn


class IntegerModule(nn.Module):
    """A part of an exact net that holds integers, which an `IntegerFlow` stores in files, checks and verifies.

    The integers are its own buffers, unless a subclass says otherwise.
    """

    def integer_tensors(self) -> dict[str, Tensor]:
        """Return the integers as files store them, by their names in the state dict."""
        return dict(self.named_buffers(recurse=False))

    def set_integers(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the integers to those of a file, on the CPU; the module may be on PyTorch's meta device."""
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, tensors[name].to(buffer.dtype))

    def check(self) -> None:
        """Raise a `ModelError` for integers that are out of range."""

    def is_exact(self) -> bool:
        """Return whether the arithmetic of the module's device passes a few tests."""
        return True

    def use_no_bytes(self) -> None:
        """Use floating point instead of int8 products from now on."""

    def use_doubles(self) -> None:
        """Represent integers in double precision instead of single precision from now on."""
