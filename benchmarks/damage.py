"""Damages an archive at random, many times over: `python benchmarks/damage.py MAPS.npy --model MODEL [--rounds 10000]`.

Every damaged archive is read by name (five arrays, drawn anew), from first to last, and by `recover`. What comes back
must be what was put in under that name, or nothing with an error of the codec's; anything else ends the run. The memory
and the longest time are shown.
"""

import argparse
import io
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddf.archive import Archive, ArchiveWriter, Codec, DamagedArchiveError, WrongModelError, recover
from ddf.modelfile import load

Array = np.ndarray[Any, Any]


def damage(data: bytes, generator: np.random.Generator) -> tuple[str, bytes]:
    """One of eight ways to ruin a file."""
    kind = int(generator.integers(8))
    size = len(data)
    first, second = sorted(int(place) for place in generator.integers(0, size, 2))
    some = min(size - first, int(generator.integers(1, 200)))
    noise = generator.integers(0, 256, some, dtype=np.uint8).tobytes()
    if kind == 0:
        return "one bit", data[:first] + bytes([data[first] ^ 1 << int(generator.integers(8))]) + data[first + 1 :]
    if kind == 1:
        spoilt = bytearray(data)
        for place in generator.integers(0, size, int(generator.integers(2, 20))):
            spoilt[place] = int(generator.integers(256))
        return "some bytes", bytes(spoilt)
    if kind == 2:
        return "cut off", data[:first]
    if kind == 3:
        return "taken out", data[:first] + data[first + some :]
    if kind == 4:
        return "put in", data[:first] + noise + data[first:]
    if kind == 5:
        return "overwritten", data[:first] + noise + data[first + some :]
    if kind == 6:
        return "zeros", data[:first] + bytes(some) + data[first + some :]
    return "repeated", data[:second] + data[first : min(second, first + 500)] + data[second:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20, help="so many maps in the archive")
    parser.add_argument("--size", type=int, default=24, help="rows and columns of each, cut out of the maps")
    parser.add_argument("--block", type=int, default=1)
    parser.add_argument("--others", type=int, default=1, help="so many arrays that are not for the model")
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load(options.model)
    assert isinstance(model, Codec)
    size = options.size
    maps = {f"{i}.png": part[-size:, :size] for i, part in enumerate(np.load(options.maps)[: options.count])}
    generator = np.random.default_rng(options.seed)
    for i in range(options.others):  # some of which can be compressed
        shape = (int(generator.integers(100, 600)),)
        maps[f"other {i}"] = generator.integers(0, 1 << 16 if i % 2 else 5, shape, dtype=np.int32)
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, maps_per_block=options.block) as archive:
        for name, part in maps.items():
            archive.add(part, name)
    data = buffer.getvalue()
    read = refused = recovered = 0
    slowest = 0.0
    kinds: dict[str, int] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(options.rounds):
        how, spoilt = damage(data, generator)
        kinds[how] = kinds.get(how, 0) + 1
        start = time.perf_counter()
        found: list[tuple[str, Array]] = []
        try:
            opened = Archive(spoilt, model)
            for name in generator.permutation(list(maps))[:5].tolist():
                try:
                    found.append((name, opened[name]))
                    read += 1
                except (DamagedArchiveError, WrongModelError, KeyError):
                    refused += 1
            for item in opened.items(threads=1):
                found.append(item)
        except (DamagedArchiveError, WrongModelError):
            pass
        try:
            saved = recover(spoilt, model).arrays
        except (DamagedArchiveError, WrongModelError):  # there is nothing to recognise it by
            saved = []
        recovered += len(saved)
        for name, array in (*found, *saved):
            if name not in maps or not np.array_equal(array, maps[name]) or array.dtype != maps[name].dtype:
                Path("wrong.ddf").write_bytes(spoilt)
                raise SystemExit(f"round {i} ({how}): {name} is not what it was; see wrong.ddf")
        slowest = max(slowest, time.perf_counter() - start)
        if i % 500 == 499 or i + 1 == options.rounds:
            memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            whole = (i + 1) * len(maps)
            print(
                f"{i + 1} damaged archives of {len(data)} bytes and {len(maps)} arrays: by name {read} right, "
                f"{refused} refused, 0 wrong; recovered {recovered / whole:.1%}; slowest {slowest:.2f} s, "
                f"memory + {memory} MiB; {kinds}",
                flush=True,
            )


if __name__ == "__main__":
    main()
