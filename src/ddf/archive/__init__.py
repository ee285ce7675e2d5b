"""Archives: many integer arrays, or files and folders of label maps, in one file with checksums.

Nothing here imports PyTorch or numba; archives use codecs only through the `Codec` protocol.
"""

__all__ = [
    "DEFAULT_MAX_BYTES",
    "Archive",
    "ArchiveWriter",
    "Codec",
    "DamagedArchiveError",
    "FileFormat",
    "FileReader",
    "FileWriter",
    "InvalidCodeError",
    "LimitError",
    "MissingArrayError",
    "Recovery",
    "WrongModelError",
    "compress",
    "decompress",
    "files_in",
    "recover",
    "verify",
]

from ddf.archive.archived_files import FileReader, FileWriter
from ddf.archive.formats import FileFormat
from ddf.archive.found_files import files_in
from ddf.archive.limits import DEFAULT_MAX_BYTES
from ddf.archive.reader import Archive, decompress
from ddf.archive.recover import Recovery, recover
from ddf.archive.verify import verify
from ddf.archive.writer import ArchiveWriter, compress
from ddf.errors import DamagedArchiveError, InvalidCodeError, LimitError, MissingArrayError, WrongModelError
from ddf.protocol import Codec
