"""Read archives that were mutated with knowledge of their format, and check that nothing goes wrong.

    python benchmarks/fuzz_archives.py [--rounds 20000] [--seed 0]

Every archive is opened, read by number and by name, read from first to last, verified, recovered and decompressed into
a folder. Only errors of ddf may be raised (or an `OSError` for a name that the file system rejects), no call may take
longer than 5 seconds, no process may grow by more than 500 MiB, and no file may appear outside the folder. Every array
must match the original with the same number, unless the mutation replaced a block and its checksum.

About half of the mutations recompute the checksums that they invalidate. A failure prints its round; the same seed and
`--only ROUND` reproduce it.
"""

import argparse
import io
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ddf.archive import Archive, ArchiveWriter, Codec, FileFormat, FileReader, recover, verify
from ddf.archive.block_table import CHECKSUM_SIZE, Table
from ddf.archive.blocks import Block, Kind, Method, checksum, placed
from ddf.archive.encoding import _decoded
from ddf.archive.records import (
    FOOTER_SIZE,
    GROUP,
    HEADER_SIZE,
    INDEX,
    Group,
    Index,
    pack_footer,
    pack_record,
    read_record,
)
from ddf.archive.varint import write_varint
from ddf.errors import DdfError

Array = np.ndarray[Any, Any]
Generator = np.random.Generator

MAX_BYTES = 1 << 17
MAX_SECONDS, MAX_MIB = 5.0, 500
BATCH = 250  # rounds per process
NUMBERS: tuple[int, ...] = (
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    63,
    64,
    127,
    128,
    255,
    256,
    1000,
    4096,
    65535,
    65536,
    1 << 18,
    1 << 20,
    1 << 31,
)
NUMBERS += (1 << 32, 1 << 40, 1 << 53, 1 << 62, (1 << 63) - 1)
NAMES = (
    "",
    "..",
    "../x",
    "/etc/x",
    "a/../b",
    "a",
    "a/b",
    "a//b",
    "a\n\x1b[31m",
    "x" * 4096,
    "x" * 300,
    "\u202ecod",
    ".",
    "con",
)


# ---- Archives --------------------------------------------------------------------------------------------------------


def models() -> list[Codec | None]:
    from ddf.labelmaps import pretrained

    return [None, pretrained()]


def make(rng: Generator, codecs: list[Codec | None]) -> tuple[bytes, Codec | None, dict[int, Array]]:
    """Return a random archive, its model, and its arrays by number."""
    model = codecs[int(rng.integers(len(codecs)))]
    formats: list[FileFormat | None] = [
        None,
        FileFormat("file"),
        FileFormat("npy", fortran=True),
        FileFormat("PNG", "L"),
        FileFormat("PNG", "P", rng.bytes(30), b"\0\1"),
        FileFormat("TIFF", "L"),
    ]
    buffer = io.BytesIO()
    arrays: dict[int, Array] = {}
    with ArchiveWriter(
        buffer,
        model,
        maps_per_block=int(rng.choice([1, 1, 4, 50])),
        sha256=bool(rng.integers(2)),
        threads=1,
        verify=False,
    ) as writer:
        for i in range(int(rng.choice([1, 2, 5, 30, 90]))):
            shape = tuple(rng.integers(0 if rng.random() < 0.05 else 1, 12, int(rng.choice([2, 2, 2, 1, 0, 3]))))
            array = rng.integers(0, int(rng.choice([2, 4, 250])), shape).astype(
                rng.choice(["u1", "u1", "i2", "i8", "?"])
            )
            if array.ndim == 2 and rng.random() < 0.7:
                array = np.kron(array, np.ones((3, 4), array.dtype)).astype(array.dtype)
            name = "" if rng.random() < 0.2 else f"{rng.choice(['a', 'b/c', 'd'])}/{i:03}.png"
            suitable = [f for f in formats if f is None or f.suits(array)]
            writer.add(array, name, file=suitable[int(rng.integers(len(suitable)))])
            arrays[i] = array
    return buffer.getvalue(), model, arrays


# ---- Mutations -------------------------------------------------------------------------------------------------------


