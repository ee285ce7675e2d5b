"""`ddf models`."""

__all__ = ["add"]

import argparse
from pathlib import Path
from typing import Any

from ddf.cli.common import Commands, add_json, formatted, load_codec, print_result, thousands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "models",
        "list, add and show models that are found by fingerprint",
        "Manage the models that `ddf` finds by fingerprint. They are files in the folder `models` of the cache\n"
        "(~/.cache/ddf, or DDF_CACHE). Set DDF_MODELS to another folder, or its URL, to look there as well.",
        "ddf models add run/model.safetensors",
        "ddf models add run/model.safetensors --to s3://bucket/masks",
        "ddf models list",
        "ddf models show 3f9a51",
    )
    add_json(parser)
    parser.set_defaults(run=_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", help="(default: list)")
    listing = actions.add_parser("list", help="list the models", description="List the models and their files.")
    adding = actions.add_parser(
        "add",
        help="add models",
        description="Copy models to the folder of the user's models, or to another one, and name them by fingerprint.",
    )
    adding.add_argument("models", nargs="+", metavar="MODEL", help="model files")
    adding.add_argument("--to", metavar="PLACE", help="a folder or its URL (default: the folder of the user's models)")
    showing = actions.add_parser(
        "show", help="describe a model", description="Describe a model, as `ddf inspect` does."
    )
    showing.add_argument(
        "model", metavar="MODEL", help="the first six or more digits of a fingerprint, or a model file"
    )
    for action, run in ((listing, _list), (adding, _add), (showing, _show)):
        add_json(action, default=argparse.SUPPRESS)
        action.set_defaults(run=run)


def _list(options: argparse.Namespace) -> int:
    from ddf.registry import damage_of, listed_models, user_models

    entries: list[dict[str, Any]] = [
        {"fingerprint": name, "bytes": path.stat().st_size, "file": str(path), "damage": damage_of(path)}
        for name, path in listed_models()
    ]
    lines = [
        f"| {entry['fingerprint']} | {thousands(entry['bytes'])} | {entry['damage'] or entry['file']} |"
        for entry in entries
    ]
    hint = [] if len(entries) > 1 else [f"`ddf models add MODEL` copies others to {user_models()}"]
    table = ["| fingerprint | bytes | file |", "|---|---|---|", *lines, *hint]
    print_result(options, {"models": entries}, *table)
    return 1 if any(entry["damage"] for entry in entries) else 0


def _add(options: argparse.Namespace) -> int:
    from ddf.registry import add_model

    models = [load_codec(path) for path in options.models]
    files = [add_model(model, options.to) for model in models]
    print_result(
        options,
        {"models": [{"fingerprint": Path(file).stem, "file": file} for file in files]},
        *files,
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    from ddf.cli.inspect import inspect_model
    from ddf.registry import model_path

    options.file = Path(model_path(options.model))
    return inspect_model(options)
