"""`ddf compress`, `decompress`, `list`, `extract`, `verify` and `recover`."""

__all__ = ["add"]

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ddf.commands.common import (
    Commands,
    UsageError,
    add_json,
    add_model,
    formatted,
    load_codec,
    positive,
    progress,
    say,
    thousands,
)

if TYPE_CHECKING:
    from ddf.archive import Archive, Codec

_SHOWN = 5  # names in a message
_NEEDED = "the model of the archive (default: the embedded one, or else the pretrained one)"


def add(commands: Commands) -> None:
    """Add the commands."""
    _add_compress(commands)
    _add_decompress(commands)
    _add_list(commands)
    _add_extract(commands)
    _add_verify(commands)
    _add_recover(commands)


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=positive, metavar="N", help="number of threads (default: one per core)")


# ---- compress --------------------------------------------------------------------------------------------------------


def _add_compress(commands: Commands) -> None:
    parser = formatted(
        commands,
        "compress",
        "compress files and folders into one archive",
        "Compress files and folders of label maps (PNG, TIFF, npy) into one archive, with palettes and file names.\n"
        "Other files are stored byte for byte.",
        "ddf compress masks -o masks.ddf",
        "ddf compress masks -o masks.ddf --model run/model.safetensors --embed",
        "ddf compress more -o masks.ddf --append --model run/model.safetensors",
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files and folders to compress")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the archive to write")
    add_model(parser, "a model trained with `ddf train` (default: the pretrained one)")
    parser.add_argument(
        "--embed", action="store_true", help="store the model in the archive (default: only its fingerprint)"
    )
    parser.add_argument("--append", action="store_true", help="add to an existing archive (default: refuse)")
    parser.add_argument("--force", action="store_true", help="replace an existing file (default: refuse)")
    parser.add_argument(
        "--maps-per-block",
        type=positive,
        default=1,
        metavar="N",
        help="equally sized maps to code together; more is smaller, but slower to extract from (default: 1)",
    )
    _add_threads(parser)
    parser.add_argument(
        "--no-verify", action="store_true", help="skip decoding every map to verify it (default: verify)"
    )
    add_json(parser)
    parser.set_defaults(run=_compress)


def _compress(options: argparse.Namespace) -> int:
    from ddf.archive import ArchiveWriter, FileWriter, files_in
    from ddf.archive.folders import left_out

    if options.append and options.force:
        raise UsageError("--append adds to a file and --force replaces it: pass one of them")
    target = Path(options.output)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name the file to write")
    if target.exists() and not (options.append or options.force):
        raise FileExistsError(f"{target} already exists; --force replaces it, --append adds to it")
    files = [(name, path) for name, path in files_in(options.inputs) if path.resolve() != target.resolve()]
    others = [str(path) for path in left_out(options.inputs)]
    if not files:
        raise ValueError(f"no files to compress in {', '.join(options.inputs)}")
    start = time.monotonic()
    before = target.stat().st_size if options.append and target.exists() else 0
    model = _model_of(target, options) if before else load_codec(options.model)
    with ArchiveWriter(
        target,
        model,
        embed_model=options.embed and not before,
        maps_per_block=options.maps_per_block,
        verify=not options.no_verify,
        append=options.append,
        overwrite=options.force,
        threads=options.threads,
    ) as archive:
        writer = FileWriter(archive)
        for name, path in progress(files, len(files), "compressing", "file"):
            writer.add(path, name)
        writer.finish()
    sizes = sum(path.stat().st_size for _, path in files), target.stat().st_size - before
    seconds = time.monotonic() - start
    other = writer.maps - archive.coded
    say(
        options,
        {
            "files": len(files),
            "maps": writer.maps,
            "maps_by_model": archive.coded,
            "left_out": others,
            "stripped": writer.stripped,
            "bytes_before": sizes[0],
            "bytes_after": sizes[1],
            "seconds": seconds,
        },
        f"{target}: {_files(len(files))}, {thousands(sizes[0])} bytes in {thousands(sizes[1])} "
        f"({sizes[0] / max(1, sizes[1]):.1f} : 1), {seconds:.1f} s",
        *([f"{other} of {writer.maps} maps were stored by a general-purpose compressor"] if other else []),
        *_some(others, "skipped (hidden files, broken links, links to folders, empty folders)"),
        *_some(writer.stripped, "metadata not stored (resolution, text, coordinates)"),
        *_advice(options),
    )
    return 0


