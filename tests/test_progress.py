"""Progress is a bar on a terminal and an occasional line in a log."""

import io
import sys

import pytest

from ddf.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("ddf.progress.time.monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_15_seconds(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress("compressing", 100, "file") as progress:
        for done in range(1, 101):
            clock[0] += 0.5
            progress.update(done)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "compressing: 31%, 31 of 100 files, 0:16 elapsed, 0:34 left",
        "compressing: 62%, 62 of 100 files, 0:31 elapsed, 0:19 left",
        "compressing: 93%, 93 of 100 files, 0:46 elapsed, 0:04 left",
    ]


def test_the_estimate_excludes_earlier_steps(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress("training", 100) as progress:
        progress.resume(50)
        clock[0] += 20
        progress.update(60, "0.5 bits")
    assert capsys.readouterr().err == "training: 60%, 0.5 bits, 0:20 elapsed, 1:20 left\n"


def test_an_unknown_total_is_supported(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress("verifying", None, "block") as progress:
        clock[0] += 20
        progress.update(1234)
    assert capsys.readouterr().err == "verifying: 1,234 blocks, 0:20 elapsed\n"


@pytest.mark.parametrize("total", [10, None])
def test_a_terminal_gets_a_bar_that_disappears(
    total: int | None, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("compressing", total, "file") as progress:
        for done in range(10):
            clock[0] += 0.3
            progress.update(done, "a note")
    assert "compressing" in terminal.getvalue()
    assert "a note" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
    assert not terminal.getvalue().rpartition("\r")[0].rpartition("\r")[2].strip()


def test_nothing_is_shown_unless_requested(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress("training", 10, shown=False) as progress:
        clock[0] += 100
        progress.update(5)
    assert capsys.readouterr().err == ""
