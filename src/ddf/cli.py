"""The command `ddf`: its parser, and what becomes of errors."""

__all__ = ["main", "make_parser"]

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from ddf.commands import archives, demo, evaluate, explain, inspect, interruption, reproduce, sample, train
from ddf.commands.common import UsageError, formatted

_DESCRIPTION = """\
Discrete Denoising Flows: models of label maps and other categorical data that score, sample and compress it without
loss."""

_EXAMPLES = """\
examples:
  ddf demo                                     a tour, about a minute
  ddf compress masks -o masks.ddf              a folder of label maps, with the model that comes with ddf
  ddf train masks -o run                       a model for maps such as yours
  ddf compress masks -o masks.ddf --model run/model.safetensors --embed
  ddf decompress masks.ddf -o again

`ddf COMMAND --help` says more. For completion in bash: eval "$(ddf completion bash)" (or zsh)."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="ddf", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"ddf {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (demo, train, evaluate, sample, archives, inspect, explain, reproduce):
        module.add(commands)
    completion = formatted(
        commands,
        "completion",
        "a script for the completion of a shell",
        "Prints a script that completes commands and options.",
        'eval "$(ddf completion bash)"',
    )
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=_complete)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Arguments:
        arguments: What was typed after `ddf`; None for what the process was given.

    Returns:
        The exit code: 0 if all went well, 1 if not, 2 for a command line that makes no sense, 130 after Ctrl-C (143 if
            it was told to end).
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
    print("\nddf: interrupted" + ("; the same command goes on from here" if resumes else ""), file=sys.stderr)
    return interruption.code()


def _failed(error: Exception, command: str) -> int:
    """Says what went wrong, in one line; what is no mistake of the user or the machine is raised again."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has had enough
        return 0
    if isinstance(error, UsageError):
        print(f"ddf: {error}", file=sys.stderr)
        return 2
    if isinstance(error, KeyError):
        print(f"ddf: {error.args[0] if error.args else error}", file=sys.stderr)
        return 1
    if isinstance(error, OSError):
        known = error.filename is not None and error.strerror is not None
        print(f"ddf: {error.filename}: {error.strerror}" if known else f"ddf: {_words(error)}", file=sys.stderr)
        return 1
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        print(f"ddf: this needs {error.name}, which is not installed: pip install {error.name}", file=sys.stderr)
        return 1
    if isinstance(error, ValueError | TypeError | RuntimeError | ImportError | MemoryError):
        damaged = type(error).__name__ == "DamagedArchiveError" and command != "recover"
        hint = "; `ddf recover` saves what is intact" if damaged and "recover" not in str(error) else ""
        hint = hint.replace("; ", "; if it was one, ") if str(error).endswith("is not a ddf archive") else hint
        print(f"ddf: {error or type(error).__name__}{hint}", file=sys.stderr)
        return 1
    raise error


def _words(error: OSError) -> str:
    """What an error says, without its number."""
    return str(error.args[1] if len(error.args) > 1 else error)


def _version() -> str:
    from ddf import __version__

    return __version__


def _complete(options: argparse.Namespace) -> int:
    """Prints a completion script: commands first, then the options of the command, else files."""
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
