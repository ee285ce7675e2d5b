"""The data as the frozen layers leave it."""

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
from ddf.data.redrawn import Redrawn
from ddf.shapes import Shape
from ddf.symbols import check_symbols, smallest_dtype

_CHUNK = 4096  # samples that are read or drawn at a time


class Cache:
    """Symbols (rows, channels, *spatial) in their smallest dtype, where they fit: on the device, in memory, on disk.

    Arguments:
        rows: The number of rows.
        shape: The shape of one.
        num_classes: The number of classes.
        device: Where batches are wanted.
        cap: Bytes that may be kept on the device and, if it is not the CPU, as many in main memory. What is larger is
            kept on disk.
        folder: Where on disk.
        name: What errors call it.
        draws: How many looks at each sample there are: all samples of the first, then all of the second, and so on.
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
            # Read and written, not mapped: mapped pages count as memory of the process, as many as the system likes.
            # The file has no name, so that it goes with the process, however that ends.
            folder.mkdir(parents=True, exist_ok=True)
            self.file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 (closed by drop)

    @property
    def on_device(self) -> bool:
        """Whether batches can be taken without leaving the device."""
        return self.file is None and self.symbols.device.type == self.device.type

    def __len__(self) -> int:
        return self.rows

    def write(self, start: int, batch: Tensor) -> None:
        """Puts a batch into rows `start` …"""
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
        """The rows of an index, on the device."""
        if self.file is None:
            return self.symbols.index_select(0, index.to(self.symbols.device)).to(self.device, non_blocking=True)
        return self._read([(row, 1) for row in index.tolist()])

    def batches(self, size: int = _CHUNK) -> Iterator[Tensor]:
        """All rows in their order, on the device."""
        for start in range(0, self.rows, size):
            count = min(size, self.rows - start)
            if self.file is None:
                yield self.symbols[start : start + count].to(self.device, non_blocking=True)
            else:
                yield self._read([(start, count)])

    def _read(self, runs: list[tuple[int, int]]) -> Tensor:
        """Reads runs of rows, each given by its first and their number."""
        assert self.file is not None
        batch = torch.empty(sum(count for _, count in runs), *self.shape, dtype=self.dtype)
        view = batch.numpy().data.cast("B")
        position = 0
        for start, count in runs:
            self.file.seek(start * self.row_bytes)
            self.file.readinto(view[position : position + count * self.row_bytes])  # type: ignore[attr-defined]
            position += count * self.row_bytes
        return batch.to(self.device)

    def through(self, carry: Callable[[Tensor], Tensor], shape: Shape, size: int = 512) -> "Cache":
        """The cache of what `carry` makes of every row. This one is gone then."""
        result = Cache(self.rows, shape, self.num_classes, self.device, self.cap, self.folder, self.name, self.draws)
        start = 0
        for batch in self.batches(size):
            result.write(start, carry(batch))
            start += len(batch)
        self.drop()
        return result

    def drop(self) -> None:
        """Gives back the memory or the disk space."""
        if self.file is None:
            del self.symbols
        else:
            self.file.close()


def _allocate(size: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory on the device, or in main memory where the device is full."""
    try:
        return torch.empty(size, dtype=dtype, device=device)
    except torch.OutOfMemoryError:
        return torch.empty(size, dtype=dtype)


def take(array: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copies rows, in ascending order, of an array that may be mapped from disk, and keeps none of its pages."""
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
    """Copies samples of the data into a cache, as many looks at them as it holds."""
    start = 0
    for draw in range(cache.draws):
        for i in range(0, len(index), _CHUNK):
            rows = index[i : i + _CHUNK]
            if isinstance(data, Redrawn):
                generator = torch.Generator().manual_seed((seed << 40) + (draw << 24) + i // _CHUNK)
                batch = data.draw(_rows(data.stored, rows), generator)
                if not isinstance(batch, Tensor) or tuple(batch.shape) != (len(rows), *cache.shape):
                    shape = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
                    raise ValueError(
                        f"{cache.name}: draw returns {shape} for {len(rows)} samples, "
                        f"but it must return symbols of shape {(len(rows), *cache.shape)}"
                    )
            else:
                batch = _rows(data, rows)
            cache.write(start, batch)
            start += len(batch)
