"""`ddf decompress`, `list`, `extract`, `verify` and `recover`."""

__all__ = ["add"]

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from ddf.cli.common import (
    Commands,
    add_json,
    add_max_size,
    add_model,
    add_threads,
    files,
    formatted,
    load_codec,
    print_result,
    printable,
    progress,
    shortened,
    thousands,
)

if TYPE_CHECKING:
    from ddf.archive import Archive

_NEEDED = "the model of the archive (default: the embedded one, or else found by its fingerprint)"


def add(commands: Commands) -> None:
    """Add the commands."""
    _add_decompress(commands)
    _add_list(commands)
    _add_extract(commands)
    _add_verify(commands)
    _add_recover(commands)


def open_archive(options: argparse.Namespace) -> "Archive":
    """Open an archive with the model that it needs, if available."""
    return _with_model(_open(options), options)


def _open(options: argparse.Namespace) -> "Archive":
    """Open an archive, without loading a codec."""
    from ddf.archive import Archive

    return Archive(options.archive, max_bytes=options.max_size, threads=getattr(options, "threads", None))


def _with_model(archive: "Archive", options: argparse.Namespace) -> "Archive":
    """Return an archive with the model that was passed: the same archive if there is none, or if it is not needed."""
    from ddf.archive import Archive

    if options.model is None:
        return archive
    needed = archive.fingerprint if any(archive.fingerprint) else None
    given = load_codec(options.model, needed)
    if archive.embeds_model and given.fingerprint != needed:
        print(
            f"{options.archive} embeds its model; --model {options.model} is a different model and is ignored",
            file=sys.stderr,
        )
        return archive
    with archive:
        return Archive(options.archive, given, archive.max_bytes, archive.threads)


def _announce(options: argparse.Namespace, archive: "Archive") -> None:
    """Print what an archive contains, before the codec is loaded."""
    if not options.json:
        print(printable(f"{options.archive}: {files(len(archive))}, {thousands(archive.size)} bytes"), flush=True)


def _add_decompress(commands: Commands) -> None:
    parser = formatted(
        commands,
        "decompress",
        "decompress an archive into files",
        "Write all files of an archive, with their original pixels, palettes and names.",
        "ddf decompress masks.ddf -o masks",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read, or its URL")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FOLDER", help="the folder to write to; created if needed"
    )
    add_model(parser, _NEEDED)
    parser.add_argument("--force", action="store_true", help="replace existing files (default: exit with an error)")
    add_threads(parser)
    add_max_size(parser)
    add_json(parser)
    parser.set_defaults(run=_decompress)


def _decompress(options: argparse.Namespace) -> int:
    from ddf.archive import FileReader

    start = time.monotonic()
    with open_archive(options) as archive:
        reader = FileReader(archive)
        written = reader.write_all(options.output, options.force)
        count = 0
        try:
            for _ in progress(written, len(archive), "decompressing", "file"):
                count += 1
        except BaseException:
            if count:
                print(f"{count:,} of {len(archive):,} files were written to {options.output}", file=sys.stderr)
            raise
    seconds = time.monotonic() - start
    print_result(
        options,
        {"files": count, "folder": options.output, "seconds": seconds},
        f"{options.output}: {files(count)}, {seconds:.1f} s",
    )
    return 0


