"""The data as the frozen layers leave it."""

__all__ = ["Cache", "Data", "fill"]

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.data.redrawn import Redrawn
from ddf.layers.layer import Shape
from ddf.symbols import check_symbols, smallest_dtype

Data = Tensor | np.ndarray[Any, Any] | Redrawn
"""What can be trained on: symbols (samples, channels, *spatial), in memory or mapped from disk, or redrawn ones."""

_CHUNK = 4096  # samples that go through a layer, or are drawn, at a time


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
        name: Under which name.
    """

    def __init__(
        self, rows: int, shape: Shape, num_classes: int, device: torch.device, cap: int, folder: Path, name: str
    ) -> None:
        self.num_classes = num_classes
        self.device = device
        self.cap = cap
        self.folder = folder
        self.name = name
        self.path: Path | None = None
        self.touched = 0
        dtype = smallest_dtype(num_classes)
        size = torch.Size([rows, *(side for side in shape if side is not None)])
        nbytes = size.numel() * dtype.itemsize
        if nbytes <= cap:
            self.symbols = _allocate(size, dtype, device)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / f"{name}.symbols"
            numpy_dtype = np.dtype(str(dtype).removeprefix("torch."))
            self.mapped = np.memmap(self.path, dtype=numpy_dtype, mode="w+", shape=tuple(size))
        self.shape: tuple[int, ...] = tuple(size[1:])
        self.rows = rows

    @property
    def on_device(self) -> bool:
        """Whether batches can be taken without leaving the device."""
        return self.path is None and self.symbols.device.type == self.device.type

    def __len__(self) -> int:
        return self.rows

    def write(self, start: int, batch: Tensor) -> None:
        """Puts a batch into rows `start` …"""
        batch = check_symbols(batch, self.num_classes, name="the data")
        if self.path is None:
            self.symbols[start : start + len(batch)].copy_(batch)
        else:
            self.mapped[start : start + len(batch)] = batch.cpu().numpy()
            self._touch(batch.numel())

    def gather(self, index: Tensor) -> Tensor:
        """The rows of an index, on the device."""
        if self.path is None:
            return self.symbols.index_select(0, index.to(self.symbols.device)).to(self.device, non_blocking=True)
        batch = torch.from_numpy(self.mapped[index.cpu().numpy()])
        self._touch(len(index) * max(mmap.PAGESIZE, batch[0].numel() if len(batch) else 0))
        return batch.to(self.device)

    def batches(self, size: int = _CHUNK) -> Iterator[Tensor]:
        """All rows in their order, on the device."""
        for start in range(0, self.rows, size):
            stop = min(start + size, self.rows)
            if self.path is None:
                yield self.symbols[start:stop].to(self.device, non_blocking=True)
            else:
                yield torch.from_numpy(np.array(self.mapped[start:stop])).to(self.device)
                self._touch((stop - start) * self.mapped[0].nbytes)

    def through(self, carry: Callable[[Tensor], Tensor], shape: Shape, name: str, size: int = 512) -> "Cache":
        """The cache of what `carry` makes of every row. This one is gone then."""
        result = Cache(self.rows, shape, self.num_classes, self.device, self.cap, self.folder, name)
        start = 0
        for batch in self.batches(size):
            result.write(start, carry(batch))
            start += len(batch)
        self.drop()
        return result

    def drop(self) -> None:
        """Gives back the memory or the disk space."""
        if self.path is not None:
            del self.mapped
            self.path.unlink(missing_ok=True)
        else:
            del self.symbols

    def _touch(self, nbytes: int) -> None:
        """Lets go of mapped pages before they fill the memory that the cap allows."""
        self.touched += nbytes
        if self.touched > self.cap // 2:
            self.mapped.flush()
            self.mapped._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
            self.touched = 0


def _allocate(size: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory on the device, or in main memory where the device is full."""
    try:
        return torch.empty(size, dtype=dtype, device=device)
    except torch.OutOfMemoryError:
        return torch.empty(size, dtype=dtype)


def fill(cache: Cache, data: Data, index: np.ndarray[Any, Any], draws: int, seed: int) -> None:
    """Copies samples of the data into a cache, `draws` times if each look at them is another one."""
    start = 0
    for draw in range(draws):
        for i in range(0, len(index), _CHUNK):
            rows = index[i : i + _CHUNK]
            if isinstance(data, Redrawn):
                generator = torch.Generator().manual_seed((seed << 40) + (draw << 24) + i // _CHUNK)
                batch = data.draw(data.stored[torch.from_numpy(rows)], generator)
            elif isinstance(data, Tensor):
                batch = data[torch.from_numpy(rows).to(data.device)]
            else:
                batch = torch.from_numpy(np.ascontiguousarray(data[rows]))
            cache.write(start, batch)
            start += len(batch)
