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
    device,
    formatted,
    integer_model,
    positive,
    progress,
    say,
    thousands,
)

if TYPE_CHECKING:
    from ddf.codec import Archive, IntegerFlow

_SHOWN = 5  # names in a message
_NEEDED = "the model the archive was made with, unless the archive holds it, or it is the one that comes with ddf"


def add(commands: Commands) -> None:
    """Adds the commands."""
    _add_compress(commands)
    _add_decompress(commands)
    _add_list(commands)
    _add_extract(commands)
    _add_verify(commands)
    _add_recover(commands)


def _add_work(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=positive, default=1, metavar="N", help="how many work at once (default: 1)")
    parser.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: cpu)")


# ---- compress --------------------------------------------------------------------------------------------------------


def _add_compress(commands: Commands) -> None:
    parser = formatted(
        commands,
        "compress",
        "files and folders into one archive",
        "Puts files and folders of label maps (PNG, TIFF, npy) into an archive: pixels, palettes, names and folders.\n"
        "Files that are no label maps are kept as they are.",
        "ddf compress masks -o masks.ddf",
        "ddf compress masks -o masks.ddf --model run/model.safetensors --embed",
        "ddf compress more -o masks.ddf --append --model run/model.safetensors",
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files and folders")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the archive")
    add_model(parser, "a model made by `ddf train` (default: the one that comes with ddf)")
    parser.add_argument("--embed", action="store_true", help="put the model into the archive")
    parser.add_argument("--append", action="store_true", help="add to an archive that is there")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument(
        "--per-block", type=positive, default=1, metavar="N", help="maps of one size that share a block (default: 1)"
    )
    _add_work(parser)
    parser.add_argument("--no-verify", action="store_true", help="do not decode everything before it is written")
    add_json(parser)
    parser.set_defaults(run=_compress)


