"""Measure how the codec for label maps scales: threads, small maps, single maps.

python benchmarks/label_map_speed.py MAPS.npy [MODEL …]     maps (maps, height, width) of at least 256 × 256
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ddf.labelmaps import CausalFlow, pretrained


def seconds(call: Callable[[], Any], repeats: int = 3) -> float:
    """Return the shortest time of several calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def measure(name: str, model: CausalFlow, maps: np.ndarray[Any, Any], threads: int) -> None:
    """Print the speed of encoding and decoding maps in several threads."""
    decode = partial(model.decompress, shape=maps[0].shape, dtype=maps.dtype)
    with ThreadPoolExecutor(threads) as pool:
        codes = [code or b"" for code in pool.map(model.compress, maps)]
        times = (
            seconds(lambda: list(pool.map(model.compress, maps))),
            seconds(lambda: list(pool.map(decode, codes))),
        )
    print(f"  {name}: {' / '.join(f'{maps.size / spent / 1e6:.1f}' for spent in times)} Mpixel/s")


def main() -> None:
    maps = np.load(sys.argv[1])
    squares = np.ascontiguousarray(maps[:, 50:306, 100:356])
    tiny = np.ascontiguousarray(maps[len(maps) // 2, 100:132, 100:132])
    for path in sys.argv[2:] or [""]:
        model = CausalFlow.from_bytes(Path(path).read_bytes()) if path else pretrained()
        print(path or "the pretrained model")
        for name, some in (("original size", maps), ("256 × 256", squares)):
            for threads in (1, 2):
                measure(f"{name}, {threads} threads", model, some, threads)
        code = model.compress(tiny)
        assert code is not None
        encode = seconds(partial(model.compress, tiny), 50)
        decode = seconds(partial(model.decompress, code, tiny.shape, tiny.dtype), 50)
        print(f"  one map of 32 × 32: {1e3 * encode:.2f} / {1e3 * decode:.2f} ms")


if __name__ == "__main__":
    main()
