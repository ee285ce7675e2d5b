"""How to restore the file that an array came from."""

__all__ = ["FileFormat"]

from dataclasses import dataclass

import numpy as np

from ddf.archive.varint import read_varint, write_varint
from ddf.label_files import MODES
from ddf.shapes import Array

_TYPES = ("", "file", "npy", "PNG", "TIFF")
_MODES = tuple(MODES)
_FORTRAN, _BIG = 1, 2
_MAX_PALETTE, _MAX_TRANSPARENCY = 768, 256
_MAX_NUMBER = 1 << 16


@dataclass(frozen=True)
class FileFormat:
    """The format of the file that an array is written to.

    Arguments:
        type: `"file"` if the array is the bytes of the file, `"npy"`, `"PNG"` or `"TIFF"`.
        mode: The mode of an image.
        palette: The palette of an image of mode P: red, green, blue, …
        transparency: The transparent value of an image, or the opacity of each color of its palette.
        fortran: Whether the values in an npy file are in Fortran order.
        big_endian: Whether they are big-endian.
    """

    type: str
    mode: str = ""
    palette: bytes = b""
    transparency: int | bytes | None = None
    fortran: bool = False
    big_endian: bool = False

    def to_bytes(self) -> bytes:
        out = bytes([_TYPES.index(self.type)])
        if self.type == "npy":
            return out + bytes([_FORTRAN * self.fortran | _BIG * self.big_endian])
        if self.type == "file":
            return out
        out += bytes([_MODES.index(self.mode)])
        if self.mode == "P":
            out += write_varint(len(self.palette)) + self.palette
        if self.transparency is None:
            return out + b"\0"
        if isinstance(self.transparency, bytes):
            return out + b"\2" + write_varint(len(self.transparency)) + self.transparency
        return out + b"\1" + write_varint(self.transparency)

    @classmethod
    def from_bytes(cls, data: bytes) -> "FileFormat":
        """Read what `to_bytes` returned; raise a `ValueError` for anything else."""
        try:
            found = cls._parse(data)
        except IndexError as error:
            raise ValueError("a file format is truncated") from error
        if found.to_bytes() != data:
            raise ValueError("a file format is invalid or was written by a newer version of ddf")
        return found

    @classmethod
    def _parse(cls, data: bytes) -> "FileFormat":
        number = data[0]
        if not 1 <= number < len(_TYPES):
            raise ValueError(f"file format {number} is unknown; a newer version of ddf may read it")
        type_ = _TYPES[number]
        if type_ == "file":
            return cls(type_)
        if type_ == "npy":
            return cls(type_, fortran=bool(data[1] & _FORTRAN), big_endian=bool(data[1] & _BIG))
        mode = _MODES[data[1]]
        position = 2
        palette = b""
        transparency: int | bytes | None = None
        if mode == "P":
            length, position = read_varint(data, position)
            palette = data[position : position + length]
            position += length
            if length > _MAX_PALETTE or length % 3:
                raise ValueError(f"a palette of {length} bytes is invalid")
        if data[position] == 1:
            transparency, position = read_varint(data, position + 1)
            if transparency > _MAX_NUMBER:
                raise ValueError(f"a transparent value of {transparency} is invalid")
        elif data[position] == 2:
            length, position = read_varint(data, position + 1)
            if length > _MAX_TRANSPARENCY:
                raise ValueError(f"the opacity of {length} colors is invalid")
            transparency = data[position : position + length]
        return cls(type_, mode, palette, transparency)

    def suits(self, array: Array) -> bool:
        """Return whether an array can be written as a file of this format."""
        if self.type == "npy":
            return True
        if self.type == "file":
            return array.ndim == 1 and array.dtype == np.uint8
        if array.ndim != 2 or not array.size or array.dtype != np.dtype(MODES[self.mode]):
            return False
        return (self.type, self.mode) != ("PNG", "I") or bool(array.min() >= 0 and array.max() < _MAX_NUMBER)
