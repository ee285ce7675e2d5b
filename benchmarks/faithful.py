"""Train the faithful rows of the paper's table, several at once on one GPU, within a time budget.

    python benchmarks/faithful.py --out runs --mnist data/mnist --cityscapes data/cityscapes_32x64.npz --seconds 560

Interrupted experiments resume when the same command runs again. `ddf reproduce` can read the folder `--out`.
With `--pack FOLDER`, all results and as many finished layers as fit are packed into a few tar files, from which
`--resume` continues on another machine. The toy rows train on the CPU, which is as fast for their small steps.
"""

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from ddf.data import DataSet, Resampled
from ddf.data.dataset import Data
from ddf.experiments.results import is_finished, load_data, run_experiment
from ddf.experiments.rows import EXPERIMENTS, FAITHFUL, MODELS, Experiment
from ddf.spec import FlowSpec

SECONDS_TO_STOP = 30  # time for the workers to save their states
SECONDS_TO_PACK = 8
TAR_BYTES = 15 << 20
ROWS = (  # the longest first; rows in the order of appendix C follow those of the paper's table
    "mnist-split-faithful",
    "cityscapes-split-faithful",
    "mnist-faithful",
    "cityscapes-faithful",
    "eight-gaussians-faithful",
    "mnist-split-a-faithful",
    "cityscapes-split-a-faithful",
)
assert sorted(ROWS) == sorted(FAITHFUL)

Job = tuple[str, str, int]


def queue(seeds: int, rows: tuple[str, ...]) -> list[Job]:
    """Return all experiments: the first seed of every row, then the other seeds, with appendix C last."""
    jobs = [(row, model, seed) for seed in range(seeds) for row in ROWS if row in rows for model in MODELS]
    return sorted(jobs, key=lambda job: (job[2] > 0 and "-a-" in job[0], job[2]))


# ---- A worker --------------------------------------------------------------------------------------------------------


def work(job: Job, options: argparse.Namespace) -> None:
    """Train and test one experiment, and print its result."""
    row, model, seed = job
    experiment = EXPERIMENTS[row, model]
    sources: dict[str, str | os.PathLike[str] | None] = {"mnist": options.mnist, "cityscapes": options.cityscapes}
    data = load_data(experiment.row.data, sources, seed, experiment.row.augment)
    if options.tiny:
        experiment, data = shrunk(experiment), shrunk_data(data)
    start = time.monotonic()
    result = run_experiment(experiment, seed, data, options.out, options.device, progress=False)
    print(
        f"{row} {model} seed {seed}: {result.test_bits:.4f} bits per dimension on the test set, "
        f"{result.validation_bits:.4f} in validation, {sum(part['epochs'] for part in result.parts)} epochs over "
        f"{len(result.parts)} parts, {result.train_seconds:.0f} s of training, {time.monotonic() - start:.0f} s here",
        flush=True,
    )


def shrunk(experiment: Experiment) -> Experiment:
    """Return the same experiment with tiny nets and a few epochs."""
    text = experiment.spec.to_json()
    for size in ('"blocks": 8', '"blocks": 15', '"hidden": 512', '"hidden": 256'):
        text = text.replace(size, '"blocks": 1' if "blocks" in size else '"hidden": 16')
    config = replace(experiment.config, max_epochs=4, draws=2)
    return replace(experiment, spec=FlowSpec.from_json(text), config=config)


def shrunk_data(data: DataSet) -> DataSet:
    """Return the first samples of every split."""

    def first(split: Data) -> Data:
        return Resampled(split.stored[:512], split.draw) if isinstance(split, Resampled) else split[:512]

    return replace(data, splits={name: first(split) for name, split in data.splits.items()})


# ---- The scheduler ---------------------------------------------------------------------------------------------------


def schedule(jobs: list[Job], options: argparse.Namespace, typed: list[str], deadline: float) -> None:
    """Keep all workers busy until the queue is empty or time runs out, then let them save their states."""
    slots = {"cpu": options.cpu_workers, options.device: options.workers}
    waiting = [job for job in jobs if not is_finished(EXPERIMENTS[job[0], job[1]], job[2], options.out)]
    print(f"{len(jobs) - len(waiting)} of {len(jobs)} experiments are finished", flush=True)
    running: dict[subprocess.Popen[bytes], tuple[Job, str]] = {}
    try:
        while (waiting or running) and time.monotonic() < deadline:
            for process in [process for process in running if process.poll() is not None]:
                job, _ = running.pop(process)
                if process.returncode:
                    print(f"{' '.join(map(str, job))}: failed with exit status {process.returncode}", flush=True)
            for job in list(waiting):
                device = "cpu" if "eight-gaussians" in job[0] and options.cpu_workers else options.device
                if sum(where == device for _, where in running.values()) < slots[device]:
                    waiting.remove(job)
                    running[start(job, device, typed, options)] = job, device
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    stop(list(running))
    for job, _ in running.values():
        if not is_finished(EXPERIMENTS[job[0], job[1]], job[2], options.out):
            print(f"{' '.join(map(str, job))}: interrupted", flush=True)
    print(f"{len(waiting)} experiments were not started", flush=True)


