"""Compare the speed of the label-map encoder in numba with the same loop in C.

    python benchmarks/kernel_in_c.py MODEL MAPS.npy

MODEL is a model with known classes, which must be 0 … K − 1, and MAPS.npy (maps, height, width) holds maps of these
classes. Needs gcc. Also checks that both encoders produce the same bytes.
"""

import ctypes
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ddf.labelmaps import CausalFlow
from ddf.labelmaps.arithmetic import SQUASH, STEPS, STRETCH
from ddf.labelmaps.context import RUN_BINS, RUN_BINS_COARSE, RUN_BINS_FINE, offsets

Array = np.ndarray[Any, Any]

INTEGERS = (
    "pixels", "hidden", "width2", "shown", "run_values", "class_values", "row_bins", "classes", "hash_bits", "positions"
)  # fmt: skip
POINTERS = (
    "offsets", "shifts", "settings", "steps", "pairs", "runs", "class_rows", "rows", "bias", "flat", "flat_classes",
    "stretch", "second", "second_bias", "third", "third_bias", "squash", "net_bins", "coarse", "fine", "ranks",
    "flat_counters", "local", "weights", "escapes",
)  # fmt: skip


class Model(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_int) for name in INTEGERS), *((name, ctypes.c_void_p) for name in POINTERS)]


def encode(library: Any, model: CausalFlow, one: Array, room: list[Array], out: Array) -> bytes:
    nets, state = model.nets, model.new_state(model.num_classes, True, one.size)
    arrays = {
        "offsets": offsets(len(model.arrays["pixels"])), "shifts": nets.shifts, "settings": model.arrays["settings"],
        "steps": STEPS, "pairs": nets.pairs, "runs": nets.runs, "class_rows": nets.classes, "rows": nets.rows,
        "bias": nets.bias, "flat": nets.flat, "flat_classes": nets.flat_classes, "stretch": STRETCH,
        "second": nets.second, "second_bias": nets.second_bias, "third": nets.third, "third_bias": nets.third_bias,
        "squash": SQUASH, "net_bins": RUN_BINS, "coarse": RUN_BINS_COARSE, "fine": RUN_BINS_FINE, "ranks": state.ranks,
        "flat_counters": state.flat, "local": state.local, "weights": state.weights, "escapes": state.escapes,
    }  # fmt: skip
    sizes = (
        len(arrays["offsets"]), len(nets.bias), len(nets.second_bias), nets.classes.shape[0], nets.runs.shape[1],
        nets.classes.shape[1], nets.flat_classes.shape[1], model.num_classes, state.local.shape[1].bit_length() - 1,
        len(nets.rows),
    )  # fmt: skip
    struct = Model(*sizes, *(arrays[name].ctypes.data for name in POINTERS))
    height, width = one.shape
    length = library.encode(
        ctypes.byref(struct), one.ctypes.data_as(ctypes.c_void_p), height, width,
        *(part.ctypes.data_as(ctypes.c_void_p) for part in room), out.ctypes.data_as(ctypes.c_void_p),
    )  # fmt: skip
    return out[:length].tobytes()


def main() -> None:
    model, maps = CausalFlow.from_bytes(Path(sys.argv[1]).read_bytes()), np.load(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/kernel.so"
        source = Path(__file__).with_name("kernel.c")
        subprocess.run(
            ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", target, str(source), "-lm"], check=True
        )
        library = ctypes.CDLL(target)
    library.encode.restype = ctypes.c_int64
    symbols = maps.astype(np.uint16)
    size = (maps.shape[1] + 16) * (maps.shape[2] + 32)
    room = [np.zeros(size, np.uint16), *(np.zeros(size, np.uint8) for _ in range(5))]
    out = np.zeros(maps[0].size * 8 + 4096, np.uint8)
    model.compress(maps[0])
    best = {"C": 1e9, "numba": 1e9}
    for _ in range(3):
        start = time.perf_counter()
        in_c = [encode(library, model, one, room, out) for one in symbols]
        middle = time.perf_counter()
        in_numba = [model.compress(one) for one in maps]
        best["C"] = min(best["C"], middle - start)
        best["numba"] = min(best["numba"], time.perf_counter() - middle)
        assert in_c == in_numba
    for name, seconds in best.items():
        print(f"{name}: {maps.size / seconds / 1e6:.2f} Mpixel/s")
    print(f"numba takes {best['numba'] / best['C']:.2f} times as long; the same bytes for {len(maps)} maps")


if __name__ == "__main__":
    main()
