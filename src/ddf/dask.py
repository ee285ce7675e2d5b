"""Compress millions of maps into archives on a dask cluster."""

__all__ = ["Report", "compress"]

import hashlib
import json
import os
import re
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any, NamedTuple

from ddf.archive import DEFAULT_MAX_BYTES, Archive, ArchiveWriter, Codec, FileWriter, files_in
from ddf.archive.found_files import relative_names
from ddf.archive.parallel import check_counts
from ddf.errors import DamagedArchiveError, RunConflictError
from ddf.extras import needed_for
from ddf.files import atomic_write
from ddf.labelmaps import pretrained
from ddf.progress import Progress
from ddf.registry import add_model, get_model, load_codec
from ddf.remote import (
    RemoteFile,
    file_sizes,
    is_url,
    join_url,
    local_path,
    make_folder,
    read_bytes,
    type_of,
    upload,
    write_bytes,
)

with needed_for("ddf.dask"):
    from distributed import Client, Future, as_completed, get_worker

_PLAN = "plan.json"
_RETRIES = 2  # of a task that fails, for example because a connection was lost
_IN_FLIGHT = 64  # tasks that the scheduler knows, at least
_READERS = 8  # threads that read the notes about the archives
_SUSPICIOUS = 16  # inputs of which none can be read: the fault is not theirs
_SECONDS = 2.0  # between two reports of the progress of a task


@dataclass(frozen=True)
class Report:
    """The result of `compress`, including the archives that earlier calls had finished.

    Arguments:
        archives: The number of archives.
        skipped: The number of archives that earlier calls had finished.
        files: The number of files in the archives.
        maps: The number of label maps among them.
        bytes_before: The size of the files in bytes.
        bytes_after: The size of the archives in bytes.
        stripped: The number of images with metadata that was not stored.
        left_out: What was not archived: hidden files, empty folders and certain links.
        problems: Files that were not archived as their names suggest, and why.
    """

    archives: int
    skipped: int
    files: int
    maps: int
    bytes_before: int
    bytes_after: int
    stripped: int
    left_out: tuple[str, ...]
    problems: dict[str, str]


def compress(
    urls: str | PathLike[str] | Iterable[str | PathLike[str]],
    out: str | PathLike[str],
    model: Codec | str | PathLike[str] | None = None,
    maps_per_archive: int = 100_000,
    client: Client | None = None,
    *,
    embed_model: bool = False,
    maps_per_block: int = 1,
    verify: bool = True,
    sha256: bool = False,
    threads: int = 1,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: bool = True,
) -> Report:
    """Compress files into archives `part-00000.ddf`, `part-00001.ddf`, …, each written by one task on a dask cluster.

    The files are restored from the archives as from those of `ddf compress`. A file that cannot be read is reported and
    does not stop the others. After an interruption or a failure, the same call resumes: finished archives are kept.
    All workers must have access to the files and to `out`.

    Arguments:
        urls: A folder, a pattern such as `masks/**/*.png`, or an iterable of files, which are archived in the given
            order; each may be a path or a URL. Names in the archives are relative to the folder, to the folder before
            the first wildcard, or to the folder that contains all files.
        out: The folder of the archives, or its URL; it is created if needed.
        model: A model, its file or URL, or its fingerprint; None for the pretrained model. Any other model is also
            written to `out`, where readers of the archives find it.
        maps_per_archive: The number of files in an archive.
        client: The client of the cluster; None for the current one.
        embed_model: Whether to store the model in each archive.
        maps_per_block: The maximum number of maps of the same shape that share a block.
        verify: Whether to verify everything by decoding it before it is written.
        sha256: Whether to store the SHA-256 of each archive.
        threads: The number of threads that encode in each task, which occupies one thread of a worker.
        max_bytes: The largest map to accept, in bytes.
        progress: Whether to show the progress.

    Raises:
        RunConflictError: `out` contains archives that were made from other files or with other settings.
    """
    check_counts(maps_per_archive=maps_per_archive, maps_per_block=maps_per_block, threads=threads, max_bytes=max_bytes)
    client = _current(client)
    codec = load_codec(model, "this call")
    fingerprint = codec.fingerprint
    inputs = _find(urls)
    result = {
        "embed_model": embed_model,
        "maps_per_block": int(maps_per_block),
        "sha256": sha256,
        "max_bytes": int(max_bytes),
    }
    folder = _Folder(out)
    folder.create()
    _agree(
        folder,
        {
            "files": len(inputs.files),
            "files_sha256": _digest(inputs.files),
            "maps_per_archive": int(maps_per_archive),
            "model": fingerprint.hex(),
            **result,
        },
    )
    if fingerprint != pretrained().fingerprint:
        add_model(codec, folder.place)
    parts = [inputs.files[i : i + maps_per_archive] for i in range(0, len(inputs.files), maps_per_archive)]
    sizes = folder.sizes()
    there = [number for number in range(len(parts)) if {_archive(number), _notes(number)} <= sizes.keys()]
    with ThreadPoolExecutor(_READERS) as pool:
        complete = list(pool.map(folder.has_complete, there))
    finished = {number: sizes[_archive(number)] for number, whole in zip(there, complete, strict=True) if whole}
    settings = {**result, "verify": verify, "threads": threads}
    with Progress("compressing", len(inputs.files), "file", progress) as bar:
        _Run(client, folder.place, parts, fingerprint, settings, finished, bar).finish()
    return _report(folder, len(parts), len(finished), inputs)


