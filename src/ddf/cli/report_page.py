"""`ddf report`."""

__all__ = ["add"]

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddf.cli.archives import open_archive
from ddf.cli.common import (
    Commands,
    UsageError,
    add_force,
    add_json,
    add_max_size,
    add_model,
    add_threads,
    check_output,
    formatted,
    positive,
    print_result,
    progress,
    thousands,
)

if TYPE_CHECKING:
    from ddf.viz.archive_statistics import ArchiveStatistics


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "report",
        "describe an archive on a web page",
        "Write a web page about an archive: its size compared with other codecs, the bits per pixel of its maps, its\n"
        "most expensive maps with the bits of their pixels, and its classes. The page is a single file.",
        "ddf report masks.ddf -o report.html",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="the archive to read, or its URL")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="the .html file to write")
    add_model(parser, "the model of the archive (default: the embedded one, or else found by its fingerprint)")
    parser.add_argument(
        "--max-maps",
        type=positive,
        default=50,
        metavar="N",
        help="maximum number of maps to compress with other codecs and to count classes in (default: 50)",
    )
    add_force(parser)
    add_threads(parser)
    add_max_size(parser)
    add_json(parser)
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from ddf.files import atomic_write
    from ddf.viz.archive_page import archive_page, file_name
    from ddf.viz.archive_statistics import measure

    if options.output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {options.output} has an unsupported suffix; pass an .html file")
    check_output(options)
    with open_archive(options) as archive:
        found = measure(
            archive, options.max_maps, progress=lambda steps, total: progress(steps, total, "measuring", "block")
        )
        page = archive_page(found, file_name(archive.name))
    with atomic_write(options.output) as temporary:
        temporary.write_text(page, encoding="utf-8")
    result = _result(found) | {"file": str(options.output)}
    pixels = f", {result['bits_per_pixel']:.4f} bits per pixel" if found.maps else ""
    print_result(
        options,
        result,
        f"{options.output}: {thousands(found.maps)} label map{'s' * (found.maps != 1)}{pixels}; open it in a browser",
    )
    return 0


def _result(found: "ArchiveStatistics") -> dict[str, Any]:
    """Return the result as plain data."""
    index, comparison = found.index, found.comparison
    pixels = int(index.pixels.sum())
    return {
        "maps": found.maps,
        "files": index.files,
        "other_arrays": found.arrays - found.maps - index.files,
        "pixels": pixels,
        "bytes": found.size,
        "raw_bytes": index.raw_size,
        "bits_per_pixel": 8 * float(index.sizes.sum()) / pixels if found.maps else None,
        "model": None if found.fingerprint is None else found.fingerprint.hex(),
        "embedded": found.embedded,
        "comparison": None
        if comparison is None
        else {
            "maps": comparison.maps,
            "pixels": comparison.pixels,
            "this archive": comparison.size,
            **comparison.others,
        },
        "classes": {
            "maps": found.labels.maps,
            "labels": found.labels.count,
            "frequent": [
                {"label": share.label, "name": share.name, "pixels": share.pixels, "bits": share.bits}
                for share in found.labels.frequent
            ],
        },
        "expensive": [{"name": one.name, "shape": list(one.shape), "bytes": one.size} for one in found.costly],
    }
