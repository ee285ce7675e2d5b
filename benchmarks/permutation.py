"""Compare the speed and memory of `rank` and `unrank` with the straightforward method.

python benchmarks/permutation.py            # the sizes of the table in benchmarks/README.md
python benchmarks/permutation.py --quick    # a hundredth of the symbols
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import ddf

CASES = (
    # classes, top, symbols, symbols for the straightforward method, whose time is scaled up
    (2, 2, 10**7, 10**7),
    (8, 4, 10**7, 10**7),
    (91, 91, 10**7, 10**5),
    (91, 4, 10**6, 10**6),
    (256, 4, 10**6, 10**6),
)


def straightforward_argsort_top(theta: Tensor, top: int) -> Tensor:
    """Swap the largest unsorted entry to the front `top` times, by argmax and scatter."""
    order = torch.arange(theta.shape[1]).expand_as(theta).contiguous()
    theta = theta.clone()
    for i in range(top):
        origin = theta[:, i:].argmax(1, keepdim=True) + i
        for table in (theta, order):
            first, best = table[:, i : i + 1].clone(), table.gather(1, origin)
            table.scatter_(1, origin, first)
            table[:, i : i + 1] = best
    return order


def straightforward_rank(x: Tensor, theta: Tensor, top: int) -> Tensor:
    order = straightforward_argsort_top(theta, top)
    positions = torch.empty_like(order).scatter_(1, order, torch.arange(theta.shape[1]).expand_as(order))
    return positions.gather(1, x.long()[:, None])[:, 0].to(x.dtype)


def straightforward_unrank(z: Tensor, theta: Tensor, top: int) -> Tensor:
    return straightforward_argsort_top(theta, top).gather(1, z.long()[:, None])[:, 0].to(z.dtype)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the shortest time of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def compare(classes: int, top: int, n: int, n_straightforward: int) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(n, classes, generator=generator)
    few = theta[:n_straightforward].contiguous()
    for dtype in (torch.uint8, torch.int64):
        x = torch.randint(classes, (n,), generator=generator, dtype=dtype)
        pairs = ((ddf.rank, straightforward_rank), (ddf.unrank, straightforward_unrank))
        for ours, straightforward in pairs:
            x_few = x[:n_straightforward]
            assert torch.equal(ours(x_few, few, top), straightforward(x_few, few, top))
            slow = seconds(lambda: straightforward(x_few, few, top), 2) * n / n_straightforward  # noqa: B023
            fast = seconds(lambda: ours(x, theta, top), 4)  # noqa: B023
            print(
                f"{classes:>4} {top:>4} {n:>9,} {str(dtype)[6:]:>6} {ours.__name__:>7}"
                f" {slow:>10.2f} s {fast:>8.3f} s {slow / fast:>7.1f}×",
                flush=True,
            )


def extra_memory(classes: int, top: int, n: int) -> str:
    """Return the peak extra memory of `unrank`, including its result, in a separate process (Linux)."""
    program = (
        "import re, torch, ddf; from pathlib import Path;"
        "status = lambda key: int(re.search(key + r':\\s+(\\d+)', Path('/proc/self/status').read_text())[1]);"
        f"theta = torch.randn({n}, {classes}); z = torch.randint({classes}, ({n},), dtype=torch.uint8);"
        f"ddf.unrank(z[:1000], theta[:1000], {top}); Path('/proc/self/clear_refs').write_text('5');"
        f"before = status('VmRSS'); ddf.unrank(z, theta, {top}); print((status('VmHWM') - before) / 1024)"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return f"{float(printed):.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="use a hundredth of the symbols")
    scale = 100 if parser.parse_args().quick else 1
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32 predictions, best of 4 runs")
    print("   K  top   symbols  dtype      of  straightforward    ddf   faster")
    for classes, top, n, n_straightforward in CASES:
        compare(classes, top, n // scale, min(n // scale, n_straightforward))
    print("\nextra memory of unrank, including its result")
    for classes, top, n, _ in CASES:
        n //= scale
        print(
            f"{classes:>4} {top:>4} {n:>9,} symbols: {extra_memory(classes, top, n)}, for {n * classes * 4 >> 20} MiB"
        )


if __name__ == "__main__":
    main()
