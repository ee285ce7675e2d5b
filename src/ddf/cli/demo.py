"""`ddf demo`."""

__all__ = ["add"]

import argparse
import contextlib
import sys

from ddf.cli.common import Commands, add_json, formatted, print_result


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "demo",
        "run a short tour on generated data",
        "Train, score, sample, compress and decompress on generated data. This takes about a minute.",
        "ddf demo",
        "ddf demo -o pictures",
    )
    parser.add_argument(
        "-o", "--output", default="demo", metavar="FOLDER", help="the folder to write to (default: demo)"
    )
    add_json(parser)
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from ddf.cli.tour import main

    if not options.json:
        main(options.output)
        return 0
    with contextlib.redirect_stdout(sys.stderr):
        tables = main(options.output)
    print_result(options, {"folder": options.output, **tables})
    return 0
