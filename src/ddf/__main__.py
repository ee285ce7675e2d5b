"""The command `ddf` as a process: `ddf …` or `python -m ddf …`."""

__all__ = ["main"]

import signal
import sys

from ddf.commands import interruption


def main() -> int:
    """Runs the command line that this process was given.

    Returns:
        The exit code; see `ddf.cli.main`.
    """
    interruption.prepare()
    try:
        from ddf import cli

        code = cli.main()
    except KeyboardInterrupt:
        print("\nddf: interrupted", file=sys.stderr)
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: what is left is Python's own clearing up
    return code


if __name__ == "__main__":
    raise SystemExit(main())
