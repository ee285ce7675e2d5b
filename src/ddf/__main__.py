"""The command `ddf` as a process: `ddf …` or `python -m ddf …`."""

__all__ = ["main"]

import os
import sys

from ddf.commands import interruption


def main() -> int:
    """Runs the command line that this process was given.

    Returns:
        The exit code; see `ddf.cli.main`.
    """
    # Threads that wait for others by spinning make everything ten times as slow where something else is at work too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when PyTorch is loaded
    interruption.prepare()
    try:
        from ddf import cli

        code = cli.main()
    except KeyboardInterrupt:
        print("\nddf: interrupted", file=sys.stderr)
        code = interruption.code()
    interruption.forget()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