class Parts:
    """The parts of an archive, which can be reassembled with correct checksums."""

    def __init__(self, data: bytes) -> None:
        self.header = bytearray(data[: HEADER_SIZE - 4])
        self.records: list[list[Any]] = []  # type, head, data
        position = HEADER_SIZE
        while position < len(data) - FOOTER_SIZE:
            record = read_record(lambda start, count: data[start : start + count], position, len(data))
            assert record is not None
            head: Any = record.head
            if record.type == GROUP:
                head = Group.from_bytes(head, len(data))
            elif record.type == INDEX:
                head = Index.from_bytes(head, len(data))
            self.records.append([record.type, head, data[record.data : record.after]])
            position = record.after
        self.footer: int | None = None
        self.changed_blocks = False

    def join(self) -> bytes:
        import zlib

        out = bytearray(self.header) + zlib.crc32(self.header).to_bytes(4, "little")
        index = len(out)
        for type_, head, data in self.records:
            if type_ == INDEX:
                index = len(out)
            out += pack_record(type_, head if isinstance(head, bytes) else head.to_bytes(), len(data)) + data
        return bytes(out + pack_footer(index if self.footer is None else self.footer))

    def tables(self) -> list[Table]:
        return [head.table for _, head, _ in self.records if isinstance(head, Group | Index)]


def number(rng: Generator, old: int) -> int:
    return (
        int(rng.choice([old + 1, max(0, old - 1), old * 2, *map(int, NUMBERS)]))
        if rng.random() < 0.5
        else int(NUMBERS[int(rng.integers(len(NUMBERS)))])
    )


def mutate_kind(rng: Generator, kind: Kind) -> Kind:
    shape = list(kind.shape)
    what = int(rng.integers(6))
    if what == 0 and shape:
        shape[int(rng.integers(len(shape)))] = number(rng, shape[0])
    elif what == 1:
        shape = [int(rng.integers(1, 600)) for _ in range(int(rng.integers(0, 34)))]
    elif what == 2:
        shape.insert(0, number(rng, 1))
    elif what == 3:
        shape = [int(rng.integers(1, 1 << 17)), int(rng.integers(1, 4))][:: int(rng.choice([1, -1]))]
    return Kind(
        Method(int(rng.integers(3))) if rng.random() < 0.3 else kind.method,
        int(rng.integers(11)) if rng.random() < 0.3 else kind.dtype,
        tuple(shape),
        bool(rng.integers(2)) if rng.random() < 0.2 else kind.shared,
        number(rng, 1) if rng.random() < 0.1 else kind.band,
    )


def mutate_table(rng: Generator, table: Table) -> None:
    what = int(rng.integers(8))
    place = int(rng.integers(max(1, len(table.sizes))))
    if what == 0 and table.kinds:
        i = int(rng.integers(len(table.kinds)))
        table.kinds[i] = mutate_kind(rng, table.kinds[i])
    elif what == 1 and table.sizes:
        table.sizes[place] = CHECKSUM_SIZE + number(rng, table.sizes[place])
    elif what == 2 and table.kind_of:
        table.kind_of[place] = int(rng.integers(len(table.kinds) + 1))
    elif what == 3 and table.counts:
        table.counts[place] = number(rng, table.counts[place])
    elif what == 4 and table.names:
        table.names[int(rng.integers(len(table.names)))] = NAMES[int(rng.integers(len(NAMES)))]
    elif what == 5 and table.formats:
        table.formats[int(rng.integers(len(table.formats)))] = number(rng, 1)
    elif what == 6:
        times = int(rng.choice([2, 3, 1000])) if len(table.sizes) < 1000 else 2
        for name in ("sizes", "kind_of", "counts", "names", "formats"):
            setattr(table, name, getattr(table, name) * times)
    elif table.sizes:
        for column in (table.sizes, table.kind_of, table.counts):
            column.insert(place, column[place])


def mutate_block(rng: Generator, parts: Parts, model: Codec | None) -> None:
    """Replace the code of a block, with a correct checksum if it can be decoded."""
    groups = [record for record in parts.records if isinstance(record[1], Group) and record[1].table.sizes]
    if not groups:
        return
    record = groups[int(rng.integers(len(groups)))]
    blocks = list(record[1].table.blocks())
    which = int(rng.integers(len(blocks)))
    start = sum(size for _, size, _, _ in blocks[:which])
    kind, size, count, before = blocks[which]
    payload = bytearray(record[2][start + CHECKSUM_SIZE : start + size])
    for _ in range(int(rng.integers(1, 5))):
        if payload:
            payload[int(rng.integers(len(payload)))] = int(rng.integers(256))
    block = Block(kind, count, 0, bytes(payload), record[1].number + before)
    crc = 0
    try:
        if kind.size * count <= MAX_BYTES:
            crc = placed(checksum(kind, _decoded(model, block, 1), block.payload), block.number)
    except Exception:  # it does not decode
        return
    record[2] = record[2][:start] + crc.to_bytes(4, "little") + bytes(payload) + record[2][start + size :]
    parts.changed_blocks = True


