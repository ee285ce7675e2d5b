"""The `ddf` command: its parser and its error handling."""

__all__ = ["main", "make_parser"]

import argparse
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ddf.cli import (
    archives,
    compress,
    demo,
    evaluate,
    explain,
    inspect,
    interruption,
    registered,
    report_page,
    reproduce,
    sample,
    train,
)
from ddf.cli.common import UsageError, add_debug, formatted, printable
from ddf.errors import DamagedArchiveError, DdfError
from ddf.extras import needed_for

_DESCRIPTION = "Compress label maps losslessly, and train, score and sample models of categorical data."

_PURPOSES = {
    "Compress": ("compress", "decompress", "list", "extract", "verify", "recover", "report"),
    "Train and use models": ("train", "evaluate", "sample", "explain", "inspect", "models"),
    "Explore": ("demo", "reproduce"),
    "Set up the shell": ("completion",),
}

_PATHS = ("ARCHIVE", "DATA", "FILE", "FOLDER", "IMAGE", "INPUT", "MODEL", "PATH", "RUN")  # metavars to complete

_EXAMPLES = """\
examples:
  ddf compress masks -o masks.ddf              compress a folder of label maps with the pretrained model
  ddf decompress masks.ddf -o again
  ddf train masks -o run                       train a model on your own maps
  ddf compress masks -o masks.ddf --model run/model.safetensors --embed

Run `ddf COMMAND --help` for details."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Formats the help of `ddf`, with the commands grouped by purpose."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        summaries = {choice.dest: choice.help for choice in action._get_subactions()}
        lines = []
        for purpose, names in _PURPOSES.items():
            lines += [f"{purpose}:", *(f"  {name:12} {summaries[name]}" for name in names), ""]
        return "\n".join(lines) + "\n"

    def start_section(self, heading: str | None) -> None:
        super().start_section(None if heading == _COMMANDS else heading)


_COMMANDS = "commands"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors do not print control characters."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(prog="ddf", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"ddf {_version()}")
    add_debug(parser, default=False)
    commands: Any = parser.add_subparsers(title=_COMMANDS, dest="command", metavar="COMMAND", required=True)
    modules = (compress, archives, report_page, train, evaluate, sample, explain, inspect, registered, demo, reproduce)
    for module in modules:
        module.add(commands)
    completion = formatted(
        commands,
        "completion",
        "print a shell completion script",
        "Print a script that completes commands, options and file names.",
        'eval "$(ddf completion bash)"',
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell to print the script for")
    completion.set_defaults(run=_complete)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Arguments:
        arguments: The arguments after `ddf`; None for those of the process.

    Returns:
        The exit code: 0 for success, 1 for an error, 2 for an invalid command line, 130 after Ctrl-C and 143 after
            SIGTERM.
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    options = make_parser().parse_args(typed)
    options.typed = shlex.join(["ddf", *typed])
    try:
        _import(options.modules)
        with needed_for(f"`ddf {options.command}`"):
            code = int(options.run(options))
        sys.stdout.flush()
        if code == 0 or not interruption.happened():
            return code
    except KeyboardInterrupt:
        pass
    except Exception as error:
        if not interruption.happened():
            if options.debug:
                traceback.print_exc()
            return _failed(error, options.command)
    resumes = options.command in ("train", "reproduce")
    print("\nddf: interrupted" + ("; run the same command again to resume" if resumes else ""), file=sys.stderr)
    return interruption.code()


def _import(modules: Sequence[str]) -> None:
    """Import modules that define layers or nets, including from the current folder."""
    if modules:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise
            raise UsageError(f"--import {name}: there is neither an installed module {name} nor a file here") from error


def _failed(error: Exception, command: str) -> int:
    """Print an error on one line, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has exited
        return 0
    if isinstance(error, UsageError):
        return _complain(str(error), 2)
    if isinstance(error, OSError):
        known = error.filename is not None and error.strerror is not None
        return _complain(f"{error.filename}: {error.strerror}" if known else _message(error))
    if isinstance(error, DamagedArchiveError) and command != "recover":
        return _complain(f"{error} (`ddf recover` extracts what is intact)")
    if isinstance(error, DdfError | ValueError | MemoryError):
        return _complain(str(error) or type(error).__name__)
    return _complain(f"{type(error).__name__}: {error} (pass --debug for a traceback)")


def _complain(message: str, code: int = 1) -> int:
    """Print an error, and return the exit code."""
    print(printable(f"ddf: {message}"), file=sys.stderr)
    return code


def _message(error: OSError) -> str:
    """Return the message of an error without its number."""
    return str(error.args[1] if len(error.args) > 1 else error)


def _version() -> str:
    from ddf import __version__

    return __version__


def _complete(options: argparse.Namespace) -> int:
    import shtab

    parser = make_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            if action.metavar in _PATHS:
                action.complete = shtab.FILE
    print(shtab.complete(parser, options.shell))
    return 0
