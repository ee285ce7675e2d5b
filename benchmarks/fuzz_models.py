"""Load thousands of model files with hostile contents and correct checksums, in monitored processes.

Each file is a small valid model of one of the three types with changed numbers, names, types, shapes or values. It must
either load or raise a `DdfError`, and models that load must encode and decode. Other exceptions, crashes, calls longer
than 5 s, and processes that grow by more than 500 MiB are reported with the number that reproduces the file.

    python benchmarks/fuzz_models.py --rounds 5000
    python benchmarks/fuzz_models.py --only 1234
"""

import argparse
import json
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddf import modelfile, spec
from ddf.archive import Codec, InvalidCodeError
from ddf.classes import Classes, Columns
from ddf.errors import DdfError
from ddf.exact import IntegerFlow
from ddf.exact.quantize import quantize_net
from ddf.flow import Flow
from ddf.labelmaps import CausalFlow, pretrained
from ddf.layers import LatticeOrder, NetLayer, Squeeze
from ddf.models import model_from_bytes

SECONDS, MEBIBYTES = 5, 500
HOSTILE: list[Any] = [
    *(0, -1, 1, 2, 3, 4, 7, 8, 127, 128, 255, 256, 1000, 32768, 65536, 65537, 1 << 20, 10**6, 10**9, 1 << 31, 1 << 32),
    *((1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), -(1 << 63) - 1, 10**30, 10**4000, 0.0, -0.0, 0.5, 1.0, 1e300),
    *(1e-300, float("nan"), float("inf"), float("-inf"), True, False, None),
    *("", "a", "0", "b", "relu", "tanh", "\ud800", "x" * 9999),
    *([], {}, [[]], [0], [None], [True], ["a"], {"kind": "Squeeze"}, {"kind": "Flow"}, {"kind": []}, {"a": 1}),
    *([0] * 70_000, [{}] * 5000, [{"kind": "Squeeze"}] * 5000, list(range(300)), list(range(70_000))),
]
KINDS = [
    *("flow", "integer", "labelmaps", "Squeeze", "Shuffle", "DenoisingCoupling", "ModularCoupling", "SplitPrior"),
    *("MLP", "DenseNet", "LatticeNet", "OrderedSplit", "LatticeOrder", "FactorizedCategorical", "Flow", "ChannelSplit"),
    "unknown",
]
DTYPES = ["BOOL", "U8", "I8", "U16", "I16", "F16", "BF16", "U32", "I32", "F32", "U64", "I64", "F64", "F8_E5M2", 3, []]
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U64": 8, "I64": 8, "F64": 8}


