"""Measure flows on PyTorch as codecs: the cost of integer arithmetic and of actual bytes over the float flow.

    python benchmarks/flow_codecs.py mnist-split --mnist FOLDER --runs RUNS --device cuda
    python benchmarks/flow_codecs.py cityscapes-ordered --cityscapes FILE --runs RUNS --device cuda

Trains the row's denoising or ordered flow with seed 0 unless RUNS contains it, exports it, compresses the complete test
set in blocks and one by one, and decodes it on the device and on the CPU.
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np
import torch

from ddf.archive import Archive, ArchiveWriter
from ddf.checkpoint import flow_from_bytes
from ddf.cli.reproduce import SOURCES
from ddf.exact import IntegerFlow, export
from ddf.experiments import EXPERIMENTS, run_experiment
from ddf.experiments.results import load_data
from ddf.experiments.rows import ORDERED
from ddf.training import TrainingConfig

FINE_TUNING = {"mnist": (128, 2), "cityscapes": (64, 8)}  # batch size and epochs


def archive(model: IntegerFlow, maps: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], block: int) -> bytes:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, maps_per_block=block, verify=False) as writer:
        for part in maps:
            writer.add(part)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=["mnist-split", "cityscapes-split", *ORDERED])
    parser.add_argument("--mnist")
    parser.add_argument("--cityscapes")
    parser.add_argument("--static-mnist")
    parser.add_argument("--cityscapes-128x256")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the run (default: 0)")
    parser.add_argument("--blocks-only", action="store_true", help="do not code maps one by one")
    parser.add_argument("--decode-cpu", type=int, metavar="N", help="also decode the first N maps on the CPU")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--block", type=int, default=500)
    parser.add_argument("--count", type=int, help="use only the first N test maps")
    parser.add_argument("--cpu", action="store_true", help="decode on the CPU as well")
    options = parser.parse_args()
    model_name = "of" if options.row in ORDERED else "ddf"
    experiment = EXPERIMENTS[options.row, model_name]
    data = load_data(experiment.row.data, {name: getattr(options, name.replace("-", "_")) for name in SOURCES})
    run_experiment(experiment, options.seed, data, options.runs, options.device)
    place = options.runs / options.row / model_name / f"seed-{options.seed}"
    flow = flow_from_bytes((place / "run" / "flow.safetensors").read_bytes(), "the flow").to(options.device)
    test = torch.as_tensor(data["test"])[: options.count]
    bits = float(flow.bits_per_dim(test.to(flow.device), batch_size=500).mean())
    print(f"{options.row}: {len(test)} test maps, float flow {bits:.5f} bits per dimension", flush=True)
    path = place / "integer.safetensors"
    if not path.exists():
        start = time.monotonic()
        config = None
        if experiment.row.data in FINE_TUNING and model_name == "ddf":
            batch_size, epochs = FINE_TUNING[experiment.row.data]
            config = TrainingConfig(
                batch_size=batch_size, learning_rate=1e-4, max_epochs=epochs, patience=epochs, cosine=True, draws=2,
                precision="float32",
            )  # fmt: skip
        model = export(flow, data, config=config, device=options.device)
        model.save(path)
        print(f"export: {time.monotonic() - start:.0f} s, {path.stat().st_size} bytes", flush=True)
    model = IntegerFlow.from_bytes(path.read_bytes())
    maps = test.numpy().astype(np.uint8)[:, 0]
    integer = float(model.to(options.device).bits_per_dim(test, batch_size=500).mean())
    for block in (options.block,) if options.blocks_only else (options.block, 1):
        start = time.monotonic()
        made = archive(model.to(options.device), maps, block)
        seconds = time.monotonic() - start
        real = 8 * len(made) / maps.size
        print(
            f"{'in blocks' if block > 1 else 'one by one'}: integer flow {integer:.5f} ({integer / bits - 1:+.2%}), "
            f"actual bytes {real:.5f} ({real / bits - 1:+.2%}), {seconds:.0f} s"
        )
        (place / f"test-{block}.ddf").write_bytes(made)
        if options.decode_cpu:
            few = archive(model.to(options.device), maps[: options.decode_cpu], options.decode_cpu)
            start = time.monotonic()
            back = [array for _, array in Archive(few, model.to("cpu")).items()]
            wrong = sum(not np.array_equal(one, two) for one, two in zip(back, maps, strict=False))
            print(f"decoded on the CPU: {wrong} of {len(back)} wrong, {time.monotonic() - start:.0f} s", flush=True)
        for device in [options.device, *(["cpu"] if options.cpu else [])]:
            start = time.monotonic()
            back = [array for _, array in Archive(made, model.to(device)).items()]
            wrong = sum(not np.array_equal(one, two) for one, two in zip(back, maps, strict=True))
            print(f"decoded on {device}: {wrong} of {len(maps)} wrong, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
