"""Check everything that reading an archive relies on."""

__all__ = ["check_archive", "verify"]

import hashlib
from collections.abc import Iterator
from os import PathLike

from ddf.archive.archived_files import FileReader
from ddf.archive.blocks import Block
from ddf.archive.formats import FileFormat
from ddf.archive.images import to_file
from ddf.archive.limits import DEFAULT_MAX_BYTES
from ddf.archive.output_folder import OutputFolder
from ddf.archive.parallel import Pool, thread_count
from ddf.archive.reader import Archive
from ddf.archive.records import (
    DIGEST,
    FOOTER_SIZE,
    FORMAT,
    GROUP,
    HEADER_SIZE,
    INDEX,
    MODEL,
    REQUIRED,
    Group,
    Record,
    read_record,
)
from ddf.archive.varint import write_varint
from ddf.errors import DamagedArchiveError, DdfError, LimitError, WrongModelError
from ddf.protocol import Codec

_PIECE = 1 << 20


def verify(
    path: str | PathLike[str] | bytes,
    model: Codec | None = None,
    threads: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[str]:
    """Check an archive completely and return what is damaged: an empty list if it is intact.

    Arguments:
        path: The file, or its bytes.
        model: The codec that it was made with, if the archive does not contain it.
        threads: The number of threads that decode; None for one per core.
        max_bytes: The largest array to decode, in bytes.

    Raises:
        DamagedArchiveError: The archive has no readable index.
        WrongModelError: The archive needs a different model.

    Examples:
        >>> import numpy as np
        >>> from ddf.archive import compress
        >>> verify(compress(np.eye(3, dtype=np.uint8), model=None))
        []
    """
    with Archive(path, model, max_bytes, threads) as archive:
        return [problem for _, problem in check_archive(archive) if problem]


def check_archive(archive: Archive) -> Iterator[tuple[int, str]]:
    """Check an archive; yield the number of arrays checked since the last yield, and what is damaged."""
    yield from ((0, problem) for problem in _records(archive))
    yield from _blocks(archive)
    yield from ((0, problem) for problem in _files(archive))
    digest = archive.contents.digest
    if digest is not None and _sha256(archive, digest.position) != digest.head:
        yield 0, "the archive does not match its SHA-256"


def _records(archive: Archive) -> Iterator[str]:
    """Check that the archive consists of exactly the records that the index describes."""
    contents = archive.contents
    index, source = contents.index, contents.source
    position, end = HEADER_SIZE, source.size - FOOTER_SIZE
    groups = formats = arrays = first = 0
    while position < end:
        record = read_record(source.read, position, end)
        if record is None:
            yield f"the record at byte {position} is damaged"
            later = [start for start, _ in index.groups[groups + 1 :] if start > position]
            if not later:
                return
            groups += 1
            first = sum(count for _, count in index.groups[:groups])
            arrays = int(index.table.firsts[first])
            position = _record_before(archive, later[0])
            if position < 0:
                return
            continue
        if record.type == GROUP:
            count = index.groups[groups][1] if groups < len(index.groups) else 0
            problem = _group(archive, record, groups, first, arrays)
            if problem:
                yield f"the record at byte {position} is damaged: {problem}"
            groups, first = groups + 1, first + count
            arrays = int(index.table.firsts[first]) if first < len(index.table.counts) else len(archive)
        elif record.type == FORMAT:
            formats += 1
            if [record.head] != [write_varint(formats) + data for data in index.formats[formats - 1 : formats]]:
                yield f"the record at byte {position} is damaged: its file format differs from that in the index"
        elif record.type == MODEL:
            if position != HEADER_SIZE or not archive.embeds_model:
                yield f"the record at byte {position} is damaged: a model is out of place"
        elif record.type & REQUIRED and record.type != INDEX:
            yield f"the record at byte {position} has type {record.type}, which a newer version of ddf may read"
        elif record.type in (INDEX, DIGEST) and position < contents.end.position:
            yield f"the record at byte {position} is out of place"
        position = record.after
    if groups != len(index.groups) or formats < len(index.formats):
        yield "records are missing"


def _record_before(archive: Archive, data: int) -> int:
    """Return the position of the group's record whose data begins at `data`, or −1 if it is damaged."""
    source = archive.contents.source
    for position in range(data - 15, max(HEADER_SIZE, data - (1 << 20)) - 1, -1):
        record = read_record(source.read, position, source.size)
        if record is not None and record.data == data:
            return position
    return -1


def _group(archive: Archive, record: Record, number: int, first: int, arrays: int) -> str:
    """Return what is wrong with the record of a group, if anything."""
    index = archive.contents.index
    if number >= len(index.groups):
        return "the index does not list it"
    start, count = index.groups[number]
    try:
        group = Group.from_bytes(record.head, archive.size)
    except ValueError as error:
        return str(error)
    expected = Group(index.table.part(first, first + count), index.archive, record.position, arrays)
    if group != expected or record.data != start or record.after != start + sum(group.table.sizes):
        return "it does not match the index"
    return ""


def _blocks(archive: Archive) -> Iterator[tuple[int, str]]:
    """Decode all blocks."""
    pool: Pool[tuple[int, list[str]]] = Pool(thread_count(archive.threads))
    try:
        for block in archive.blocks():
            pool.submit(_check_block, archive, block)
            for count, problems in pool.ready():
                yield from _reported(count, problems)
        for count, problems in pool.rest():
            yield from _reported(count, problems)
    finally:
        pool.close()


def _reported(count: int, problems: list[str]) -> Iterator[tuple[int, str]]:
    yield count, problems[0] if problems else ""
    yield from ((0, problem) for problem in problems[1:])


def _check_block(archive: Archive, block: Block) -> tuple[int, list[str]]:
    """Return the number of arrays in a block, and what is damaged."""
    table = archive.contents.index.table
    numbers = range(block.number, block.number + block.count)
    labels = [repr(table.name(i)) if table.name(i) else f"array {i}" for i in numbers]
    try:
        arrays = archive.decode_block(block)
    except (LimitError, WrongModelError):
        raise
    except DdfError as error:
        return block.count, [f"{label}: {error.__cause__ or error}" for label in labels]
    problems = []
    for i, array in enumerate(arrays):
        format_ = FileReader(archive).format_of(block.number + i)
        try:
            # Whether an image can be written does not depend on its pixels.
            to_file(array[:1, :1] if format_.suits(array) and format_.mode else array, format_)
        except ValueError as error:
            problems.append(f"{labels[i]}: {error}")
    return block.count, problems


def _files(archive: Archive) -> Iterator[str]:
    """Check file formats, and that all files can be written to one folder."""
    for number, data in enumerate(archive.contents.index.formats, 1):
        try:
            FileFormat.from_bytes(data)
        except ValueError as error:
            yield f"file format {number}: {error}"
    reader = FileReader(archive)
    try:
        OutputFolder(".", overwrite=True).check(map(reader.target, range(len(archive))))
    except DamagedArchiveError as error:
        yield str(error)


def _sha256(archive: Archive, end: int) -> bytes:
    found = hashlib.sha256()
    for start in range(0, end, _PIECE):
        found.update(archive.contents.source.read(start, min(_PIECE, end - start)))
    return found.digest()
