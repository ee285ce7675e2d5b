"""Options and functions shared by the commands."""

__all__ = [
    "Commands",
    "UsageError",
    "add_debug",
    "add_device",
    "add_force",
    "add_json",
    "add_max_size",
    "add_model",
    "add_threads",
    "byte_size",
    "check_output",
    "device",
    "files",
    "formatted",
    "load_codec",
    "load_model",
    "positive",
    "print_result",
    "printable",
    "progress",
    "seed",
    "shortened",
    "size_of",
    "thousands",
]

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddf.cli import interruption
from ddf.progress import Progress

if TYPE_CHECKING:
    from ddf.archive import Codec
    from ddf.exact import IntegerFlow
    from ddf.flow import Flow
    from ddf.labelmaps import CausalFlow

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = Any

Item = TypeVar("Item")

_SHOWN = 5  # names in a message


class UsageError(ValueError):
    """An invalid command line."""


def formatted(commands: Commands, name: str, summary: str, description: str, *examples: str) -> argparse.ArgumentParser:
    """Return the parser of a command, with the options of all commands, and examples at the end of its help."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_debug(parser, default=argparse.SUPPRESS)
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="before running, import a Python module that defines layers or nets (default: none)",
    )
    return parser


def add_debug(parser: argparse.ArgumentParser, default: object) -> None:
    """Add the option that shows tracebacks."""
    parser.add_argument(
        "--debug", action="store_true", default=default, help="print a traceback for errors (default: one line)"
    )


def add_json(parser: argparse.ArgumentParser, default: Any = False) -> None:
    """Add the option for JSON output."""
    parser.add_argument(
        "--json", action="store_true", default=default, help="print the result as JSON (default: as text)"
    )


def add_model(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that names a model."""
    parser.add_argument("--model", metavar="FILE", help=what)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of threads."""
    parser.add_argument("--threads", type=positive, metavar="N", help="number of threads (default: one per core)")


def add_max_size(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits the size of a map."""
    parser.add_argument(
        "--max-size",
        type=byte_size,
        default=1 << 30,
        metavar="SIZE",
        help="largest uncompressed map, in bytes or with a unit, such as 500M or 4G (default: 1G)",
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option to replace an existing file."""
    parser.add_argument("--force", action="store_true", help="replace an existing file (default: exit with an error)")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects the device."""
    parser.add_argument(
        "--device", type=device, metavar="DEVICE", help="cpu, cuda or cuda:N (default: cuda if available)"
    )


def check_output(options: argparse.Namespace) -> None:
    """Raise an error, before any work is done, if a file exists and --force was not passed."""
    path = Path(options.output)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; specify a file")
    if path.exists() and not options.force:
        raise FileExistsError(f"{path} already exists; use --force to replace it")
    if not path.resolve().parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")


def print_result(options: argparse.Namespace, result: dict[str, Any], *lines: str) -> None:
    """Print a result, as JSON or as text."""
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        print("\n".join(map(printable, lines)))


def printable(text: str) -> str:
    """Escape characters that could control a terminal or change the direction of text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def files(count: int) -> str:
    """Format a number of files."""
    return f"{thousands(count)} file{'s' * (count != 1)}"


def shortened(names: list[str], what: str) -> list[str]:
    """Return a line with the first names of a list, or no line if the list is empty."""
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{what}: {', '.join(names[:_SHOWN])}{more}"]


def progress(items: Iterable[Item], total: int | None, what: str, unit: str = "map") -> Iterator[Item]:
    """Yield items and show the progress."""
    with Progress(what, total, unit) as shown:
        for done, item in enumerate(items, start=1):
            yield item
            shown.update(done)
            if interruption.happened():  # an interruption that a library has ignored
                raise KeyboardInterrupt


def load_model(path: str | None, where: str | None = "cpu") -> "Flow | IntegerFlow | CausalFlow":
    """Load a model of any kind.

    Arguments:
        path: The model file, its URL, or the beginning of the fingerprint of a model of `ddf models list`; None for the
            pretrained model.
        where: The device of a model that runs on PyTorch; None for a GPU if one is available.
    """
    if path is None:
        from ddf.labelmaps import pretrained

        return pretrained()
    from ddf.models import load
    from ddf.registry import model_path

    model = load(model_path(path))
    if hasattr(model, "to"):
        import torch

        model.to(where or ("cuda" if torch.cuda.is_available() else "cpu"))
    return model


def load_codec(path: str | None, needed: bytes | None = None) -> "Codec":
    """Load a model that can compress.

    Arguments:
        path: The model file; None for the pretrained model.
        needed: The fingerprint of the model that an archive needs, for the error message; None if it needs none.
    """
    from ddf.archive import Codec

    model = load_model(path)
    if not isinstance(model, Codec):
        raise ValueError(
            f"{path} is a floating-point flow, which cannot compress because its results differ between machines; "
            "`ddf.export` in Python converts it to a model that can, and `ddf train … --integer` trains one"
            + (f"; the archive needs the model {needed.hex()}" if needed else "")
        )
    return model


def byte_size(text: str) -> int:
    """Parse a number of bytes, such as 1000000, 500M or 4G."""
    found = re.fullmatch(r"(\d+)([kKmMgGtT]?)(?:i?[bB])?", text)
    number = int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ") if found else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; pass a number of bytes, such as 500M or 4G")
    return number


def size_of(text: str) -> tuple[int, int]:
    """Parse a size, height x width, such as 64x96."""
    try:
        height, width = (int(part) for part in text.lower().replace("×", "x").split("x"))
        if height < 1 or width < 1:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; pass height x width, for example 64x96") from error
    return height, width


def positive(text: str) -> int:
    """Parse a positive integer."""
    try:
        number = int(text)
        if number < 1:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer") from error
    return number


def seed(text: str) -> int:
    """Parse a seed."""
    try:
        number = int(text)
        if not 0 <= number < 1 << 63:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; pass a non-negative integer") from error
    return number


def device(text: str) -> str:
    """Parse the name of an available device."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a device; pass cpu, cuda, or cuda:1 for the second GPU")
    if text != "cpu":
        import torch

        number = int(text.partition(":")[2] or 0)
        if not torch.cuda.is_available() or number >= torch.cuda.device_count():
            raise argparse.ArgumentTypeError(f"PyTorch cannot find {text} on this machine; pass cpu")
    return text


def thousands(number: int) -> str:
    """Format a number with commas."""
    return f"{number:,}"
