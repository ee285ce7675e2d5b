"""Archives as PyTorch data sets."""

__all__ = ["ArchiveDataset"]

import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any

from ddf.archive.decoded import DecodedCache
from ddf.archive.reader import Archive
from ddf.errors import MissingArrayError
from ddf.extras import needed_for
from ddf.lazy import lazy
from ddf.protocol import Codec
from ddf.registry import load_codec
from ddf.shapes import Array

with needed_for("ddf.torch"):
    import torch
    from torch.utils.data import Dataset


class ArchiveDataset(Dataset[Any]):
    """The maps of one or more archives, by number or by name.

    Worker processes of a `DataLoader` share the data set, however they are started. Decoded maps are kept in a
    temporary file that all workers share, so that later epochs need not decode them again.

    Arguments:
        path: The path, URL or bytes of an archive, or a sequence of these.
        transform: A function that is applied to each map (an array), for example to convert it to a tensor of another
            dtype; None to convert it to a tensor of the same dtype.
        model: The model of the archives; not needed if they contain it or if it is found by its fingerprint.
        cache_bytes: The maximum size in bytes of the file of decoded maps; 0 for no file.
        cache_folder: The folder of that file; None for the default folder for temporary files.
        keep_cache: Whether to keep the file in `cache_folder`, for later data sets of the same archives; delete it when
            you no longer need it.
        storage_options: Options of the file system of a URL.

    Examples:
        >>> import numpy as np
        >>> import ddf
        >>> with ddf.ArchiveWriter("maps.ddf", model=None, overwrite=True) as archive:
        ...     for i in range(4):
        ...         archive.add(np.full((2, 3), i, dtype=np.uint8), f"{i}.png")
        >>> dataset = ArchiveDataset("maps.ddf", transform=lambda array: torch.from_numpy(array).long())
        >>> len(dataset), dataset.names[1], dataset["1.png"].dtype
        (4, '1.png', torch.int64)
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=True, num_workers=2)
        >>> [batch.shape for batch in loader]
        [torch.Size([2, 2, 3]), torch.Size([2, 2, 3])]
    """

    def __init__(
        self,
        path: str | PathLike[str] | bytes | Sequence[str | PathLike[str] | bytes],
        transform: Callable[[Array], Any] | None = None,
        model: Codec | str | PathLike[str] | None = None,
        cache_bytes: int = 1 << 30,
        cache_folder: str | PathLike[str] | None = None,
        keep_cache: bool = False,
        storage_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        paths = [path] if isinstance(path, str | bytes | PathLike) else list(path)
        if not isinstance(cache_bytes, int) or cache_bytes < 0:
            raise ValueError(f"cache_bytes={cache_bytes!r} must be a number of bytes, or 0 for no cache")
        codec = None if model is None else load_codec(model, "this data set")
        self.transform = transform
        self.archives = [Archive(one, codec, threads=1, storage_options=storage_options) for one in paths]
        self._cache = DecodedCache(self.archives, cache_bytes, cache_folder, keep_cache)
        self._firsts = [0]
        for archive in self.archives:
            self._firsts.append(self._firsts[-1] + len(archive))

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, key: int | str) -> Any:
        array = self._cache.get(*self._place(key))
        return torch.from_numpy(array) if self.transform is None else self.transform(array)

    def _place(self, key: int | str) -> tuple[int, int]:
        """Return the number of an archive, and that of an array in it."""
        if isinstance(key, str):
            for which, archive in enumerate(self.archives):
                if key in archive:
                    return which, archive.number_of(key)
            raise MissingArrayError(f"no archive of this data set contains an array named {key!r}")
        try:
            key = operator.index(key)
        except TypeError:
            raise TypeError(f"a map is selected by its number or its name, not by {key!r}") from None
        number = key + len(self) if key < 0 else key
        if not 0 <= number < len(self):
            raise MissingArrayError(f"number {key} is out of range: the data set has {len(self)} maps")
        which = bisect_right(self._firsts, number) - 1
        return which, number - self._firsts[which]

    @lazy
    def names(self) -> list[str | int]:
        """The names of the maps, in order; for a map without a name, its number in its archive."""
        return [name for archive in self.archives for name in archive]
