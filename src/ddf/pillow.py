"""Label maps as Pillow images.

After `import ddf.pillow`, `Image.open` and `Image.save` support .ddfm files, each of which holds a single map.
"""

__all__ = ["LabelImageFile"]

import io
from typing import IO, Any

import numpy as np
from PIL import Image, ImageFile, ImagePalette

from ddf.archive.blocks import DTYPES
from ddf.archive.formats import FileFormat
from ddf.archive.reader import Archive
from ddf.archive.records import MAGIC
from ddf.archive.writer import ArchiveWriter
from ddf.errors import DamagedArchiveError, NotLabelMapError
from ddf.label_files import MODES
from ddf.registry import load_codec

EXTENSION = ".ddfm"

_MODE_OF = {"|b1": "1", "|u1": "L", "<u2": "I;16"}  # other dtypes become 32-bit integers, mode I


class LabelImageFile(ImageFile.ImageFile):
    """A label map as an image of mode 1, L, P, I;16 or I. Its pixels are decoded on first use.

    `save` accepts the options `model` (a model, its file, URL or fingerprint; default: the pretrained model) and
    `embed_model`. It keeps the palette and the transparency of the image, but no other metadata.

    Examples:
        >>> from PIL import Image
        >>> import ddf.pillow
        >>> Image.new("L", (480, 360), 7).save("mask.ddfm")
        >>> with Image.open("mask.ddfm") as image:
        ...     print(image.mode, image.size, image.getpixel((0, 0)))
        L (480, 360) 7
    """

    format = "DDF"
    format_description = "ddf label map"
    _archive: Archive | None = None  # until the pixels are decoded

    def _open(self) -> None:
        file: Any = self.fp
        archive = Archive(file)
        if len(archive) != 1:
            raise NotLabelMapError(f"{archive.name} contains {len(archive)} arrays, not one: open it with ddf.Archive")
        table = archive.contents.index.table
        kind = table.kinds[table.kind_of[0]]
        found = archive.format_of(0)
        if len(kind.shape) != 2 or 0 in kind.shape or (found is not None and found.type == "file"):
            raise NotLabelMapError(f"{archive.name} contains an array of shape {kind.shape}, which is not an image")
        self._archive = archive
        self._size = kind.shape[1], kind.shape[0]
        self._mode = _MODE_OF.get(DTYPES[kind.dtype], "I")
        if found is not None and found.mode:
            if np.dtype(MODES[found.mode]) != np.dtype(DTYPES[kind.dtype]):
                raise DamagedArchiveError(
                    f"{archive.name} is damaged: its dtype is not that of image mode {found.mode}"
                )
            self._mode = found.mode
            if found.mode == "P":
                self.palette = ImagePalette.raw("RGB", found.palette)
            if found.transparency is not None:
                self.info["transparency"] = found.transparency

    def load(self) -> Any:
        """Decode the pixels."""
        if self._archive is not None:
            array = self._archive[0]
            if self.mode == "I":
                for label in (int(array.min()), int(array.max())):
                    if not -(1 << 31) <= label < 1 << 31:
                        what = f"{self._archive.name} has the label {label}, which does not fit into an image"
                        raise ValueError(f"{what}: open it with ddf.Archive")
                array = array.astype(np.int32, copy=False)
            pixels = Image.frombytes("P", self.size, array.tobytes()) if self.mode == "P" else Image.fromarray(array)
            self.im = pixels.im
            self._archive = None
            if getattr(self, "_exclusive_fp", False) and self.fp is not None:
                self.fp.close()
                self.fp = None
        return super().load()


def _accept(prefix: bytes) -> bool:
    return prefix.startswith(MAGIC)


def _save(image: Image.Image, file: IO[bytes], name: str | bytes) -> None:
    if not image.width or not image.height:
        raise ValueError(f"cannot write an image of size {image.width} × {image.height}: it has no pixels")
    mode = "I;16" if image.mode.startswith("I;16") else image.mode
    if mode not in MODES:
        raise OSError(f"cannot write an image of mode {image.mode} as a label map, which has one channel")
    options: dict[str, Any] = dict(image.encoderinfo)
    codec = load_codec(options.get("model"), "this image")
    array = np.asarray(image)
    array = array != 0 if mode == "1" else array.astype(MODES[mode], copy=False)
    transparency = options.get("transparency", image.info.get("transparency"))
    if not isinstance(transparency, int | bytes | None):
        transparency = None
    palette = bytes(image.getpalette("RGB") or b"") if mode == "P" else b""
    form = FileFormat("PNG", mode, palette, transparency) if mode == "P" or transparency is not None else None
    buffer = io.BytesIO()
    with ArchiveWriter(
        buffer,
        codec,
        embed_model=bool(options.get("embed_model")),
    ) as archive:
        archive.add(array, copy=False, file=form)
    file.write(buffer.getvalue())


Image.register_open(LabelImageFile.format, LabelImageFile, _accept)
Image.register_save(LabelImageFile.format, _save)
Image.register_extension(LabelImageFile.format, EXTENSION)
Image.register_mime(LabelImageFile.format, "application/x-ddf")