def mutate(rng: Generator, data: bytes, model: Codec | None) -> tuple[str, bytes, bool]:
    """Return a description of the mutation, the archive, and whether its blocks are unchanged."""
    if rng.random() < 0.45:
        return "damage", damage(rng, data), True
    parts = Parts(data)
    try:
        done = change(rng, parts, model)
        return f"mutation {done}", parts.join(), not parts.changed_blocks
    except (ValueError, IndexError, OverflowError, UnicodeEncodeError):  # it cannot be serialized
        return "damage", damage(rng, data), True


def change(rng: Generator, parts: Parts, model: Codec | None) -> list[int]:
    """Change some parts of an archive; return what was done."""
    done: list[int] = []
    for _ in range(int(rng.choice([1, 1, 2, 4]))):
        what = int(rng.integers(11))
        done.append(what)
        if not parts.records:
            break
        record = parts.records[int(rng.integers(len(parts.records)))]
        tables = parts.tables()
        if what <= 2 and tables:
            mutate_table(rng, tables[int(rng.integers(len(tables)))])
        elif what == 3:
            parts.header[int(rng.integers(4, len(parts.header)))] = int(rng.integers(256))
        elif what == 4:
            mutate_block(rng, parts, model)
        elif what == 5:
            parts.records.insert(int(rng.integers(len(parts.records))), list(record))
        elif what == 6 and len(parts.records) > 1:
            parts.records.remove(record)
        elif what == 7:
            type_ = int(rng.choice([1, 2, 5, 9, 77, 128, 129, 130, 131, 132, 133, 200]))
            parts.records.insert(
                int(rng.integers(len(parts.records) + 1)), [type_, rng.bytes(int(rng.integers(40))), b""]
            )
        elif what == 8 and isinstance(record[1], bytes):
            record[1] = damage(rng, record[1]) if record[1] else b"x"
        elif what == 8 and isinstance(record[1], Index):
            record[1].groups = [
                (number(rng, s), number(rng, c)) if rng.random() < 0.5 else (s, c) for s, c in record[1].groups
            ]
            record[1].groups.sort()
        elif what == 8:
            record[1].number, record[1].position = number(rng, record[1].number), number(rng, record[1].position)
        elif what == 9:
            head = record[1] if isinstance(record[1], bytes) else raw(record[1])
            record[1] = damage(rng, head) if head else head
        else:
            parts.footer = number(rng, sum(len(part) for _, _, part in parts.records))
    return done


def raw(head: Group | Index) -> bytes:
    """Return the head of a record with its table uncompressed, so that it can be damaged byte by byte."""
    import zlib

    data = head.to_bytes()
    start = 4 if isinstance(head, Index) else 4 + len(write_varint(head.position)) + len(write_varint(head.number))
    return data if data[start] == 0 else data[:start] + b"\0" + zlib.decompress(data[start + 1 :])


def damage(rng: Generator, data: bytes) -> bytes:
    """Return bytes with the kinds of damage that disks, transfers and editors cause."""
    size = len(data)
    first, second = sorted(int(place) for place in rng.integers(0, size + 1, 2))
    some = int(rng.integers(1, 60))
    kind = int(rng.integers(8))
    if kind == 0 and size:
        first = int(rng.integers(size))
        return data[:first] + bytes([data[first] ^ 1 << int(rng.integers(8))]) + data[first + 1 :]
    if kind == 1:
        return data[:first]
    if kind == 2:
        return data[:first] + data[first + some :]
    if kind == 3:
        return data[:first] + rng.bytes(some) + data[first:]
    if kind == 4:
        return data[:first] + rng.bytes(some) + data[first + some :]
    if kind == 5:
        return data[:first] + bytes(some) + data[first + some :]
    if kind == 6:
        return data[:second] + data[first : min(second, first + 500)] + data[second:]
    spoilt = bytearray(data)
    for place in rng.integers(0, max(1, size), int(rng.integers(2, 12))):
        if size:
            spoilt[place] = int(rng.integers(256))
    return bytes(spoilt)


