"""Print a hash of compressed maps, to compare machines, versions and instruction sets.

    python benchmarks/same_bytes.py [MAPS.npy [MODEL]]

By default, compresses 24 synthetic maps with the pretrained model. Also checks that every map decodes correctly. Needs
only NumPy and numba, and runs from a checkout with PYTHONPATH=src. Set NUMBA_CPU_NAME and NUMBA_CPU_FEATURES to choose
the instruction set.
"""

import hashlib
import platform
import sys
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from ddf.labelmaps import CausalFlow, pretrained


def main() -> None:
    if len(sys.argv) > 1:
        maps = list(np.load(sys.argv[1]))
    else:
        rows, columns = np.mgrid[:120, :160]
        maps = [((rows * (i + 3) // 7 + columns * 5 // (i + 2)) // 23 % (i + 2)).astype(np.uint8) for i in range(24)]
    model = CausalFlow.load(sys.argv[2]) if len(sys.argv) > 2 else pretrained()
    for threads in (1, 4):
        with ThreadPoolExecutor(threads) as pool:
            codes = list(pool.map(model.encode, maps))
        for code, one in zip(codes, maps, strict=True):
            assert np.array_equal(model.decode(code or b"", one.shape, one.dtype), one)
        digest = hashlib.sha256(b"".join(code or b"" for code in codes)).hexdigest()[:16]
        print(
            f"{digest}  {sum(len(code or b'') for code in codes)} bytes, {threads} threads, Python "
            f"{platform.python_version()}, NumPy {np.__version__}, numba {numba.__version__}, {platform.machine()}"
        )


if __name__ == "__main__":
    main()