def _current(client: Client | None) -> Client:
    if client is None:
        try:
            client = Client.current()
        except ValueError as error:
            raise ValueError(
                "there is no dask cluster: create a client first, for example with distributed.Client(n_workers=4), or "
                "pass one"
            ) from error
    if client.asynchronous:
        raise ValueError("the client is asynchronous: pass a client that was created with asynchronous=False")
    return client


# ---- The inputs and the plan -----------------------------------------------------------------------------------------


class _Inputs(NamedTuple):
    """The files to compress: their names, and their paths or URLs."""

    files: list[tuple[str, str]]
    left_out: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


def _find(urls: str | PathLike[str] | Iterable[str | PathLike[str]]) -> _Inputs:
    if isinstance(urls, str | PathLike):
        found = files_in([_absolute(urls)])
        files = [(name, str(file)) for name, file in found.files]
        inputs = _Inputs(files, tuple(map(str, found.left_out)), tuple(found.problems))
    else:
        inputs = _Inputs(relative_names([_absolute(url) for url in urls]))
    if not inputs.files:
        raise ValueError("no files to compress" + (f" in {urls}" if isinstance(urls, str | PathLike) else ""))
    return inputs


def _absolute(place: str | PathLike[str]) -> str:
    """Return a URL, or a path that does not depend on the folder in which a worker runs."""
    text = os.fspath(place)
    return text if is_url(text) else os.path.abspath(text)  # noqa: PTH100 (links are not resolved)


def _digest(files: list[tuple[str, str]]) -> str:
    found = hashlib.sha256()
    for pair in files:
        found.update(json.dumps(pair).encode() + b"\n")
    return found.hexdigest()


def _agree(folder: "_Folder", plan: dict[str, Any]) -> None:
    """Write the plan, or compare it with that of an earlier call."""
    there = folder.sizes()
    if _PLAN not in there:
        if any(re.fullmatch(r"part-\d+\.ddf", name) for name in there):
            raise RunConflictError(f"{folder.place} contains archives, but no {_PLAN}; specify another folder")
        folder.write(_PLAN, plan)
        return
    old = folder.read(_PLAN)
    differences = [
        "other files" if name == "files_sha256" else f"{name}={old.get(name)}, not {value}"
        for name, value in plan.items()
        if old.get(name) != value
    ]
    if differences:
        raise RunConflictError(
            f"{folder.place} contains archives that were made from other files or with other settings "
            f"({', '.join(differences)}); specify another folder, or delete this one"
        )


def _report(folder: "_Folder", archives: int, skipped: int, inputs: _Inputs) -> Report:
    sizes = folder.sizes()
    with ThreadPoolExecutor(_READERS) as pool:
        notes = list(pool.map(folder.read, map(_notes, range(archives))))
    problems = dict(inputs.problems)
    for note in notes:
        problems.update(note["problems"])
    return Report(
        archives,
        skipped,
        sum(note["files"] for note in notes),
        sum(note["maps"] for note in notes),
        sum(note["bytes"] for note in notes),
        sum(sizes[_archive(number)] for number in range(archives)),
        sum(note["stripped"] for note in notes),
        inputs.left_out,
        problems,
    )