def start(job: Job, device: str, typed: list[str], options: argparse.Namespace) -> "subprocess.Popen[bytes]":
    """Start a worker: this script with the same options and one job."""
    threads = max(1, (os.cpu_count() or 1) // (options.workers + options.cpu_workers))
    command = [sys.executable, __file__, *typed, "--device", device, "--job", *map(str, job)]
    # A separate process group, so that Ctrl-C reaches only the scheduler.
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": str(threads)}, preexec_fn=os.setpgrp)


def stop(running: list["subprocess.Popen[bytes]"]) -> None:
    """Interrupt workers so that they save their states, and kill those that take too long."""
    for process in running:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + SECONDS_TO_STOP - SECONDS_TO_PACK
    for process in running:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # its last saved state is complete
            process.wait()


# ---- Packing ---------------------------------------------------------------------------------------------------------


def pack(out: Path, folder: Path, most: int) -> None:
    """Pack results and the finished layers of unfinished experiments into at most `most` tar files."""
    tars: list[list[Path]] = [[] for _ in range(most)]
    room = [TAR_BYTES - (16 << 10)] * most  # the end of a tar is padded
    left_out = 0
    for group in groups(out):
        for path in group:
            size = path.stat().st_size + 2048  # including header and padding
            fits = [i for i in range(most) if size <= room[i]]
            if not fits:
                left_out += 1
                break  # the files after it need it
            tars[fits[0]].append(path)
            room[fits[0]] -= size
    folder.mkdir(parents=True, exist_ok=True)
    for i, paths in enumerate(tars):
        if paths:
            with tarfile.open(folder / f"faithful-{i}.tar", "w") as file:
                for path in paths:
                    file.add(path, path.relative_to(out))
    print(f"packed {out} into {folder}; {left_out} runs are not completely packed", flush=True)


def groups(out: Path) -> Iterator[list[Path]]:
    """Yield what to pack, most important first, as lists of files in which each file needs those before it."""
    places = sorted(path for path in out.glob("*/*/seed-*"))
    finished = [place for place in places if (place / "result.json").exists()]
    yield from (
        [path for path in (place / "result.json", place / "samples.npz") if path.exists()] for place in finished
    )
    for place in places:
        run = place / "run"
        if place not in finished and (run / "settings.json").exists() and (run / "metrics.jsonl").exists():
            parts = sorted((run / "parts").glob("*.safetensors"))
            state = [path for path in [run / "state.safetensors"] if path.exists()]
            yield [run / "settings.json", run / "metrics.jsonl", *parts, *state]


def unpack(tars: list[Path], out: Path) -> None:
    """Unpack what `pack` wrote, unless the folder is already further ahead."""
    have = {place for place in out.glob("*/*/seed-*") if place.is_dir()}
    out.mkdir(parents=True, exist_ok=True)
    for path in tars:
        with tarfile.open(path) as file:
            members = [member for member in file if not have.intersection((out / member.name).parents)]
            file.extractall(out, members, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--mnist", type=Path, help="folder with the MNIST idx files")
    parser.add_argument("--cityscapes", type=Path, help="cityscapes_32x64.npz or the folder with gtFine")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, metavar="ROW")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=560, help="total time (default: 560)")
    parser.add_argument("--workers", type=int, default=5, help="concurrent experiments on the device (default: 5)")
    parser.add_argument("--cpu-workers", type=int, default=2, help="concurrent toy experiments on the CPU (default: 2)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="pack the runs into tar files at the end")
    parser.add_argument("--tars", type=int, default=4, help="maximum number of tar files of 15 MiB (default: 4)")
    parser.add_argument("--resume", nargs="*", type=Path, default=[], metavar="TAR", help="unpack these first")
    parser.add_argument("--tiny", action="store_true", help="use tiny nets and data, to test the script")
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        row, model, seed = options.job
        try:
            work((row, model, int(seed)), options)
        except KeyboardInterrupt:
            sys.exit(130)
        return
    began = time.monotonic()
    unpack(options.resume, options.out)
    schedule(
        queue(options.seeds, tuple(options.rows)), options, sys.argv[1:], began + options.seconds - SECONDS_TO_STOP
    )
    if options.pack:
        pack(options.out, options.pack, options.tars)


if __name__ == "__main__":
    main()