# ---- Checks ----------------------------------------------------------------------------------------------------------


def calls(data: bytes, model: Codec | None, folder: Path, rng: Generator) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield all operations on an archive by name; those that return pairs return arrays by number."""

    def opened() -> Archive:
        return Archive(data, model, max_bytes=MAX_BYTES, threads=1)

    def each() -> list[tuple[int, Array]]:
        archive, found = opened(), []
        for i in sorted({int(i) for i in rng.integers(0, max(1, len(archive)), 6)}):
            try:
                found.append((i, archive[i]))
            except (DdfError, IndexError):
                continue
        return found

    def by_name() -> list[tuple[int, Array]]:
        archive, found = opened(), []
        for key in list(archive)[:5]:
            try:
                found.append((archive.number_of(key), archive[key]))
            except DdfError:
                continue
        return found

    def written() -> None:
        list(FileReader(opened()).write_all(folder / "out"))

    def recovered() -> list[tuple[int, Array]]:
        return [(found.number, found.array) for found in recover(data, model, max_bytes=MAX_BYTES)]

    yield "list", lambda: sum(1 for _ in opened()) and None
    yield "by number", each
    yield "by name", by_name
    yield "all", lambda: list(opened().arrays())
    yield "verify", lambda: verify(data, model, 1, MAX_BYTES) and None
    yield "write", written
    yield "recover", recovered


def one_round(seed: int, i: int, codecs: list[Codec | None], folder: Path) -> str | None:
    """Return what went wrong, if anything."""
    rng = np.random.default_rng((seed, i))
    data, model, arrays = make(rng, codecs)
    what, data, strict = mutate(rng, data, model)
    for name, call in calls(data, model, folder, rng):
        start = time.perf_counter()
        try:
            found = call()
        except DdfError:
            found = None
        except OSError as error:
            found = None
            if name != "write" or (error.errno is None and not isinstance(error, FileExistsError)):
                return f"{what}: {name}: {traceback.format_exc()}"
        except Exception:
            return f"{what}: {name}: {traceback.format_exc()}"
        seconds = time.perf_counter() - start
        if seconds > MAX_SECONDS:
            return f"{what}: {name} took {seconds:.1f} s"
        for where, array in found or []:
            want = arrays.get(where)
            if strict and (want is None or want.shape != array.shape or not np.array_equal(want, array)):
                return f"{what}: {name}: array {where} differs from the original"
    if sorted(path.name for path in folder.iterdir()) not in ([], ["out"]):
        return f"{what}: a file appeared outside the folder"
    shutil.rmtree(folder / "out", ignore_errors=True)
    return None


def batch(seed: int, first: int, last: int, results: Any) -> None:
    """Run some rounds; report failures and the memory used."""
    codecs = models()
    for codec in codecs:
        if codec is not None:
            codec.decompress(codec.compress(np.eye(9, dtype=np.uint8)) or b"", (9, 9), np.dtype(np.uint8))  # compiles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest = 0.0
    with tempfile.TemporaryDirectory() as name:
        for i in range(first, last):
            start = time.perf_counter()
            problem = one_round(seed, i, codecs, Path(name))
            slowest = max(slowest, time.perf_counter() - start)
            if problem:
                results.put((i, problem))
    results.put((-1, ((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, slowest)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run a single round")
    options = parser.parse_args()
    first, last = (0, options.rounds) if options.only is None else (options.only, options.only + 1)
    context = multiprocessing.get_context("spawn")
    failures, memory, slowest = 0, 0, 0.0
    for start in range(first, last, BATCH):
        results = context.Queue()
        end = min(start + BATCH, last)
        process = context.Process(target=batch, args=(options.seed, start, end, results))
        process.start()
        ended = False
        while not ended:
            try:
                i, found = results.get(timeout=1)
            except Exception:
                if process.is_alive():
                    continue
                failures += 1
                print(f"rounds {start} to {end - 1}: the process died with exit code {process.exitcode}", flush=True)
                break
            if i < 0:
                ended, memory, slowest = True, max(memory, found[0]), max(slowest, found[1])
            else:
                failures += 1
                print(f"round {i}: {found}", flush=True)
        process.join()
        if memory > MAX_MIB:
            failures += 1
            print(f"rounds {start} to {end - 1} took {memory} MiB", flush=True)
        print(f"{end} archives: {failures} failures, at most + {memory} MiB, slowest {slowest:.2f} s", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
