"""The `ddf` command as a process: `ddf …` or `python -m ddf …`."""

__all__ = ["main"]

import os
import sys

from ddf.cli import interruption


def main() -> int:
    """Run the command line of this process.

    Returns:
        The exit code; see `ddf.cli.main`.
    """
    # Threads that spin while they wait are ten times slower on a busy machine. OpenMP reads this when PyTorch loads.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    interruption.prepare()
    try:
        from ddf.cli.main import main as run

        code = run()
    except KeyboardInterrupt:
        print("\nddf: interrupted", file=sys.stderr)
        code = interruption.code()
    interruption.forget()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