def _compress(options: argparse.Namespace) -> int:
    from ddf.codec import ArchiveWriter, FileWriter, files_in
    from ddf.codec.folders import left_out

    if options.append and options.force:
        raise UsageError("--append adds to a file and --force replaces it: one or the other")
    target = Path(options.output)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name the file to write")
    if target.exists() and not (options.append or options.force):
        raise FileExistsError(f"{target} is there already; --force replaces it, --append adds to it")
    files = [(name, path) for name, path in files_in(options.inputs) if path.resolve() != target.resolve()]
    others = [str(path) for path in left_out(options.inputs)]
    if not files:
        raise ValueError(f"there are no files in {', '.join(options.inputs)} that could be in {target}")
    start = time.monotonic()
    before = target.stat().st_size if options.append and target.exists() else 0
    model = _model_of(target, options) if before else integer_model(options.model)
    with ArchiveWriter(
        target,
        model.to(options.device),
        embed_model=options.embed and not before,
        maps_per_block=options.per_block,
        verify=not options.no_verify,
        append=options.append,
        overwrite=options.force,
        processes=options.processes,
    ) as archive:
        writer = FileWriter(archive)
        for name, path in progress(files, len(files), "compressing", "file"):
            writer.add(path, name)
        writer.finish()
    sizes = sum(path.stat().st_size for _, path in files), target.stat().st_size - before
    seconds = time.monotonic() - start
    other = writer.maps - archive.modelled
    say(
        options,
        {
            "files": len(files),
            "maps": writer.maps,
            "maps_by_model": archive.modelled,
            "left_out": others,
            "stripped": writer.stripped,
            "bytes_before": sizes[0],
            "bytes_after": sizes[1],
            "seconds": seconds,
        },
        f"{target}: {_files(len(files))}, {thousands(sizes[0])} bytes in {thousands(sizes[1])} "
        f"({sizes[0] / max(1, sizes[1]):.1f} : 1), {seconds:.1f} s",
        *([f"By a general compressor, which does better there: {other} of {writer.maps} maps"] if other else []),
        *_some(others, "left out, as hidden files, links to folders, empty folders and the like are"),
        *_some(writer.stripped, "hold more than pixels and a palette (resolution, text, places); that is not kept"),
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


def _model_of(archive: Path, options: argparse.Namespace) -> "IntegerFlow":
    """The model to go on with: the one named, or the one that the archive holds, or else ddf's own."""
    from ddf.codec import Archive

    with Archive(archive) as there:
        if options.model is None and there.embeds_model and there.model is not None:
            return there.model
        needed = there.fingerprint if any(there.fingerprint) else None
    return _fitting_model(options.model, needed, str(archive))


def _fitting_model(path: str | None, needed: bytes | None, archive: str) -> "IntegerFlow":
    """The model named, or else ddf's own; refuses one that is not what an archive needs."""
    from ddf.codec import WrongModelError
    from ddf.codec.layout import wrong_model

    model = integer_model(path, needed)
    if needed is not None and needed != model.fingerprint:
        raise WrongModelError(f"{archive}: {wrong_model(needed, None if path is None else model)}")
    return model


def _advice(options: argparse.Namespace) -> list[str]:
    if options.model is None and not options.append:
        return ["A model of your own (`ddf train`) makes many maps smaller, as a rule much smaller."]
    if options.model is not None and not options.embed:
        return [f"It needs {options.model} to be read again (or say --embed)."]
    return []


# ---- Reading ---------------------------------------------------------------------------------------------------------


def open_archive(path: str, model: str | None, where: str = "cpu") -> "Archive":
    """Opens an archive with the model it needs, if that is at hand."""
    from ddf.codec import Archive, pretrained

    archive = Archive(path)
    if model is not None:
        given = integer_model(model, archive.fingerprint if any(archive.fingerprint) else None)
        if archive.embeds_model and given.fingerprint != archive.fingerprint:
            print(f"{path} holds the model that reads it; {model} is another one and not used", file=sys.stderr)
        else:
            archive.close()
            return Archive(path, given.to(where))
    elif not archive.embeds_model and any(archive.fingerprint):
        ours = pretrained()
        if archive.fingerprint == ours.fingerprint:
            archive.close()
            return Archive(path, ours.to(where))
    if archive.embeds_model and where != "cpu" and archive.model is not None:
        archive.model.to(where)
    return archive


def _check_folder(options: argparse.Namespace) -> None:
    path = Path(options.output)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file; name a folder to write to")


def _add_decompress(commands: Commands) -> None:
    parser = formatted(
        commands,
        "decompress",
        "an archive into files",
        "Writes all files of an archive: the same pixels and palettes, under the same names.",
        "ddf decompress masks.ddf -o masks",
    )
    parser.add_argument("archive")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="where to; it is made if need be")
    add_model(parser, _NEEDED)
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    _add_work(parser)
    add_json(parser)
    parser.set_defaults(run=_decompress)


def _decompress(options: argparse.Namespace) -> int:
    from ddf.codec import FileReader

    start = time.monotonic()
    _check_folder(options)
    with open_archive(options.archive, options.model, options.device) as archive:
        reader = FileReader(archive)
        written = reader.write_all(options.output, options.force, processes=options.processes)
        count = 0
        try:
            for _ in progress(written, len(reader.names), "decompressing", "file"):
                count += 1
        except BaseException:
            if count:
                print(f"{count:,} of {len(reader.names):,} files are in {options.output}", file=sys.stderr)
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
        commands, "list", "what is in an archive", "Prints the names of all files of an archive.", "ddf list masks.ddf"
    )
    parser.add_argument("archive")
    add_json(parser)
    parser.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from ddf.codec import Archive
    from ddf.codec.folders import file_names

    with Archive(options.archive) as archive:
        names = file_names(archive)
    say(options, {"names": names}, *(repr(name) if re.search(r"[\x00-\x1f\x7f]", name) else name for name in names))
    return 0