@dataclass
class File:
    """A model file in parts: its header, its tensors (dtype, shape, bytes), and edits of its text."""

    header: dict[str, Any]
    tensors: dict[str, list[Any]]
    edits: list[Callable[[bytes], bytes]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        full = {"format": 1} | self.header
        entries = {name: modelfile.Entry(*parts) for name, parts in self.tensors.items()}
        try:
            full["sha256"] = modelfile._digest(full, entries)
        except (TypeError, ValueError):  # a shape that is not a list, a name that is not a string
            full["sha256"] = ""
        table: dict[str, Any] = {"__metadata__": {"ddf": json.dumps(full)}}
        end = 0
        for name, (dtype, shape, data) in self.tensors.items():
            table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
            end += len(data)
        text = json.dumps(table, separators=(",", ":")).encode()
        for edit in self.edits:
            text = edit(text)
        return len(text).to_bytes(8, "little") + text + b"".join(parts[2] for parts in self.tensors.values())


# ---- Valid models ----------------------------------------------------------------------------------------------------

NET, VECTORS = spec.DenseNetSpec(blocks=2, hidden=16), spec.MLPSpec(hidden=8, layers=3)
LATTICE = spec.LatticeNetSpec(2, 2, planes=(64,), blocks=(1,), width=8, depth=1)
FLOWS = {
    "maps": spec.FlowSpec(
        4,
        (1, None, None),
        (
            spec.SqueezeSpec(),
            spec.ShuffleSpec(seed=3),
            spec.DenoisingCouplingSpec(NET, top=3),
            spec.SplitPriorSpec(NET),
        ),
        spec.FactorizedCategoricalSpec(shared=True),
    ),
    "fixed": spec.FlowSpec(
        3,
        (1, 4, 6),
        (spec.SqueezeSpec(), spec.SplitPriorSpec(NET, factor_out="a"), spec.DenoisingCouplingSpec(NET, top=1)),
    ),
    "vectors": spec.FlowSpec(
        7,
        (4,),
        (
            spec.DenoisingCouplingSpec(VECTORS, top=7),
            spec.ShuffleSpec(permutation=(3, 2, 1, 0)),
            spec.SplitPriorSpec(VECTORS),
        ),
    ),
    "base alone": spec.FlowSpec(2, (1, 3, 3), ()),
    "modular": spec.FlowSpec(5, (4,), (spec.ModularCouplingSpec(VECTORS), spec.ShuffleSpec(seed=1))),
    "ordered": spec.FlowSpec(
        3,
        (1, 8, 8),
        (spec.OrderedSplitSpec(LATTICE, LatticeOrder(4, 2), ranks=True),),
    ),
    "checkers": spec.FlowSpec(3, (1, 4, 4), (spec.SqueezeSpec(), spec.ModularCouplingSpec(NET))),
}


def random_flow(of: spec.FlowSpec) -> Flow:
    flow = of.build()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    flow.classes = Classes(tuple(range(0, 3 * of.num_classes, 3)), tuple(map(str, range(of.num_classes))))
    flow.about = {"what": "example", "score": 1.5}
    return flow.eval()


def flow_file(flow: Flow) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        flow.save(Path(folder) / "flow")
        return (Path(folder) / "flow").read_bytes()


def integer_flow(of: spec.FlowSpec) -> IntegerFlow:
    flow = random_flow(of)
    for layer in flow.layer_list():
        if isinstance(layer, NetLayer):
            layer.net = quantize_net(layer.net, [])
    return IntegerFlow(flow)


def causal_flow(classes: int) -> CausalFlow:
    """Return a small part of the pretrained model, with tables for a number of classes."""
    arrays = dict(pretrained().arrays)
    for name, cut in (("pixels", 10), ("runs", None), ("bias", 8), ("second", 8), ("third", 8)):
        arrays[name] = arrays[name][:cut, ..., :8] if arrays[name].ndim > 1 else arrays[name][:8]
    arrays["second_bias"] = arrays["second_bias"][:8]
    generator = np.random.default_rng(0)
    shown, bins = (2, 4) if classes else (0, 1)
    arrays["classes"] = generator.integers(-99, 99, (shown, classes + 1, 8), dtype=np.int16)
    arrays["rows"] = generator.integers(-99, 99, (bins if classes else 0, 8), dtype=np.int16)
    arrays["flat_classes"] = generator.integers(-99, 99, (classes + 1, bins), dtype=np.int16)
    arrays["escapes"] = generator.integers(1, 9, (classes + 1, classes), dtype=np.uint16)
    return CausalFlow(arrays, Classes(tuple(range(0, 7 * classes, 7))) if classes else None, {"what": "example"})


@cache
def valid() -> list[File]:
    files = [flow_file(random_flow(of)) for of in FLOWS.values()]
    table = random_flow(FLOWS["vectors"])
    table.classes = Columns(("a", "b", "c", "d"), (tuple("0123456"), ("x",), ("y", "z"), ("w",)))
    files.append(flow_file(table))
    codecs: list[Codec] = [integer_flow(FLOWS[name]) for name in ("maps", "fixed", "vectors", "base alone", "ordered")]
    files += [codec.to_bytes() for codec in [*codecs, causal_flow(0), causal_flow(3)]]
    found = []
    for data in files:
        entries, header = modelfile.unpack(data, "a valid model")
        model_from_bytes(data)
        tensors = {name: [entry.dtype, list(entry.shape), bytes(entry.data)] for name, entry in entries.items()}
        found.append(File(header, tensors))
    return found


# ---- Mutations -------------------------------------------------------------------------------------------------------


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) in plain data."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def nested(depth: int, kind: str) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {kind: value}
    return value


def change_header(file: File, rng: random.Random) -> None:
    container, key = rng.choice(list(places(file.header)))
    old = container[key]
    choice = rng.randrange(9)
    if choice < 4:
        container[key] = deepcopy(rng.choice(HOSTILE))
    elif choice == 4 and isinstance(container, dict):
        del container[key]
    elif choice == 5 and isinstance(container, list):
        container[key:key] = [deepcopy(old)] * rng.choice([1, 2, 4000, 5000])
    elif choice == 6:
        container[key] = nested(rng.choice([2, 60, 70, 300]), rng.choice(["list", "a", "net", "spec"]))
    elif choice == 7 and isinstance(old, dict) and "kind" in old:
        old["kind"] = rng.choice(KINDS)
    elif isinstance(old, int):
        container[key] = old + rng.choice([-2, -1, 1, 2, 8])
    elif isinstance(container, list):
        container[key] = deepcopy(rng.choice(container))
    else:
        name = rng.choice(["extra", "kind", "classes", "about", "spec", "net", "top"])
        container[name] = deepcopy(rng.choice(HOSTILE))


def change_number(file: File, rng: random.Random) -> None:
    """Change a number that the flow is built from."""
    numbers = [(c, k) for c, k in places(file.header) if type(c[k]) in (int, float)]
    container, key = rng.choice(numbers or [(file.header, "format")])
    container[key] = rng.choice([value for value in HOSTILE if type(value) in (int, float)])