def _add_list(commands: Commands) -> None:
    parser = formatted(
        commands,
        "list",
        "list the files in an archive",
        "Print the names of all files in an archive.",
        "ddf list masks.ddf",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read, or its URL")
    add_json(parser)
    parser.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from ddf.archive import Archive, FileReader

    with Archive(options.archive) as archive:
        names = FileReader(archive).names
        if options.json:
            print_result(options, {"names": list(names)})
        else:
            sys.stdout.writelines(f"{_quoted(name)}\n" for name in names)
    return 0


def _quoted(name: str) -> str:
    """Return a name as it is printed: in quotes if it would otherwise be ambiguous, or could control a terminal."""
    return name if name.isprintable() and "\\" not in name and name[:1] not in ("'", '"') else repr(name)


def _add_extract(commands: Commands) -> None:
    parser = formatted(
        commands,
        "extract",
        "extract some files from an archive",
        "Write the files with the given names without decoding the others.",
        "ddf extract masks.ddf street/0001.png -o .",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read, or its URL")
    parser.add_argument("names", nargs="+", metavar="NAME", help="file names as printed by `ddf list`")
    parser.add_argument(
        "-o", "--output", default=".", metavar="FOLDER", help="the folder to write to (default: the current one)"
    )
    add_model(parser, _NEEDED)
    parser.add_argument("--force", action="store_true", help="replace existing files (default: exit with an error)")
    add_max_size(parser)
    add_json(parser)
    parser.set_defaults(run=_extract)


def _extract(options: argparse.Namespace) -> int:
    from ddf.archive import FileReader
    from ddf.archive.output_folder import OutputFolder

    archive = _open(options)
    reader = FileReader(archive)
    options.names = list(dict.fromkeys(options.names))
    targets = [reader.target(reader.key(name)) for name in options.names]
    OutputFolder(options.output, options.force).check(targets)
    _announce(options, archive)
    with _with_model(archive, options) as archive:
        reader = FileReader(archive)
        places = [str(reader.write(name, options.output, options.force)) for name in options.names]
    print_result(options, {"files": places}, *places)
    return 0


def _add_verify(commands: Commands) -> None:
    parser = formatted(
        commands,
        "verify",
        "check the integrity of an archive",
        "Check everything that decompression relies on: the index, the records, all maps, file names and formats, and\n"
        "the SHA-256 if the archive has one. List any damage; the exit code is 1 if there is any.",
        "ddf verify masks.ddf",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read, or its URL")
    add_model(parser, _NEEDED)
    add_threads(parser)
    add_max_size(parser)
    add_json(parser)
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    from ddf.archive import DamagedArchiveError
    from ddf.archive.verify import check_archive

    try:
        archive = _open(options)
        _announce(options, archive)
        with _with_model(archive, options) as archive:
            count, digest = len(archive), archive.sha256
            checked = ((problem, done) for done, problem in check_archive(archive))
            problems = [problem for problem, _ in progress(checked, None, "verifying", "block") if problem]
    except DamagedArchiveError as error:
        if options.json:
            print(json.dumps({"intact": False, "damage": [str(error)]}))
        raise
    intact = f"{options.archive} is intact" + ("" if digest is None else f", and matches its SHA-256 {digest.hex()}")
    print_result(
        options,
        {"files": count, "intact": not problems, "damage": problems},
        *([f"damaged: {problem}" for problem in problems] or [intact]),
    )
    return 1 if problems else 0


def _add_recover(commands: Commands) -> None:
    parser = formatted(
        commands,
        "recover",
        "recover files from a damaged archive",
        "Write the intact files of a damaged archive. The exit code is 1 if any file is lost.",
        "ddf recover damaged.ddf -o saved",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read, or its URL")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FOLDER", help="the folder to write to; created if needed"
    )
    add_model(parser, _NEEDED)
    parser.add_argument("--force", action="store_true", help="replace existing files (default: exit with an error)")
    add_max_size(parser)
    add_json(parser)
    parser.set_defaults(run=_recover)


def _recover(options: argparse.Namespace) -> int:
    from ddf.archive import WrongModelError, recover
    from ddf.archive.formats import FileFormat
    from ddf.archive.images import to_file
    from ddf.archive.output_folder import OutputFolder
    from ddf.archive.reader import wrong_model

    output = OutputFolder(options.output, options.force)
    model = None if options.model is None else load_codec(options.model)
    written, arrays = 0, []
    with recover(options.archive, model, options.max_size) as recovery:
        if recovery.needs_model:
            raise WrongModelError(f"{options.archive}: {wrong_model(recovery.fingerprint, model, recovery.unusable)}")
        for found in progress(recovery, None, "recovering", "file"):
            name = found.name or f"{found.number:06}"
            if found.format is None and not name.endswith(".npy"):
                name += ".npy"
            try:
                output.write(name, to_file(found.array, found.format or FileFormat("npy")))
                written += 1
                arrays += [name] if found.format is None else []
            except (OSError, ValueError) as error:
                recovery.lost.append(f"{name!r}: {error}")
        lost = recovery.lost
    print_result(
        options,
        {"files": written, "as_arrays": len(arrays), "arrays": arrays, "lost": lost},
        f"{options.output}: {files(written)}",
        *shortened(
            [repr(name) for name in arrays], f"{len(arrays)} of them as npy arrays, because they were not files"
        ),
        *(f"lost: {line}" for line in lost),
    )
    return 1 if lost else 0
