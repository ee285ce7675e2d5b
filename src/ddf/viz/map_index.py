"""The label maps of an archive and their sizes, as listed in its index, and samples of them."""

__all__ = ["MapIndex"]

import numpy as np

from ddf.archive import Archive, FileFormat
from ddf.archive.blocks import Method
from ddf.archive.pictures import is_map

_MAPS = 50
_DECODED, _COMPARED = 1 << 26, 1 << 24  # pixels to decode, and to compress with other codecs, for _MAPS maps
_LARGEST = 1 << 25  # pixels of a map; the model codes larger ones in bands


class MapIndex:
    """The label maps of an archive, without decoding them.

    Arguments:
        archive: The archive.

    Examples:
        >>> from ddf.archive import ArchiveWriter
        >>> with ArchiveWriter("maps.ddf", model=None) as writer:
        ...     writer.add(np.zeros((4, 5), dtype=np.uint8), "zeros")
        ...     writer.add(np.arange(6, dtype=np.int32), "numbers")
        >>> index = MapIndex(Archive("maps.ddf"))
        >>> index.numbers, index.pixels
        (array([0]), array([20]))
    """

    def __init__(self, archive: Archive) -> None:
        index = archive.contents.index
        table = index.table
        kinds, kind_of, counts = table.kinds, np.array(table.kind_of, np.int64), np.array(table.counts, np.int64)
        is_file = np.array([False, *map(_is_file, index.formats)])[table.formats or [0] * table.arrays]
        shown = np.array([is_map(kind.shape, None) for kind in kinds], np.bool_)[kind_of]
        shapes = np.array([kind.shape if is_map(kind.shape, None) else (0, 0) for kind in kinds], np.int64)
        blocks = np.repeat(np.arange(len(counts)), counts)
        self.files = int(is_file.sum())  # arrays that are files stored byte for byte
        self.raw_size = sum(kind.size * count for kind, _, count, _ in table.blocks())  # bytes of all arrays
        self.numbers = np.flatnonzero(shown[blocks] & ~is_file)  # of the arrays that are maps
        self.blocks = blocks[self.numbers]  # the block of each map
        self.shapes = shapes.reshape(-1, 2)[kind_of[self.blocks]]  # (maps, 2)
        self.pixels = self.shapes.prod(axis=1)
        self.sizes = np.array(table.sizes, np.float64)[self.blocks] / counts[self.blocks]  # bytes of each map
        self.shared = bool((counts[self.blocks] > 1).any())  # whether some maps share a block
        self.decoded = np.array([kind.size // kind.itemsize for kind in kinds], np.int64)[kind_of] * counts
        self.by_codec = np.array([kind.method == Method.CODEC for kind in kinds], np.bool_)[kind_of]

    def sample(self, max_maps: int) -> tuple[list[int], list[int]]:
        """Return a random sample of the maps, and those of them to compress with other codecs.

        The number of pixels is also limited; this limit grows with `max_maps`.

        Arguments:
            max_maps: The largest number of maps.

        Returns:
            Indices into `numbers`.
        """
        blocks, firsts, counts = np.unique(self.blocks, return_index=True, return_counts=True)
        pixels_left, compared_left = (limit * max(1.0, max_maps / _MAPS) for limit in (_DECODED, _COMPARED))
        least = self.decoded[blocks].min(initial=_LARGEST)
        per_block = max_maps if max_maps >= len(self.numbers) else -(-max_maps // len(blocks))
        found: list[int] = []
        compared: list[int] = []
        for i in np.random.default_rng(0).permutation(len(blocks)).tolist():
            if len(found) == max_maps or pixels_left < least:
                break
            first, pixels = int(firsts[i]), int(self.pixels[firsts[i]])
            if pixels > _LARGEST or self.decoded[blocks[i]] > pixels_left:
                continue
            pixels_left -= int(self.decoded[blocks[i]])
            wanted = min(per_block, int(counts[i]), max_maps - len(found))
            for step in range(wanted):
                found.append(first + step * int(counts[i]) // wanted)
                if pixels <= compared_left:
                    compared_left -= pixels
                    compared.append(found[-1])
        return sorted(found), sorted(compared)

    def costly_blocks(self, most: int) -> list[int]:
        """Return the blocks whose maps take the most bytes on average, except those with maps too large to draw.

        Arguments:
            most: The largest number of blocks.
        """
        blocks, firsts = np.unique(self.blocks, return_index=True)
        found: list[int] = []
        left = _DECODED
        for i in np.argsort(-self.sizes[firsts], kind="stable"):
            if len(found) == most:
                break
            if self.pixels[firsts[i]] <= _LARGEST and self.decoded[blocks[i]] <= left:
                found.append(int(blocks[i]))
                left -= int(self.decoded[blocks[i]])
        return found


def _is_file(data: bytes) -> bool:
    try:
        return FileFormat.from_bytes(data).type == "file"
    except ValueError:  # written by a newer version
        return False
