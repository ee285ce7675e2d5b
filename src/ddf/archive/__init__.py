"""Archives: many integer arrays, or files and folders of label maps, in one file with checksums.

Nothing here imports PyTorch or numba; an archive knows the codec that codes its arrays only by `Codec`.
"""

__all__ = [
    "Archive",
    "ArchiveWriter",
    "Codec",
    "DamagedArchiveError",
    "FileReader",
    "FileWriter",
    "InvalidCodeError",
    "Recovered",
    "WrongModelError",
    "compress",
    "decompress",
    "files_in",
    "recover",
]

from ddf.archive.blocks import DamagedArchiveError
from ddf.archive.folders import FileReader, FileWriter, files_in
from ddf.archive.layout import WrongModelError
from ddf.archive.protocol import Codec, InvalidCodeError
from ddf.archive.reader import Archive, decompress
from ddf.archive.recover import Recovered, recover
from ddf.archive.writer import ArchiveWriter, compress
