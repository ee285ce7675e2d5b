"""`ddf compress`."""

__all__ = ["add"]

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddf.cli.common import (
    Commands,
    UsageError,
    add_json,
    add_max_size,
    add_model,
    add_threads,
    files,
    formatted,
    load_codec,
    positive,
    print_result,
    progress,
    shortened,
    thousands,
)

if TYPE_CHECKING:
    from ddf.archive import Codec
    from ddf.remote import RemoteFile


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "compress",
        "compress files and folders into one archive",
        "Compress files and folders of label maps (PNG, TIFF, npy) into one archive, with palettes and file names.\n"
        "Other files are stored byte for byte. The exit code is 1 if any file is unreadable or damaged.",
        "ddf compress masks -o masks.ddf",
        "ddf compress masks -o masks.ddf --model run/model.safetensors --embed",
        "ddf compress more -o masks.ddf --append --model run/model.safetensors",
        "ddf compress s3://bucket/masks -o s3://bucket/masks.ddf",
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files and folders to compress, or their URLs")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the archive to write, or its URL")
    add_model(parser, "a model trained with `ddf train` (default: the pretrained model)")
    parser.add_argument(
        "--embed", action="store_true", help="store the model in the archive (default: only its fingerprint)"
    )
    parser.add_argument(
        "--append", action="store_true", help="add to an existing archive (default: exit with an error)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file (default: exit with an error)")
    parser.add_argument(
        "--maps-per-block",
        type=positive,
        default=1,
        metavar="N",
        help="maps of equal size to code together; larger N: smaller archive, slower extraction (default: 1)",
    )
    add_threads(parser)
    add_max_size(parser)
    parser.add_argument(
        "--sha256", action="store_true", help="store the SHA-256 of the archive for `ddf verify` (default: not stored)"
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not verify the archive by decoding every map (default: verify)"
    )
    add_json(parser)
    parser.set_defaults(run=_compress)


def _compress(options: argparse.Namespace) -> int:
    from ddf.archive import ArchiveWriter, FileWriter, files_in

    _check_output(options)
    found = files_in(options.inputs)
    inputs = _without_output(found.files, options.output)
    if not inputs:
        raise ValueError(f"no files to compress in {', '.join(options.inputs)}")
    start = time.monotonic()
    with _written_to(options.output) as target:
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
            sha256=options.sha256,
            max_bytes=options.max_size,
        ) as archive:
            writer = FileWriter(archive)
            for _ in progress(writer.add_all(inputs), len(inputs), "compressing", "file"):
                pass
        size = target.stat().st_size - before
    seconds = time.monotonic() - start
    other = writer.maps - archive.coded
    problems = [*found.problems, *writer.problems]
    left_out = [str(path) for path in found.left_out]
    print_result(
        options,
        {
            "files": writer.files,
            "maps": writer.maps,
            "maps_by_model": archive.coded,
            "left_out": left_out,
            "stripped": writer.stripped,
            "problems": dict(problems),
            "bytes_before": writer.bytes,
            "bytes_after": size,
            "seconds": seconds,
        },
        f"{options.output}: {files(writer.files)}, {thousands(writer.bytes)} bytes in {thousands(size)} "
        f"({writer.bytes / max(1, size):.1f} : 1), {seconds:.1f} s",
        *([f"{other} of {writer.maps} maps were stored with a general-purpose compressor"] if other > 0 else []),
        *shortened(
            left_out, "skipped (hidden files, empty folders, broken links, links to folders or out of a folder)"
        ),
        *shortened(writer.stripped, "metadata not stored (resolution, text, coordinates)"),
        *(f"{name}: {why}" for name, why in problems),
        *_advice(options, archive.coded),
    )
    return 1 if problems else 0


def _check_output(options: argparse.Namespace) -> None:
    """Raise an error, before any work is done, if the archive cannot be written."""
    from ddf.remote import check_writable, is_url, local_path, type_of

    if options.append and options.force:
        raise UsageError("--append adds to a file and --force replaces it: pass only one of them")
    if options.output == "-":
        raise UsageError("-o -: archives cannot be written to standard output; specify a file")
    target = Path(options.output)
    if is_url(options.output):
        if options.append:
            raise UsageError(f"--append needs a local archive; download {options.output} and append to the copy")
        check_writable(options.output)
        local = local_path(options.output)
        if local is not None and not local.parent.is_dir():
            raise FileNotFoundError(f"cannot write {options.output}: the folder {local.parent} does not exist")
        type_ = type_of(options.output)
    else:
        type_ = "directory" if target.is_dir() else "file" if target.exists() else ""
    if type_ == "directory":
        raise IsADirectoryError(f"{options.output} is a folder; specify a file")
    if type_ and not (options.append or options.force):
        append = "" if is_url(options.output) else " or --append to add to it"
        raise FileExistsError(f"{options.output} already exists; use --force to replace it{append}")


def _without_output(
    inputs: "list[tuple[str, Path | RemoteFile]]", output: str
) -> "list[tuple[str, Path | RemoteFile]]":
    """Return the inputs without the archive to be written, which may be in one of their folders."""
    from ddf.remote import file_system, is_url, local_path

    target = local_path(output) if is_url(output) else Path(output)
    if target is None:
        place = file_system(output)[1]
        return [(name, file) for name, file in inputs if isinstance(file, Path) or file.path != place]
    itself = target.resolve()
    return [
        (name, file)
        for name, file in inputs
        if not isinstance(file, Path) or file.name != itself.name or file.resolve() != itself
    ]


@contextmanager
def _written_to(output: str) -> Iterator[Path]:
    """Yield the path to write an archive to: for a URL, that of a temporary file, which is then uploaded."""
    from ddf.remote import is_url, upload

    if not is_url(output):
        yield Path(output)
        return
    folder = Path(tempfile.mkdtemp(prefix="ddf-"))
    keep = False
    try:
        local = folder / "archive.ddf"
        yield local
        try:
            upload(local, output)
        except OSError as error:
            keep = True
            raise OSError(f"{error}; the archive was written to {local}: upload this file, or delete it") from error
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _model_of(archive: Path, options: argparse.Namespace) -> "Codec":
    """Return the model to append with: the one passed, the embedded one, or else the pretrained one."""
    from ddf.archive import Archive, WrongModelError
    from ddf.archive.reader import wrong_model

    model = load_codec(options.model)
    with Archive(archive, None if options.model is None else model) as there:
        needed = there.model or model
    if options.model is not None and needed.fingerprint != model.fingerprint:
        raise WrongModelError(f"{archive}: {wrong_model(needed.fingerprint, model)}")
    return needed


def _advice(options: argparse.Namespace, coded: int) -> list[str]:
    if options.model is None and not options.append and coded:
        return ["A model trained on your own maps with `ddf train` usually produces smaller archives."]
    if options.model is not None and not options.embed and coded:
        return [f"Keep {options.model}: decompression requires it (--embed stores it in the archive)."]
    return []
