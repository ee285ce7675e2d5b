"""Print hashes of compressed maps and of archives, to compare machines, versions and instruction sets.

    python benchmarks/same_bytes.py [MAPS.npy [MODEL]]

By default, compresses 24 synthetic maps with the pretrained model. Also checks that every map decodes correctly. Needs
only NumPy and numba, and runs from a checkout with PYTHONPATH=src. Set NUMBA_CPU_NAME and NUMBA_CPU_FEATURES to choose
the instruction set.
"""

import hashlib
import io
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np

from ddf.archive import Archive, ArchiveWriter, FileFormat
from ddf.labelmaps import CausalFlow, pretrained


def archive_of(maps: list[np.ndarray[Any, Any]], model: CausalFlow, threads: int) -> str:
    """Return a hash of archives of all kinds of blocks, after reading them."""
    found = hashlib.sha256()
    others: list[np.ndarray[Any, Any]] = [
        np.arange(-3, 4),
        np.zeros((40, 3, 50), np.int32),
        np.array(5, np.int8),
        np.zeros((0, 3), ">u2"),
    ]
    for embed, per_block in ((False, 1), (True, 5)):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, model, embed, per_block, threads=threads, sha256=True) as writer:
            for i, one in enumerate([*maps, *others]):
                writer.add(one, f"frame_{i:06}.png" if i % 7 else "", file=FileFormat("npy", fortran=bool(i % 2)))
        for one, again in zip([*maps, *others], Archive(buffer.getvalue(), model).values(), strict=True):
            assert np.array_equal(one, again)
        found.update(buffer.getvalue())
    return found.hexdigest()[:16]


def main() -> None:
    if len(sys.argv) > 1:
        maps = list(np.load(sys.argv[1]))
    else:
        rows, columns = np.mgrid[:120, :160]
        maps = [((rows * (i + 3) // 7 + columns * 5 // (i + 2)) // 23 % (i + 2)).astype(np.uint8) for i in range(24)]
    model = CausalFlow.from_bytes(Path(sys.argv[2]).read_bytes()) if len(sys.argv) > 2 else pretrained()
    for threads in (1, 4):
        with ThreadPoolExecutor(threads) as pool:
            codes = list(pool.map(model.compress, maps))
        for code, one in zip(codes, maps, strict=True):
            assert np.array_equal(model.decompress(code or b"", one.shape, one.dtype), one)
        digest = hashlib.sha256(b"".join(code or b"" for code in codes)).hexdigest()[:16]
        archive = archive_of(maps, model, threads)
        print(
            f"{digest}  {sum(len(code or b'') for code in codes)} bytes, archive {archive}, {threads} threads, Python "
            f"{platform.python_version()}, NumPy {np.__version__}, numba {numba.__version__}, {platform.machine()}"
        )


if __name__ == "__main__":
    main()
