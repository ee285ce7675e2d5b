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
    # Threads that spin long while they wait for others are ten times as slow where something else is at work, too.
    # OpenMP reads this when PyTorch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
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
