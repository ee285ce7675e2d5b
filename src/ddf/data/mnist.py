"""MNIST digits in two values: binarised afresh at every look, or once and for all."""

__all__ = ["MNIST_CLASSES", "binarize", "mnist", "read_amat", "read_idx", "static_mnist"]

import gzip
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.classes import Classes
from ddf.data.dataset import Data, DataError, DataSet
from ddf.data.download import cache_folder, fetch
from ddf.data.redrawn import Redrawn

MNIST_CLASSES = Classes.plain(2, names=("background", "stroke"), colors=((0, 0, 0), (255, 255, 255)))
_VALIDATION = 10_000  # the last of the training images

_HOMES = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_IDX = {  # with the checksums of what is in them, however it was compressed
    "train-images-idx3-ubyte.gz": "6bbc9ace898e44ae57da46a324031adb",
    "t10k-images-idx3-ubyte.gz": "2646ac647ad5339dbf082846283269ea",
}
_STATIC_HOME = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
_AMAT = {
    "binarized_mnist_train.amat": "db28b1a6ae0fe70cbd3da91acf46e477",
    "binarized_mnist_valid.amat": "bf37822a04e94123630de6a7dfd9c9ef",
    "binarized_mnist_test.amat": "14e41ae11040adba6ab8cb291eda0dd8",
}


def mnist(folder: str | PathLike[str] | None = None, seed: int = 0) -> DataSet:
    """MNIST with dynamic binarisation: at every look, each pixel is 1 with probability value / 255.

    Training images are drawn afresh. Validation (the last 10,000 training images) and test are drawn once, by a seed of
    their own, whatever the training does.

    Arguments:
        folder: Where the original idx files are, plain or gzipped; None to download them.
        seed: Draws the validation and the test set.
    """
    train, test = (read_idx(_find(folder, name, _HOMES, md5, "mnist")) for name, md5 in _IDX.items())
    for what, images in (("train", train), ("test", test)):
        if images.shape[1:] != (28, 28) or not len(images):
            raise DataError(f"MNIST: the {what} images have shape {images.shape}, but should be (…, 28, 28)")
    if len(train) <= _VALIDATION:
        raise DataError(f"MNIST: {len(train):,} training images, but the last {_VALIDATION:,} are for validation alone")
    grey, grey_test = torch.from_numpy(train).unsqueeze(1), torch.from_numpy(test).unsqueeze(1)
    splits: dict[str, Data] = {
        "train": Redrawn(grey[:-_VALIDATION], binarize),
        "validation": binarize(grey[-_VALIDATION:], torch.Generator().manual_seed(2 * seed + 1)),
        "test": binarize(grey_test, torch.Generator().manual_seed(2 * seed)),
    }
    return DataSet("binary MNIST", MNIST_CLASSES, splits)


def static_mnist(folder: str | PathLike[str] | None = None) -> DataSet:
    """Larochelle's static binarisation: another data set than the dynamic one, with figures of its own.

    Arguments:
        folder: Where the amat files are, plain or gzipped; None to download them.
    """
    splits = {}
    for (name, md5), split in zip(_AMAT.items(), ("train", "validation", "test"), strict=True):
        pixels = read_amat(_find(folder, name, (_STATIC_HOME,), md5, "binarized_mnist"))
        if pixels.shape[1] != 784:
            raise DataError(f"{name} has {pixels.shape[1]} columns, but images of 28 × 28 have 784")
        splits[split] = torch.from_numpy(pixels).view(-1, 1, 28, 28)
    return DataSet("static binary MNIST", MNIST_CLASSES, splits)


def binarize(grey: Tensor, generator: torch.Generator) -> Tensor:
    """Draws each pixel: 1 with probability value / 255."""
    return (torch.rand(grey.shape, generator=generator) < grey / 255).to(torch.uint8)


def read_idx(path: Path) -> np.ndarray[Any, Any]:
    """Reads an idx file of bytes, plain or gzipped."""
    raw = _read(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is no idx file of bytes: it begins with {raw[:4].hex(' ') or 'nothing'}")
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise DataError(f"{path} ends within its header")
    shape = tuple(int(size) for size in np.frombuffer(raw, dtype=">u4", count=dimensions, offset=4))
    have, want = len(raw) - start, int(np.prod(shape, dtype=np.int64))
    if have != want:
        raise DataError(f"{path} has {have:,} bytes of data, but its header says {want:,}: {shape}")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape).copy()


def read_amat(path: Path) -> np.ndarray[Any, Any]:
    """Reads a text of zeros and ones, a sample on each line, plain or gzipped."""
    lines = _read(path).splitlines()
    if not lines or not lines[0].split():
        raise DataError(f"{path} is empty")
    width = len(lines[0].split())
    compact = b"".join(lines).translate(None, b" \t\r")
    wrong = compact.translate(None, b"01")
    if wrong:
        raise DataError(f"{path} contains {wrong[:1].decode('latin-1')!r}, but should hold zeros and ones")
    for number, line in enumerate(lines, start=1):
        if line.count(b"0") + line.count(b"1") != width:
            raise DataError(f"{path}: line {number} has not {width} values as the first has")
    return (np.frombuffer(compact, dtype=np.uint8) - ord("0")).reshape(len(lines), width)


def _find(folder: str | PathLike[str] | None, name: str, homes: tuple[str, ...], md5: str, kind: str) -> Path:
    """The file of that name, plain or gzipped, in the folder; without one, downloaded."""
    if folder is None:
        return fetch([home + name for home in homes], cache_folder() / kind / name, md5)
    plain = name.removesuffix(".gz")
    for candidate in (Path(folder) / plain, Path(folder) / f"{plain}.gz"):
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"there is neither {plain} nor {plain}.gz in {folder}")


def _read(path: Path) -> bytes:
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file: {error}") from error