# ---- The folder of the archives --------------------------------------------------------------------------------------


def _archive(number: int) -> str:
    return f"part-{number:05}.ddf"


def _notes(number: int) -> str:
    """Return the name of the JSON file about an archive, which is written before the archive appears."""
    return f"part-{number:05}.json"


class _Folder:
    """The folder of the archives, which may be at a URL. Files appear in it only when they are complete.

    Arguments:
        place: Its path or its URL.
    """

    def __init__(self, place: str | PathLike[str]) -> None:
        self.place = _absolute(place)
        self.path = None if is_url(self.place) else Path(self.place)

    def create(self) -> None:
        """Create the folder, unless it exists."""
        if self.path is None:
            make_folder(self.place)
        else:
            self.path.mkdir(parents=True, exist_ok=True)

    def sizes(self) -> dict[str, int]:
        """Return the names and sizes of the plan, the archives and the notes about them."""
        if self.path is None:
            return file_sizes(self.place)
        paths = [*self.path.glob("part-*"), *self.path.glob(_PLAN)]  # temporary files of others may disappear
        return {path.name: path.stat().st_size for path in paths}

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return bool(type_of(join_url(self.place, name))) if self.path is None else (self.path / name).exists()

    def has_complete(self, number: int) -> bool:
        """Return whether the index of an archive is intact and lists as many files as the notes about it."""
        name = _archive(number)
        try:
            with Archive(join_url(self.place, name) if self.path is None else self.path / name) as archive:
                return len(archive) == self.read(_notes(number))["files"]
        except (DamagedArchiveError, FileNotFoundError):
            return False

    def read(self, name: str) -> Any:
        """Return what a JSON file contains."""
        data = read_bytes(join_url(self.place, name)) if self.path is None else (self.path / name).read_bytes()
        try:
            return json.loads(data)
        except ValueError as error:
            raise RunConflictError(f"{self.place}: {name} is damaged; specify another folder") from error

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file."""
        data = json.dumps(content, indent=1).encode()
        if self.path is None:
            write_bytes(join_url(self.place, name), data)
            return
        with atomic_write(self.path / name) as temporary:
            temporary.write_bytes(data)

    @contextmanager
    def target(self, name: str, scratch: str) -> Iterator[Path]:
        """Yield the path to write an archive to: for a URL, that of a temporary file, which is then uploaded.

        Arguments:
            name: The name of the archive.
            scratch: Where to create the temporary file.
        """
        if self.path is not None:
            yield self.path / name
            return
        with tempfile.TemporaryDirectory(prefix="ddf-", dir=scratch) as temporary:
            path = Path(temporary) / name
            yield path
            upload(path, join_url(self.place, name))


# ---- On the client ---------------------------------------------------------------------------------------------------


class _Run:
    """Submits the tasks, a limited number at a time, and follows their progress.

    Arguments:
        client: The client.
        place: The folder of the archives.
        parts: The files of each archive.
        fingerprint: The fingerprint of the model.
        settings: Options of `ArchiveWriter`.
        finished: The size of each archive that exists, by its number.
        bar: The progress.
    """

    def __init__(
        self,
        client: Client,
        place: str,
        parts: list[list[tuple[str, str]]],
        fingerprint: bytes,
        settings: dict[str, Any],
        finished: dict[int, int],
        bar: Progress,
    ) -> None:
        self.client, self.parts, self.bar = client, parts, bar
        self.topic = f"ddf-{token_hex(8)}"
        self.arguments = place, fingerprint, settings, self.topic
        self.waiting = (number for number in range(len(parts)) if number not in finished)
        self.running: dict[str, tuple[int, Future[int]]] = {}
        self.lock = Lock()  # events arrive in another thread
        self.archives, self.bytes = len(finished), sum(finished.values())
        self.done = {number: len(parts[number]) for number in finished}  # files, for each archive
        bar.resume(sum(self.done.values()))

    def finish(self) -> None:
        """Write all archives that do not exist."""
        self.client.subscribe_topic(self.topic, lambda event: self._update(*event[1]))
        completed = as_completed(loop=self.client.loop)
        try:
            self._submit(completed)
            for future in completed:
                self._collect(future)
                self._submit(completed)
        except BaseException:
            with suppress(Exception):  # the cluster may be gone
                self.client.cancel([future for _, future in self.running.values()], force=True)
            raise
        finally:
            with suppress(Exception):
                self.client.unsubscribe_topic(self.topic)

    def _submit(self, completed: as_completed) -> None:
        limit = max(_IN_FLIGHT, 2 * sum(self.client.nthreads().values()))
        while len(self.running) < limit and (number := next(self.waiting, None)) is not None:
            files = zlib.compress(json.dumps(self.parts[number]).encode())
            key = f"{_archive(number)}-{self.topic}"
            future = self.client.submit(_write, number, files, *self.arguments, key=key, pure=False, retries=_RETRIES)
            self.running[key] = number, future
            completed.add(future)

    def _collect(self, future: "Future[int]") -> None:
        number, _ = self.running.pop(str(future.key))
        if future.status == "cancelled":
            raise RuntimeError(f"{_archive(number)} was cancelled; finished archives are kept: call again to resume")
        error = future.exception()
        if error is not None:
            raise RuntimeError(
                f"{_archive(number)} could not be written: {error}; finished archives are kept: call again to resume"
            ) from error
        size = future.result()  # not under the lock, for which the thread that receives results may wait
        with self.lock:
            self.archives += 1
            self.bytes += size
        self._update(number, len(self.parts[number]))

    def _update(self, number: int, done: int) -> None:
        """Show that some files of an archive have been compressed."""
        with self.lock:
            self.done[number] = max(done, self.done.get(number, 0))
            note = f"{self.archives:,} of {len(self.parts):,} archives, {self.bytes:,} bytes"
            self.bar.update(sum(self.done.values()), note)


# ---- On the workers --------------------------------------------------------------------------------------------------


def _write(number: int, packed: bytes, place: str, fingerprint: bytes, settings: dict[str, Any], topic: str) -> int:
    """Write an archive, and return its size in bytes, 0 if it exists.

    This may run several times, even at the same time: every run writes the same archive.
    """
    folder, worker = _Folder(place), get_worker()
    if not folder.has(_PLAN):
        raise FileNotFoundError(f"worker {worker.address} has no access to {place}, which all workers need")
    if folder.has(_archive(number)) and folder.has(_notes(number)) and folder.has_complete(number):
        return 0
    model = get_model(fingerprint, place, needed_by=_archive(number))
    files = [(name, _opened(location)) for name, location in json.loads(zlib.decompress(packed))]

    def tell(done: int) -> None:
        worker.log_event(topic, (number, done))
        task = worker.state.tasks.get(worker.get_current_task())
        if task is None or task.state == "cancelled":
            raise RuntimeError("the task was cancelled")

    with folder.target(_archive(number), worker.local_directory) as path:
        with ArchiveWriter(path, model, overwrite=True, **settings) as archive:
            folder.write(_notes(number), _add_files(archive, files, tell))
        return path.stat().st_size


def _opened(location: str) -> Path | RemoteFile:
    if not is_url(location):
        return Path(location)
    return local_path(location) or RemoteFile.at(location)


def _add_files(
    archive: ArchiveWriter, files: list[tuple[str, Path | RemoteFile]], tell: Callable[[int], None]
) -> dict[str, Any]:
    """Add files to an archive, and return what is known about them.

    Arguments:
        archive: The archive.
        files: The files, with their names.
        tell: A function to call from time to time with the number of files that have been added.
    """
    writer = FileWriter(archive)
    last = time.monotonic()
    for done, _ in enumerate(writer.add_all(files), start=1):
        if time.monotonic() - last > _SECONDS:
            tell(done)
            last = time.monotonic()
    if not writer.files and len(files) >= _SUSPICIOUS:
        name, why = writer.problems[0]
        raise OSError(f"none of its {len(files):,} files can be read, for example {name}: {why}")
    return {
        "files": writer.files,
        "maps": writer.maps,
        "bytes": writer.bytes,
        "stripped": len(writer.stripped),
        "problems": dict(writer.problems),
    }
