"""Binary MNIST: digits that are binarized again on each pass, or only once."""

__all__ = ["MNIST_CLASSES", "binarize", "mnist", "read_amat", "read_idx", "static_mnist"]

import gzip
import zlib
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ddf.classes import Classes
from ddf.data.dataset import Data, DataSet
from ddf.data.download import fetch
from ddf.data.resampled import Resampled
from ddf.errors import DataError
from ddf.shapes import Array

MNIST_CLASSES = Classes.plain(2, names=("background", "stroke"), colors=((0, 0, 0), (255, 255, 255)))
_VALIDATION = 10_000  # the last training images

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_IDX = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
}
_STATIC_MIRRORS = ("http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/",)
_AMAT = {
    "binarized_mnist_train.amat": "db28b1a6ae0fe70cbd3da91acf46e477",
    "binarized_mnist_valid.amat": "bf37822a04e94123630de6a7dfd9c9ef",
    "binarized_mnist_test.amat": "14e41ae11040adba6ab8cb291eda0dd8",
}


def mnist(folder: str | PathLike[str] | None = None, seed: int = 0) -> DataSet:
    """Return MNIST with dynamic binarization: each pixel is 1 with probability value / 255.

    Training images are resampled on each pass. Validation images (the last 10,000 training images) and test images are
    sampled once, with their own seeds.

    Arguments:
        folder: The folder of the original idx files, plain or gzipped; None to download them.
        seed: The seed of the validation and test sets.
    """
    train, test = (read_idx(_find(folder, name, _MIRRORS, md5, "mnist")) for name, md5 in _IDX.items())
    for split, images in (("train", train), ("test", test)):
        if images.shape[1:] != (28, 28) or not len(images):
            raise DataError(f"MNIST: the {split} images have shape {images.shape}, but (…, 28, 28) is expected")
    if len(train) <= _VALIDATION:
        raise DataError(f"MNIST: {len(train):,} training images are too few: the last {_VALIDATION:,} are held out")
    gray, gray_test = torch.from_numpy(train).unsqueeze(1), torch.from_numpy(test).unsqueeze(1)
    splits: dict[str, Data] = {
        "train": Resampled(gray[:-_VALIDATION], binarize),
        "validation": binarize(gray[-_VALIDATION:], torch.Generator().manual_seed(2 * seed + 1)),
        "test": binarize(gray_test, torch.Generator().manual_seed(2 * seed)),
    }
    return DataSet("binary MNIST", MNIST_CLASSES, splits)


def static_mnist(folder: str | PathLike[str] | None = None) -> DataSet:
    """Return Larochelle's static binarization. Scores on it cannot be compared with those on `mnist`.

    Arguments:
        folder: The folder of the amat files, plain or gzipped; None to download them.
    """
    splits = {}
    for (name, md5), split in zip(_AMAT.items(), ("train", "validation", "test"), strict=True):
        pixels = read_amat(_find(folder, name, _STATIC_MIRRORS, md5, "binarized_mnist"))
        if pixels.shape[1] != 784:
            raise DataError(f"{name} has {pixels.shape[1]} columns, but images of 28 × 28 have 784")
        splits[split] = torch.from_numpy(pixels).view(-1, 1, 28, 28)
    return DataSet("static binary MNIST", MNIST_CLASSES, splits)


def binarize(gray: Tensor, generator: torch.Generator) -> Tensor:
    """Draw each pixel: 1 with probability value / 255."""
    return (torch.rand(gray.shape, generator=generator) < gray / 255).to(torch.uint8)


def read_idx(path: Path) -> Array:
    """Read an idx file of bytes, plain or gzipped."""
    raw = _read(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an idx file of bytes: it begins with {raw[:4].hex(' ') or 'nothing'}")
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise DataError(f"{path} is truncated in its header")
    shape = tuple(int(size) for size in np.frombuffer(raw, dtype=">u4", count=dimensions, offset=4))
    have, want = len(raw) - start, int(np.prod(shape, dtype=np.int64))
    if have != want:
        raise DataError(f"{path} has {have:,} bytes of data, but its header declares {want:,}: {shape}")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape).copy()


def read_amat(path: Path) -> Array:
    """Read a text file of zeros and ones with one sample on each line, plain or gzipped."""
    lines = _read(path).splitlines()
    if not lines or not lines[0].split():
        raise DataError(f"{path} is empty")
    width = len(lines[0].split())
    compact = b"".join(lines).translate(None, b" \t\r")
    wrong = compact.translate(None, b"01")
    if wrong:
        raise DataError(f"{path} contains {wrong[:1].decode('latin-1')!r}, but zeros and ones are expected")
    for number, line in enumerate(lines, start=1):
        if line.count(b"0") + line.count(b"1") != width:
            raise DataError(f"{path}: line {number} does not have {width} values like the first line")
    return (np.frombuffer(compact, dtype=np.uint8) - ord("0")).reshape(len(lines), width)


def _find(folder: str | PathLike[str] | None, name: str, mirrors: tuple[str, ...], md5: str, cache: str) -> Path:
    """Return the path of a file in a folder, plain or gzipped; if there is no folder, download the file."""
    if folder is None:
        return fetch([mirror + name for mirror in mirrors], f"{cache}/{name}", md5)
    plain = name.removesuffix(".gz")
    for candidate in (Path(folder) / plain, Path(folder) / f"{plain}.gz"):
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"{folder} contains neither {plain} nor {plain}.gz")


def _read(path: Path) -> bytes:
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file: {error}") from error
