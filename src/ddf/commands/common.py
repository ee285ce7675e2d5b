"""What commands have in common."""

__all__ = [
    "Commands",
    "UsageError",
    "add_device",
    "add_force",
    "add_json",
    "add_model",
    "check_output",
    "device",
    "formatted",
    "integer_model",
    "load_model",
    "positive",
    "progress",
    "say",
    "seed",
    "size_of",
    "thousands",
]

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ddf.codec import IntegerFlow
    from ddf.flow import Flow

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = Any

Item = TypeVar("Item")


class UsageError(ValueError):
    """A command line that makes no sense."""


def formatted(commands: Commands, name: str, summary: str, description: str, *examples: str) -> argparse.ArgumentParser:
    """The parser of a command, with examples at the end of its help."""
    return commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option for scripts."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_model(parser: argparse.ArgumentParser, what: str) -> None:
    """The option that names a model."""
    parser.add_argument("--model", metavar="FILE", help=what)


def add_force(parser: argparse.ArgumentParser) -> None:
    """The option to replace what is there."""
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option that says where to compute."""
    parser.add_argument("--device", type=device, help="cpu or cuda (default: a GPU if there is one)")


def check_output(options: argparse.Namespace) -> None:
    """Refuses to replace a file unasked, before any work is done."""
    path = Path(options.output)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the file to write")
    if path.exists() and not options.force:
        raise FileExistsError(f"{path} is there already; --force replaces it")
    if not path.resolve().parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")


def say(options: argparse.Namespace, result: dict[str, Any], *lines: str) -> None:
    """Prints a result, as JSON or in words."""
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        print("\n".join(lines))


def progress(items: Iterable[Item], total: int | None, what: str, unit: str = "map") -> Iterator[Item]:
    """Items with a bar on a terminal: how far, how fast, how long it takes yet."""
    if not sys.stderr.isatty():
        yield from items
        return
    from tqdm import tqdm

    yield from tqdm(items, total=total, desc=what, unit=unit, leave=False)


def load_model(path: str | None, where: str | None = "cpu") -> "Flow | IntegerFlow":
    """A model of any kind; the one that comes with ddf if none is named.

    Arguments:
        path: Its file.
        where: The device; None for a GPU if there is one.
    """
    import torch

    import ddf

    model = ddf.codec.pretrained() if path is None else ddf.load(path)
    return model.to(where or ("cuda" if torch.cuda.is_available() else "cpu"))


def integer_model(path: str | None, needed: bytes | None = None) -> "IntegerFlow":
    """A model that can code.

    Arguments:
        path: Its file; None for the one that comes with ddf.
        needed: The fingerprint of the one that is needed, if there is one.
    """
    from ddf.codec import IntegerFlow

    model = load_model(path)
    if not isinstance(model, IntegerFlow):
        raise ValueError(
            f"{path} is a flow in floating point, which differs from machine to machine and cannot code; "
            "`ddf train … --integer` makes a model that can" + (f"; the one needed is {needed.hex()}" if needed else "")
        )
    return model


def size_of(text: str) -> tuple[int, int]:
    """Height and width of `64x96`."""
    try:
        height, width = (int(part) for part in text.lower().replace("×", "x").split("x"))
        if height < 1 or width < 1:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; say height x width, like 64x96") from error
    return height, width


def positive(text: str) -> int:
    """A positive integer."""
    try:
        number = int(text)
        if number < 1:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive integer") from error
    return number


def seed(text: str) -> int:
    """An integer that random numbers can begin with."""
    try:
        number = int(text)
        if not 0 <= number < 1 << 63:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed; say an integer from 0 on") from error
    return number


def device(text: str) -> str:
    """The name of a device that is there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no device; say cpu, cuda, or cuda:1 for the second GPU")
    if text != "cpu":
        import torch

        number = int(text.partition(":")[2] or 0)
        if not torch.cuda.is_available() or number >= torch.cuda.device_count():
            raise argparse.ArgumentTypeError(f"PyTorch finds no {text} on this machine; say cpu")
    return text


def thousands(number: int) -> str:
    """A number with commas."""
    return f"{number:,}"