def change_tensor(file: File, rng: random.Random) -> None:
    name = rng.choice(list(file.tensors))
    tensor = file.tensors[name]
    choice = rng.randrange(8)
    if choice == 0:
        tensor[0] = rng.choice(DTYPES)
    elif choice == 1 and tensor[1]:
        tensor[1][rng.randrange(len(tensor[1]))] = deepcopy(rng.choice(HOSTILE))
    elif choice == 2:  # with the number of bytes that the new shape needs, if it is small
        shape = [rng.choice([0, 1, 2, 3, 4, 8, 16, 1000]) for _ in range(rng.choice([0, 1, 2, 3, 4, 33]))]
        tensor[1] = shape if rng.random() < 0.5 or not tensor[1] else [rng.choice([0, 1, 2, 8, 9]), *tensor[1][1:]]
        need = prod(tensor[1]) * SIZES.get(tensor[0], 4)
        tensor[2] = rng.randbytes(need) if need < 1 << 16 else tensor[2]
    elif choice == 3:
        del file.tensors[name]
    elif choice == 4:
        names = ["extra", "base", "base.logits", "0.order", "layers.1.order", "x", "\ud800", ""]
        file.tensors[rng.choice(names)] = tensor
    elif choice == 5:
        file.tensors[name], other = list(file.tensors[rng.choice(list(file.tensors))]), tensor
        file.tensors[rng.choice(list(file.tensors))] = other
    else:
        change_values(file, rng, name)


def change_values(file: File, rng: random.Random, name: str | None = None) -> None:
    name = name or rng.choice(list(file.tensors))
    tensor = file.tensors[name]
    size = SIZES.get(tensor[0], 4) if isinstance(tensor[0], str) else 1
    count = len(tensor[2]) // size
    data = bytearray(tensor[2])
    one = rng.choice([b"\0", b"\xff", b"\x7f", b"\x80", b"\1"]) * size
    one = rng.choice([one, one[:-1] + b"\x7f", one[:-1] + b"\x80", rng.randbytes(size)])
    choice = rng.randrange(4)
    if choice == 0:
        data[:] = one * count
    elif choice == 1:
        data[:] = rng.randbytes(len(data))
    elif choice == 2:  # small numbers
        data[:] = b"".join((rng.randrange(-20, 20) % 256**size).to_bytes(size, "little") for _ in range(count))
    elif count:
        place = rng.randrange(count)
        data[place * size : (place + 1) * size] = one
    tensor[2] = bytes(data)


