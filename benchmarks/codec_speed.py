"""How many pixels a second the codec takes, from arrays to bytes and back.

    python benchmarks/codec_speed.py MAPS.npy --model MODEL [--device cuda] [--processes 4] [--batch 16] [--repeat 12]

Codes the maps (maps, height, width) `--repeat` times over in one archive in memory, without verification unless
`--verify` is said, and decodes it. Prints the steady speed, between the moment when as much is under way as ever will
be and the moment when the last map is given out, and that of the whole, with the start of all processes.
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np

from ddf.codec import Archive, ArchiveWriter, IntegerFlow
from ddf.codec.parallel import usual_batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--batch", type=int, help="maps coded together; else what is usual for their size")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--verify", action="store_true", help="encode as it is done by default, with a look back")
    options = parser.parse_args()
    maps = np.concatenate([np.load(options.maps)] * options.repeat)
    pixels = maps[0].size / 1e6
    model = IntegerFlow.load(options.model).to(options.device)
    options.batch = options.batch or usual_batch(model, maps[0].size)
    under_way = 5 * options.processes * options.batch  # each process works on one of five batches, and four wait
    if len(maps) < 3 * under_way:
        parser.error(f"{len(maps)} maps are too few to find a steady speed of {options.processes} processes; --repeat")
    settings = {"batch_size": options.batch, "processes": options.processes, "verify": options.verify}
    buffer = io.BytesIO()
    times = [time.perf_counter()]
    with ArchiveWriter(buffer, model, **settings) as writer:
        for number, part in enumerate(maps):
            if number == under_way:
                times.append(time.perf_counter())
            writer.add(part)
        times.append(time.perf_counter())
    times.append(time.perf_counter())
    report("encode", options, len(maps) * pixels, (len(maps) - under_way) * pixels, times)

    archive = Archive(buffer.getvalue(), model)
    wrong = 0
    times = [time.perf_counter()]
    for number, (_, array) in enumerate(archive.items(options.batch, options.processes)):
        if number in (under_way, len(maps) - under_way):
            times.append(time.perf_counter())
        wrong += not np.array_equal(array, maps[number])
    times.append(time.perf_counter())
    report("decode", options, len(maps) * pixels, (len(maps) - 2 * under_way) * pixels, times)
    print(f"{wrong} of {len(maps)} maps wrong")
    raise SystemExit(wrong > 0)


def report(what: str, options: argparse.Namespace, all_pixels: float, steady_pixels: float, times: list[float]) -> None:
    start, first, last, end = times
    print(
        f"{what}, {options.model.stem} on {options.device}, {options.processes} processes, batches of {options.batch}: "
        f"{steady_pixels / (last - first):.2f} Mpixel/s; {all_pixels / (end - start):.2f} in all ({end - start:.1f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