def _files(count: int) -> str:
    return f"{thousands(count)} file{'s' * (count != 1)}"


def _some(names: list[str], what: str) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{what}: {', '.join(names[:_SHOWN])}{more}"]


def _model_of(archive: Path, options: argparse.Namespace) -> "Codec":
    """Return the model to append with: the one passed, the embedded one, or else the pretrained one."""
    from ddf.archive import Archive

    with Archive(archive) as there:
        if options.model is None and there.embeds_model and there.model is not None:
            return there.model
        needed = there.fingerprint if any(there.fingerprint) else None
    return _fitting_model(options.model, needed, str(archive))


def _fitting_model(path: str | None, needed: bytes | None, archive: str) -> "Codec":
    """Return the model passed, or else the pretrained one; refuse it if the archive needs another."""
    from ddf.archive import WrongModelError
    from ddf.archive.layout import wrong_model

    model = load_codec(path, needed)
    if needed is not None and needed != model.fingerprint:
        raise WrongModelError(f"{archive}: {wrong_model(needed, None if path is None else model)}")
    return model


def _advice(options: argparse.Namespace) -> list[str]:
    if options.model is None and not options.append:
        return ["A model trained on your own maps with `ddf train` usually makes smaller archives."]
    if options.model is not None and not options.embed:
        return [f"Keep {options.model}: decompressing needs it (--embed stores it in the archive)."]
    return []


# ---- Reading ---------------------------------------------------------------------------------------------------------


def open_archive(path: str, model: str | None) -> "Archive":
    """Open an archive with the model that it needs, if available."""
    from ddf.archive import Archive

    archive = Archive(path)
    if model is not None:
        given = load_codec(model, archive.fingerprint if any(archive.fingerprint) else None)
        if archive.embeds_model and given.fingerprint != archive.fingerprint:
            print(f"{path} embeds its model; --model {model} is a different model and is ignored", file=sys.stderr)
        else:
            archive.close()
            return Archive(path, given)
    elif not archive.embeds_model and any(archive.fingerprint):
        ours = load_codec(None)
        if archive.fingerprint == ours.fingerprint:
            archive.close()
            return Archive(path, ours)
    return archive


def _check_folder(options: argparse.Namespace) -> None:
    path = Path(options.output)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file; name a folder to write to")


def _add_decompress(commands: Commands) -> None:
    parser = formatted(
        commands,
        "decompress",
        "decompress an archive into files",
        "Write all files of an archive, with the same pixels, palettes and names.",
        "ddf decompress masks.ddf -o masks",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FOLDER", help="the folder to write to; created if needed"
    )
    add_model(parser, _NEEDED)
    parser.add_argument("--force", action="store_true", help="replace existing files (default: refuse)")
    _add_threads(parser)
    add_json(parser)
    parser.set_defaults(run=_decompress)


