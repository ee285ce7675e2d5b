"""Lossless compression with integer flows: files that decode bit for bit on any machine."""

__all__ = [
    "PRESETS",
    "Archive",
    "ArchiveWriter",
    "DamagedArchiveError",
    "FileReader",
    "FileWriter",
    "IntegerFlow",
    "ModelError",
    "Preset",
    "Recovered",
    "WrongModelError",
    "compress",
    "decompress",
    "export",
    "files_in",
    "pretrained",
    "recover",
    "train_codec",
]

from ddf.codec.archive import Archive, decompress
from ddf.codec.blocks import DamagedArchiveError
from ddf.codec.export import export
from ddf.codec.flow import IntegerFlow, ModelError
from ddf.codec.folders import FileReader, FileWriter, files_in
from ddf.codec.layout import WrongModelError
from ddf.codec.presets import PRESETS, Preset, train_codec
from ddf.codec.pretrained import pretrained
from ddf.codec.recover import Recovered, recover
from ddf.codec.writer import ArchiveWriter, compress