def change_all_values(file: File, rng: random.Random) -> None:
    """Set random values in many tensors, in a range that most checks accept."""
    share = rng.choice([0.2, 1])
    for name, tensor in file.tensors.items():
        if tensor[0] not in ("I8", "I16", "I32", "U16", "U32") or rng.random() > share:
            continue
        size = int(tensor[0][1:]) // 8
        bits = rng.choice([1, 4, 8 * size - 2, 8 * size - 1, 8 * size])
        low = 0 if "shift" in name or tensor[0] == "U16" else -(1 << bits - 1)
        high = 21 if "shift" in name or "input_bits" in name else low + (1 << bits)
        numbers = (rng.randrange(low, high) % 256**size for _ in range(len(tensor[2]) // size))
        tensor[2] = b"".join(number.to_bytes(size, "little") for number in numbers)


def change_text(file: File, rng: random.Random) -> None:
    """Change the JSON text, which other tools may have written."""
    digits = [str(value) for value in HOSTILE if type(value) in (int, float)] + ["1e999", "-", "[1]", '"1"', "9" * 5000]
    new = rng.choice(digits).encode()
    seed = rng.random()

    def number(text: bytes) -> bytes:
        runs = [i for i in range(1, len(text)) if text[i : i + 1].isdigit() and not text[i - 1 : i].isdigit()]
        start = runs[int(seed * len(runs))] if runs else 0
        end = start
        while text[end : end + 1].isdigit():
            end += 1
        return text[:start] + new + text[end:]

    def twice(text: bytes) -> bytes:
        return text[:-1] + b"," + text[1:]

    def deep(text: bytes) -> bytes:
        return text[:-1] + b',"a":' + rng.choice([b"[", b'{"a":']) * rng.choice([60, 900, 5000, 100_000])

    def damage(text: bytes) -> bytes:
        place = int(seed * len(text))
        return text[:place] + bytes([rng.randrange(256)]) + text[place + rng.randrange(2) :]

    file.edits.append(rng.choice([number, number, twice, deep, damage, damage]))


MUTATIONS = [change_header, change_header, change_number, change_tensor, change_values, change_all_values, change_text]


def hostile_file(number: int) -> bytes:
    """Return the file with this number."""
    rng = random.Random(number)
    file = deepcopy(rng.choice(valid()))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        mutate = rng.choice(MUTATIONS)
        if file.tensors and isinstance(file.header, dict):
            mutate(file, rng)
    data = file.to_bytes()
    if rng.random() < 0.02:
        data = rng.randbytes(8) + data[8:]
    return data


# ---- Checks ----------------------------------------------------------------------------------------------------------


def check_codec(codec: IntegerFlow | CausalFlow, rng: random.Random) -> str:
    """Encode and decode a small array, and decode bytes that no encoder wrote."""
    if isinstance(codec, IntegerFlow):
        cell = 1 << min(sum(isinstance(layer, Squeeze) for layer in codec.layers), 10)
        shape = tuple(cell if side is None else side for side in codec.shape)
    else:
        shape = rng.choice([(9, 13), (1, 1), (2, 8, 8), (40, 30)])
    if prod(shape) > 4096:
        return "codec loaded"
    labels = rng.sample(codec.classes.values, min(6, codec.classes.num_classes)) if codec.classes else [-5, 3, 400]
    some = np.random.default_rng(rng.randrange(1 << 30))
    array = some.choice(np.array(labels, np.int64), shape)
    if rng.random() < 0.5:
        array = np.sort(array.reshape(-1)).reshape(shape)
    code = codec.compress(array)
    if code is not None and not np.array_equal(codec.decompress(code, array.shape, array.dtype), array):
        raise AssertionError("an array is not restored")
    for dtype in ("uint8", "int64"):
        with suppress(DdfError, InvalidCodeError):
            codec.decompress(rng.randbytes(rng.randrange(200)), shape, np.dtype(dtype))
    return "codec loaded" if code is None else "codec coded"


def run_one(number: int) -> tuple[str, float]:
    """Load the file with this number; return the outcome and the loading time in seconds."""
    data = hostile_file(number)
    begin = time.monotonic()
    try:
        model = model_from_bytes(data, "the file")
        seconds = time.monotonic() - begin
        if not isinstance(model, IntegerFlow | CausalFlow):
            return "flow loaded", seconds
        if pickle.loads(pickle.dumps(model)).fingerprint != model.fingerprint:
            raise AssertionError("the fingerprint changes when the model is written again")
        return check_codec(model, random.Random(number)), seconds
    except DdfError as error:
        seconds = time.monotonic() - begin
        if "the file" not in str(error):
            return f"PROBLEM: the error does not name the file: {error}", seconds
        return "refused", seconds


def grown() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def work(numbers: range) -> None:
    """Test these files and print a line for each: the outcome, the seconds, and the memory growth."""
    for file in valid():
        model = model_from_bytes(file.to_bytes())
        if isinstance(model, IntegerFlow | CausalFlow):
            check_codec(model, random.Random(0))
    begin = grown()
    for number in numbers:
        print(number, flush=True, end=" ")
        signal.alarm(4 * SECONDS)  # kills the process
        try:
            outcome, seconds = run_one(number)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome, seconds = f"PROBLEM: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"[:500], 0.0
        signal.alarm(0)
        print(json.dumps([outcome, seconds, grown() - begin]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000, help="number of files")
    parser.add_argument("--seed", type=int, default=0, help="number of the first file")
    parser.add_argument("--batch", type=int, default=500, help="files per process")
    parser.add_argument("--only", type=int, help="load only this file, in this process, and show the traceback")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only is not None:
        print(*run_one(options.only))
        return
    if options.worker:
        work(range(*options.worker))
        return
    counts: Counter[str] = Counter()
    slowest, largest, problems = (0.0, 0), 0.0, 0
    next_, end = options.seed, options.seed + options.rounds
    while next_ < end:
        last = min(end, next_ + options.batch)
        command = [sys.executable, __file__, "--worker", str(next_), str(last)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        memory = 0.0
        for line in done.stdout.splitlines():
            number, _, rest = line.partition(" ")
            next_ = int(number) + 1
            outcome, seconds, total = json.loads(rest) if rest else (f"PROBLEM: exit {done.returncode}", 0.0, memory)
            if seconds > SECONDS:
                outcome = f"PROBLEM: {seconds:.1f} s"
            if total > MEBIBYTES >= memory:
                outcome = f"PROBLEM: {total - memory:.0f} MiB more"
            if outcome.startswith("PROBLEM"):
                problems += 1
                print(number, outcome, flush=True)
            counts[outcome.partition(":")[0]] += 1
            slowest, largest, memory = max(slowest, (seconds, int(number))), max(largest, total), total
        if not done.stdout:
            sys.exit(f"a process did not start (exit {done.returncode})")
        print(f"{next_ - options.seed} files: {dict(counts)}; slowest {slowest[0]:.2f} s ({slowest[1]}), "
              f"most memory {largest:.0f} MiB", flush=True)  # fmt: skip
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
