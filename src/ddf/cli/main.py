"""The `ddf` command: its parser and its error handling."""

__all__ = ["main", "make_parser"]

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ddf.cli import archives, compress, demo, evaluate, explain, inspect, interruption, reproduce, sample, train
from ddf.cli.common import UsageError, formatted, printable
from ddf.errors import DamagedArchiveError, DdfError

_DESCRIPTION = """\
Discrete Denoising Flows: models that score, sample and losslessly compress label maps and other categorical data."""

_EXAMPLES = """\
examples:
  ddf demo                                     take a tour of about a minute
  ddf compress masks -o masks.ddf              compress a folder of label maps with the pretrained model
  ddf train masks -o run                       train a model on your own maps
  ddf compress masks -o masks.ddf --model run/model.safetensors --embed
  ddf decompress masks.ddf -o again

Run `ddf COMMAND --help` for details. Enable completion in bash with eval "$(ddf completion bash)" (or zsh)."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors do not print control characters."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="ddf", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"ddf {_version()}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (demo, train, evaluate, sample, compress, archives, inspect, explain, reproduce):
        module.add(commands)
    completion = formatted(
        commands,
        "completion",
        "print a shell completion script",
        "Print a script that completes commands and options.",
        'eval "$(ddf completion bash)"',
    )
    completion.add_argument("shell", choices=("bash", "zsh"), help="the shell to complete in")
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
        code = int(options.run(options))
        sys.stdout.flush()
        if code == 0 or not interruption.happened():
            return code
    except KeyboardInterrupt:
        pass
    except Exception as error:
        if not interruption.happened():
            return _failed(error, options.command)
    resumes = options.command in ("train", "reproduce")
    print("\nddf: interrupted" + ("; run the same command again to resume" if resumes else ""), file=sys.stderr)
    return interruption.code()


def _failed(error: Exception, command: str) -> int:
    """Print an error in one line; raise it again if it is a bug."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has exited
        return 0
    if isinstance(error, UsageError):
        return _complain(str(error), 2)
    if isinstance(error, OSError):
        known = error.filename is not None and error.strerror is not None
        return _complain(f"{error.filename}: {error.strerror}" if known else _words(error))
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _complain(f"{error.name} is not installed: run `pip install {error.name}`")
    if isinstance(error, DamagedArchiveError) and command != "recover" and "recover" not in str(error):
        return _complain(f"{error}; `ddf recover` saves what is intact")
    if isinstance(error, DdfError | ValueError | TypeError | RuntimeError | ImportError | MemoryError):
        return _complain(str(error) or type(error).__name__)
    raise error


def _complain(message: str, code: int = 1) -> int:
    """Print an error, and return the exit code."""
    print(printable(f"ddf: {message}"), file=sys.stderr)
    return code


def _words(error: OSError) -> str:
    """Return the message of an error without its number."""
    return str(error.args[1] if len(error.args) > 1 else error)


def _version() -> str:
    from ddf import __version__

    return __version__


def _complete(options: argparse.Namespace) -> int:
    """Print a script that completes commands, then the options of the command, then files."""
    parser = make_parser()
    actions = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    cases = []
    for name, command in actions.choices.items():
        flags = sorted(flag for action in command._actions for flag in action.option_strings if flag.startswith("--"))
        cases.append(f'    {name}) words="{" ".join(flags)}" ;;')
    lines = [
        "_ddf() {",
        '  local words="" current="${COMP_WORDS[COMP_CWORD]}"',
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join(actions.choices)}" -- "$current")); return',
        "  fi",
        '  case "${COMP_WORDS[1]}" in',
        *cases,
        "  esac",
        '  case "$current" in -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;; esac',
        "}",
        "complete -o default -F _ddf ddf",
    ]
    if options.shell == "zsh":
        lines.insert(0, "autoload -U +X compinit && compinit; autoload -U +X bashcompinit && bashcompinit")
    print("\n".join(lines))
    return 0
