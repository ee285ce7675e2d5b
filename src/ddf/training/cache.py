"""The training data as transformed by the frozen layers."""

__all__ = ["Cache", "fill", "take"]

import errno
import mmap
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ddf.data.dataset import Data
from ddf.data.resampled import Resampled
from ddf.shapes import Shape
from ddf.symbols import check_symbols, smallest_dtype

_CHUNK = 4096  # samples read or drawn at a time


class Cache:
    """Symbols (rows, channels, *spatial) in the smallest dtype, on the device, in main memory or on disk.

    Arguments:
        rows: The number of rows.
        shape: The shape of one row.
        num_classes: The number of classes.
        device: The device of the batches.
        cap: Maximum size in bytes on the device, and again in main memory if the device is not the CPU. Larger data is
            kept on disk.
        folder: The folder for data on disk.
        name: The name of the data in error messages.
        draws: Number of draws of each sample: first all samples of the first draw, then all of the second, and so on.
    """

    def __init__(
        self,
        rows: int,
        shape: Shape,
        num_classes: int,
        device: torch.device,
        cap: int,
        folder: Path,
        name: str,
        draws: int = 1,
    ) -> None:
        self.num_classes = num_classes
        self.name = name
        self.draws = draws
        self.device = device
        self.cap = cap
        self.folder = folder
        self.file: BinaryIO | None = None
        self.dtype = smallest_dtype(num_classes)
        self.shape = tuple(side for side in shape if side is not None)
        self.rows = rows
        self.row_bytes = torch.Size(self.shape).numel() * self.dtype.itemsize
        if rows * self.row_bytes <= cap:
            self.symbols = _allocate(torch.Size([rows, *self.shape]), self.dtype, device)
        else:
            # Read and written, not mapped: mapped pages would count as memory of the process. The file has no name, so
            # it disappears with the process.
            folder.mkdir(parents=True, exist_ok=True)
            self.file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 (closed by drop)

    @property
    def on_device(self) -> bool:
        """Whether the data is on the device."""
        return self.file is None and self.symbols.device.type == self.device.type

    def __len__(self) -> int:
        return self.rows

    def write(self, start: int, batch: Tensor) -> None:
        """Write a batch to the rows from `start` on."""
        batch = check_symbols(batch, self.num_classes, name=self.name)
        if self.file is None:
            self.symbols[start : start + len(batch)].copy_(batch)
        else:
            plain = batch.to("cpu", self.dtype).contiguous().numpy()
            self.file.seek(start * self.row_bytes)
            try:
                written = self.file.write(plain.data.cast("B"))
            except OSError as error:
                raise OSError(error.errno, f"cannot write the cache to {self.folder}: {error.strerror}") from error
            if written != plain.nbytes:
                raise OSError(errno.ENOSPC, f"cannot write the cache to {self.folder}: no space left")

    def gather(self, index: Tensor) -> Tensor:
        """Return the rows of an index, on the device."""
        if self.file is None:
            return self.symbols.index_select(0, index.to(self.symbols.device)).to(self.device, non_blocking=True)
        return self._read([(row, 1) for row in index.tolist()])

    def batches(self, size: int = _CHUNK) -> Iterator[Tensor]:
        """Yield all rows in order, on the device."""
        for start in range(0, self.rows, size):
            count = min(size, self.rows - start)
            if self.file is None:
                yield self.symbols[start : start + count].to(self.device, non_blocking=True)
            else:
                yield self._read([(start, count)])

    def _read(self, runs: list[tuple[int, int]]) -> Tensor:
        """Read runs of rows, each given by its first row and their number."""
        assert self.file is not None
        batch = torch.empty(sum(count for _, count in runs), *self.shape, dtype=self.dtype)
        view = batch.numpy().data.cast("B")
        position = 0
        for start, count in runs:
            self.file.seek(start * self.row_bytes)
            self.file.readinto(view[position : position + count * self.row_bytes])  # type: ignore[attr-defined]
            position += count * self.row_bytes
        return batch.to(self.device)

    def through(self, carry: Callable[[Tensor], Tensor], shape: Shape, name: str, size: int = 512) -> "Cache":
        """Return a cache of the output of `carry` for every row, and free this one."""
        result = Cache(self.rows, shape, self.num_classes, self.device, self.cap, self.folder, name, self.draws)
        start = 0
        for batch in self.batches(size):
            result.write(start, carry(batch))
            start += len(batch)
        self.drop()
        return result

    def drop(self) -> None:
        """Free the memory or the disk space."""
        if self.file is None:
            del self.symbols
        else:
            self.file.close()


def _allocate(size: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate memory on the device, or in main memory if the device is full."""
    try:
        return torch.empty(size, dtype=dtype, device=device)
    except torch.OutOfMemoryError:
        return torch.empty(size, dtype=dtype)


def take(array: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy rows, in ascending order, of an array that may be memory-mapped, without keeping its pages in memory."""
    mapping = getattr(array, "_mmap", None)
    if mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
        return array[rows]
    result = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype)
    span = max(1, (4 << 20) // max(1, array[0].nbytes))
    first = 0
    while first < len(rows):
        last = int(np.searchsorted(rows, rows[first] + span))
        result[first:last] = array[rows[first:last]]
        mapping.madvise(mmap.MADV_DONTNEED)
        first = last
    return result


def _rows(stored: Tensor | np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> Tensor:
    if isinstance(stored, Tensor):
        return stored[torch.from_numpy(rows).to(stored.device)]
    taken = take(stored, rows)
    return torch.from_numpy(np.ascontiguousarray(taken, dtype=taken.dtype.newbyteorder("=")))


def fill(cache: Cache, data: Data, index: np.ndarray[Any, Any], seed: int) -> None:
    """Copy samples of the data to a cache, drawing each as often as the cache has draws."""
    start = 0
    for draw in range(cache.draws):
        for i in range(0, len(index), _CHUNK):
            rows = index[i : i + _CHUNK]
            if isinstance(data, Resampled):
                generator = torch.Generator().manual_seed((seed << 40) + (draw << 24) + i // _CHUNK)
                batch = data.draw(_rows(data.stored, rows), generator)
                if not isinstance(batch, Tensor) or tuple(batch.shape) != (len(rows), *cache.shape):
                    shape = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
                    raise ValueError(
                        f"{cache.name}: draw returned {shape} for {len(rows)} samples, "
                        f"but it must return symbols of shape {(len(rows), *cache.shape)}"
                    )
            else:
                batch = _rows(data, rows)
            cache.write(start, batch)
            start += len(batch)