def _decompress(options: argparse.Namespace) -> int:
    from ddf.archive import FileReader

    start = time.monotonic()
    _check_folder(options)
    with open_archive(options.archive, options.model) as archive:
        reader = FileReader(archive)
        written = reader.write_all(options.output, options.force, threads=options.threads)
        count = 0
        try:
            for _ in progress(written, len(reader.names), "decompressing", "file"):
                count += 1
        except BaseException:
            if count:
                print(f"{count:,} of {len(reader.names):,} files were written to {options.output}", file=sys.stderr)
            raise
    seconds = time.monotonic() - start
    say(
        options,
        {"files": count, "folder": options.output, "seconds": seconds},
        f"{options.output}: {_files(count)}, {seconds:.1f} s",
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
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read")
    add_json(parser)
    parser.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from ddf.archive import Archive
    from ddf.archive.folders import file_names

    with Archive(options.archive) as archive:
        names = file_names(archive)
    say(options, {"names": names}, *(repr(name) if re.search(r"[\x00-\x1f\x7f]", name) else name for name in names))
    return 0


def _add_extract(commands: Commands) -> None:
    parser = formatted(
        commands,
        "extract",
        "extract some files from an archive",
        "Write the files with the given names without decoding the others.",
        "ddf extract masks.ddf street/0001.png -o .",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read")
    parser.add_argument("names", nargs="+", metavar="NAME", help="file names as printed by `ddf list`")
    parser.add_argument(
        "-o", "--output", default=".", metavar="FOLDER", help="the folder to write to (default: the current one)"
    )
    add_model(parser, _NEEDED)
    parser.add_argument("--force", action="store_true", help="replace existing files (default: refuse)")
    add_json(parser)
    parser.set_defaults(run=_extract)


def _extract(options: argparse.Namespace) -> int:
    from ddf.archive import FileReader

    _check_folder(options)
    with open_archive(options.archive, options.model) as archive:
        reader = FileReader(archive)
        places = {}
        unnamed = {f"{number:06}": number for number, name in enumerate(archive.names) if not name}
        for name in options.names:
            if name not in archive and name not in unnamed:
                raise FileNotFoundError(
                    f"{options.archive} does not contain {name!r}; `ddf list {options.archive}` prints the names"
                )
            places[name] = reader.place(name, options.output)
            if places[name].exists() and not options.force:
                raise FileExistsError(f"{places[name]} already exists; --force replaces it")
        for name, place in places.items():
            array = archive[name if name in archive else unnamed[name]]
            place.parent.mkdir(parents=True, exist_ok=True)
            reader.write(name, place, array)
    say(options, {"files": [str(place) for place in places.values()]}, *(str(place) for place in places.values()))
    return 0


def _add_verify(commands: Commands) -> None:
    parser = formatted(
        commands,
        "verify",
        "check the integrity of an archive",
        "Decode all files and compare them with their checksums. The exit code is 1 if the archive is damaged.",
        "ddf verify masks.ddf",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read")
    add_model(parser, _NEEDED)
    _add_threads(parser)
    add_json(parser)
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    from ddf.archive import DamagedArchiveError, FileReader
    from ddf.archive.folders import file_names

    try:
        with open_archive(options.archive, options.model) as archive:
            items = archive.items(threads=options.threads)
            for _ in progress(items, len(archive), "verifying", "array"):
                pass
            FileReader(archive)  # reads the manifests, too
            count = len(file_names(archive))
    except DamagedArchiveError as error:
        if options.json:
            print(json.dumps({"intact": False, "error": str(error)}))
        raise
    say(options, {"files": count, "intact": True}, f"{options.archive} is intact: {_files(count)}")
    return 0


def _add_recover(commands: Commands) -> None:
    parser = formatted(
        commands,
        "recover",
        "recover files from a damaged archive",
        "Write the intact files of a damaged archive. The exit code is 1 if any file was lost.",
        "ddf recover damaged.ddf -o saved",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FOLDER", help="the folder to write to; created if needed"
    )
    add_model(parser, _NEEDED)
    parser.add_argument("--force", action="store_true", help="replace existing files (default: refuse)")
    add_json(parser)
    parser.set_defaults(run=_recover)


def _recover(options: argparse.Namespace) -> int:
    import io

    from ddf.archive import Archive, ArchiveWriter, FileReader, recover
    from ddf.archive.recover import needed_model

    _check_folder(options)
    found = recover(options.archive, _fitting_model(options.model, needed_model(options.archive), options.archive))
    lost = [line.replace("; `recover` may save what is left", "") for line in found.lost]
    buffer = io.BytesIO()  # an archive of what is intact
    with ArchiveWriter(buffer, model=None, verify=False) as saved:
        for name, array in found.arrays:
            if name in saved.names:
                lost.append(f"{name!r}: the archive contains two files with this name")
            else:
                saved.add(array, name)
    reader = FileReader(Archive(buffer.getvalue()))
    written: set[Path] = set()
    arrays: list[str] = []
    for name in reader.names:
        try:
            place = reader.place(name, options.output)
            if place in written or (place.exists() and not options.force):
                raise FileExistsError(f"{place} already exists" + ("" if place in written else "; --force replaces it"))
            place.parent.mkdir(parents=True, exist_ok=True)
            reader.write(name, place)
            written.add(place)
            if not reader.is_known(name):
                arrays.append(name)
        except (OSError, ValueError) as error:
            lost.append(f"{name!r}: {error}")
    say(
        options,
        {"files": len(written), "as_arrays": len(arrays), "arrays": arrays, "lost": lost},
        f"{options.output}: {_files(len(written))}",
        *_some(
            [repr(name) for name in arrays],
            f"{len(arrays)} of them as npy arrays, because their manifest is missing",
        ),
        *(f"lost: {line}" for line in lost),
    )
    return 1 if lost else 0
