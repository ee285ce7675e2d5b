"""`ddf demo`."""

__all__ = ["add"]

import argparse

from ddf.commands.common import Commands, formatted


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = formatted(
        commands,
        "demo",
        "a tour on data that comes with ddf",
        "Trains, scores, samples, compresses and decompresses, on data that is drawn on the spot; a few minutes.",
        "ddf demo",
        "ddf demo -o pictures",
    )
    parser.add_argument("-o", "--output", default="demo", metavar="FOLDER", help="where pictures go (default: demo)")
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from ddf.demo import main

    main(options.output)
    return 0