def _add_extract(commands: Commands) -> None:
    parser = formatted(
        commands,
        "extract",
        "some files of an archive",
        "Writes the files of these names, without reading the others.",
        "ddf extract masks.ddf street/0001.png -o .",
    )
    parser.add_argument("archive")
    parser.add_argument("names", nargs="+", metavar="NAME", help="names as `ddf list` or `ddf list --json` says")
    parser.add_argument("-o", "--output", default=".", metavar="FOLDER", help="where to (default: here)")
    add_model(parser, _NEEDED)
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    add_json(parser)
    parser.set_defaults(run=_extract)


def _extract(options: argparse.Namespace) -> int:
    from ddf.codec import FileReader

    _check_folder(options)
    with open_archive(options.archive, options.model) as archive:
        reader = FileReader(archive)
        places = {}
        unnamed = {f"{number:06}": number for number, name in enumerate(archive.names) if not name}
        for name in options.names:
            if name not in archive and name not in unnamed:
                raise KeyError(f"{options.archive} holds no {name!r}; `ddf list {options.archive}` says what it holds")
            places[name] = reader.place(name, options.output)
            if places[name].exists() and not options.force:
                raise FileExistsError(f"{places[name]} is there already; --force replaces it")
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
        "whether an archive is whole",
        "Decodes everything and compares it with its checksums.",
        "ddf verify masks.ddf",
    )
    parser.add_argument("archive")
    add_model(parser, _NEEDED)
    _add_work(parser)
    add_json(parser)
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    from ddf.codec import DamagedArchiveError, FileReader
    from ddf.codec.folders import file_names

    try:
        with open_archive(options.archive, options.model, options.device) as archive:
            items = archive.items(processes=options.processes)
            for _ in progress(items, len(archive), "verifying", "array"):
                pass
            FileReader(archive)  # what is said of files is read as well
            count = len(file_names(archive))
    except DamagedArchiveError as error:
        if options.json:
            print(json.dumps({"whole": False, "error": str(error)}))
        raise
    say(options, {"files": count, "whole": True}, f"{options.archive} is whole: {_files(count)}")
    return 0


def _add_recover(commands: Commands) -> None:
    parser = formatted(
        commands,
        "recover",
        "what is left of a damaged archive",
        "Writes the files of a damaged archive that can still be read. The exit code is 1 if anything was wrong.",
        "ddf recover damaged.ddf -o saved",
    )
    parser.add_argument("archive")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="where to; it is made if need be")
    add_model(parser, "the model the archive was made with, unless it holds it (default: the one that comes with ddf)")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    add_json(parser)
    parser.set_defaults(run=_recover)


def _recover(options: argparse.Namespace) -> int:
    import io

    from ddf.codec import Archive, ArchiveWriter, FileReader, recover
    from ddf.codec.recover import needed_model

    _check_folder(options)
    found = recover(options.archive, _fitting_model(options.model, needed_model(options.archive), options.archive))
    lost = [line.replace("; `recover` may save what is left", "") for line in found.lost]
    buffer = io.BytesIO()  # a whole archive of what is left
    with ArchiveWriter(buffer, model=None, verify=False) as whole:
        for name, array in found.arrays:
            if name in whole.names:
                lost.append(f"{name!r}: there are two of that name")
            else:
                whole.add(array, name)
    reader = FileReader(Archive(buffer.getvalue()))
    written: set[Path] = set()
    for name in reader.names:
        try:
            place = reader.place(name, options.output)
            if place in written or (place.exists() and not options.force):
                raise FileExistsError(
                    f"{place} is there already" + ("" if place in written else "; --force replaces it")
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            reader.write(name, place)
            written.add(place)
        except (OSError, ValueError) as error:
            lost.append(f"{name!r}: {error}")
    arrays = [name for name in reader.names if not reader.is_known(name)]
    say(
        options,
        {"files": len(written), "as_arrays": len(arrays), "arrays": arrays, "lost": lost},
        f"{options.output}: {_files(len(written))}",
        *_some(
            [repr(name) for name in arrays],
            f"{len(arrays)} of them as npy arrays: what files they were is not known any more",
        ),
        *(f"lost: {line}" for line in lost),
    )
    return 1 if lost else 0
