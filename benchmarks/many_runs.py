"""Run many experiments of `ddf reproduce`, several at once on one GPU, within a time budget.

    python benchmarks/many_runs.py mnist-split cityscapes/ddf --out runs --mnist data/mnist \\
        --cityscapes data/cityscapes_32x64.npz --seconds 560

Interrupted experiments resume when the same command is run again. `ddf reproduce --runs` can read the folder `--out`.
With `--pack FOLDER`, all results and as many finished layers as fit are packed into a few tar files, from which
`--resume` continues on another machine. The toy rows are trained on the CPU, which is just as fast for such small
steps.

Denoising splits (`ds`) and split priors without couplings (`sp`) train the same nets from the same seeds, so the nets
of a finished `sp` run are reused for `ds`.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from ddf.cli.reproduce import SOURCES
from ddf.data import DataSet, Resampled
from ddf.data.dataset import Data
from ddf.experiments.results import is_finished, load_data, run_experiment
from ddf.experiments.rows import EXPERIMENTS, ROWS, Experiment
from ddf.plain import to_plain
from ddf.spec import FlowSpec

SECONDS_TO_STOP = 30  # time for the workers to save their states
SECONDS_TO_PACK = 8
TAR_BYTES = 15 << 20

Job = tuple[str, str, int]


def queue(chosen: list[str], seeds: list[int]) -> list[Job]:
    """Return the jobs for rows ("mnist") and single models ("mnist/ddf"), ordered by seed and then as given.

    Consecutive names with the same seeds of their own ("mnist/ddf:1,2") form a group, which is ordered separately.
    """
    jobs: dict[Job, None] = {}
    for own, names in itertools.groupby(chosen, lambda name: name.partition(":")[2]):
        experiments: dict[tuple[str, str], None] = {}
        for name in names:
            row, _, model = name.partition(":")[0].partition("/")
            found = [key for key in EXPERIMENTS if key[0] == row and model in ("", key[1])]
            if not found:
                raise SystemExit(
                    f"experiment {name} does not exist; choose from {', '.join(ROWS)}, with /MODEL for a single model"
                )
            experiments |= dict.fromkeys(found)
        shared = {(row, "ds") for row, model in experiments if model == "sp"}
        numbers = [int(seed) for seed in own.split(",")] if own else seeds
        jobs |= dict.fromkeys((*key, seed) for seed in numbers for key in experiments if key not in shared)
    return list(jobs)


# ---- A worker --------------------------------------------------------------------------------------------------------


def work(job: Job, options: argparse.Namespace) -> None:
    """Train and test an experiment and any that share its nets, and print the results."""
    row, _, seed = job
    sources: dict[str, str | os.PathLike[str] | None] = {
        name: getattr(options, name.replace("-", "_")) for name in SOURCES
    }
    data = load_data(ROWS[row].data, sources, seed, ROWS[row].augment)
    if options.tiny:
        data = shrunk_data(data)
    for model in models_of(job, options):
        start = time.monotonic()
        experiment = EXPERIMENTS[row, model]
        if options.tiny:
            experiment = shrunk(experiment)
        if model == "ds" and (row, "sp") in EXPERIMENTS:
            share_nets(EXPERIMENTS[row, "sp"], experiment, seed, options.out)
        result = run_experiment(experiment, seed, data, options.out, options.device, progress=False)
        print(
            f"{row} {model} seed {seed}: {result.test_bits:.4f} bits per dimension on the test set, "
            f"{result.validation_bits:.4f} on the validation set, "
            f"{sum(part['epochs'] for part in result.parts)} epochs in "
            f"{len(result.parts)} parts, {result.train_seconds:.0f} s of training, "
            f"{time.monotonic() - start:.0f} s in this session",
            flush=True,
        )


def models_of(job: Job, options: argparse.Namespace) -> list[str]:
    """Return the models that a job trains: one, or two that share their nets."""
    row, model, _ = job
    names = (name.partition(":")[0] for name in options.experiments)
    chosen = {name for name in names if name.partition("/")[0] == row}
    return ["sp", "ds"] if model == "sp" and chosen & {row, f"{row}/ds"} else [model]


def share_nets(source: Experiment, target: Experiment, seed: int, out: Path) -> None:
    """Initialize a run with the finished nets of another run that trains the same nets."""
    old, new = (out / one.row.name / one.model / f"seed-{seed}" / "run" for one in (source, target))
    if new.exists() or not (old / "flow.safetensors").exists():
        return
    settings = json.loads((old / "settings.json").read_text())
    settings["flow"] = to_plain(target.spec.build(seed).spec)
    (new / "parts").mkdir(parents=True)
    (new / "settings.json").write_text(json.dumps(settings))
    for path in (old / "parts").iterdir():
        os.link(path, new / "parts" / path.name)
    lines = (old / "metrics.jsonl").read_text().replace("SplitPrior", "DenoisingSplit").splitlines()
    (new / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines if '"done"' not in line))


def shrunk(experiment: Experiment) -> Experiment:
    """Return the same experiment with tiny nets and a few epochs."""
    text = experiment.spec.to_json()
    for size in ('"blocks": 8', '"blocks": 15', '"hidden": 512', '"hidden": 256'):
        text = text.replace(size, '"blocks": 1' if "blocks" in size else '"hidden": 16')
    text = re.sub(r'"width": \d+', '"width": 8', text)
    text = re.sub(
        r'"(planes|blocks)": \[.*?\]', lambda found: f'"{found[1]}": [{64 if found[1] == "planes" else 1}]', text
    )
    config = replace(experiment.config, max_epochs=4, draws=2)
    return replace(experiment, spec=FlowSpec.from_json(text), config=config)


def shrunk_data(data: DataSet) -> DataSet:
    """Return the first samples of every split."""

    def first(split: Data) -> Data:
        return Resampled(split.stored[:512], split.draw, split.shape) if isinstance(split, Resampled) else split[:512]

    return replace(data, splits={name: first(split) for name, split in data.splits.items()})


def finished(job: Job, options: argparse.Namespace) -> bool:
    """Return whether all experiments of a job are finished."""
    return all(is_finished(EXPERIMENTS[job[0], model], job[2], options.out) for model in models_of(job, options))


# ---- The scheduler ---------------------------------------------------------------------------------------------------


def schedule(jobs: list[Job], options: argparse.Namespace, typed: list[str], deadline: float) -> None:
    """Keep all workers busy until the queue is empty or time runs out, then let them save their states."""
    slots = {"cpu": options.cpu_workers, options.device: options.workers}
    waiting = [job for job in jobs if not finished(job, options)]
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
        if not finished(job, options):
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


@contextlib.contextmanager
def shared_gpu(device: str) -> Iterator[None]:
    """Let processes use the GPU concurrently (with CUDA MPS, where available) instead of taking turns."""
    command = shutil.which("nvidia-cuda-mps-control")
    if device != "cuda" or command is None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([command, "-d"], check=False)
        try:
            yield
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the results must still be packed
                subprocess.run([command], input=b"quit\n", check=False, timeout=10)


# ---- Packing ---------------------------------------------------------------------------------------------------------


def pack(out: Path, folder: Path, most: int) -> None:
    """Pack results and the finished layers of unfinished experiments into at most `most` tar files."""
    tars: list[list[Path]] = [[] for _ in range(most)]
    room = [TAR_BYTES - (16 << 10)] * most  # the end of a tar file is padded
    left_out = 0
    for group in groups(out):
        for path in group:
            size = path.stat().st_size + 2048  # including header and padding
            fits = [i for i in range(most) if size <= room[i]]
            if not fits:
                left_out += 1
                break  # the files after it depend on it
            tars[fits[0]].append(path)
            room[fits[0]] -= size
    folder.mkdir(parents=True, exist_ok=True)
    for i, paths in enumerate(tars):
        if paths:
            with tarfile.open(folder / f"runs-{i}.tar", "w") as file:
                for path in paths:
                    file.add(path, path.relative_to(out))
    print(f"packed {out} into {folder}; {left_out} runs are only partially packed", flush=True)


def groups(out: Path) -> Iterator[list[Path]]:
    """Yield what to pack, most important first, as lists of files in which each file depends on those before it."""
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
    """Unpack what `pack` wrote, except for runs that the folder already contains."""
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
    parser.add_argument("--cityscapes", type=Path, help="cityscapes_32x64.npz, or the folder that contains gtFine")
    parser.add_argument("--static-mnist", type=Path, help="folder with the amat files of static binary MNIST")
    parser.add_argument("--cityscapes-128x256", type=Path, help="cityscapes_128x256.npz")
    parser.add_argument("experiments", nargs="*", metavar="ROW[/MODEL][:SEED,…]", help="the experiments to run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED", help="(default: 0 1 2)")
    parser.add_argument("--seconds", type=float, default=560, help="time budget in seconds (default: 560)")
    parser.add_argument("--workers", type=int, default=5, help="concurrent experiments on the device (default: 5)")
    parser.add_argument("--cpu-workers", type=int, default=2, help="concurrent toy experiments on the CPU (default: 2)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="pack the runs into tar files at the end")
    parser.add_argument("--tars", type=int, default=4, help="maximum number of tar files of 15 MiB (default: 4)")
    parser.add_argument("--resume", nargs="*", type=Path, default=[], metavar="TAR", help="tar files to unpack first")
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
    jobs = queue(options.experiments, options.seeds)
    with shared_gpu(options.device):
        schedule(jobs, options, sys.argv[1:], began + options.seconds - SECONDS_TO_STOP)
    if options.pack:
        pack(options.out, options.pack, options.tars)


if __name__ == "__main__":
    main()
