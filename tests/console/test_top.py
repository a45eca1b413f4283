"""`tidegate top`: what it says of a cell at once, and how it goes on and ends."""

import io
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.text import Text

from bus.contract import BusError
from console.forms import Found, watch
from console.output import fail
from tests.console.conftest import Run


def test_it_says_who_has_gpus_and_who_waits_for_them(tidegate: Run, log: Path) -> None:
    shown = tidegate.does("top", "--log", log).out
    lines = shown.splitlines()
    assert lines[0].startswith("default  as of d0 ")
    assert "2 queued" in lines[0]
    running, waiting = (
        next(n for n, line in enumerate(lines) if line.startswith(head))
        for head in ("Running", "Waiting")
    )
    assert any(line.startswith("training ") for line in lines[:running])
    assert any(line.startswith("grown ") for line in lines[running:waiting])
    assert any("too few GPUs free, 0 of 1" in line for line in lines[waiting:])
    few = tidegate.does("top", "--rows", "1", "--log", log).out
    assert "Waiting  1 more" in few


def test_its_document_is_what_the_other_verbs_say(tidegate: Run, log: Path) -> None:
    found = tidegate.tells("top", "--once", "--log", log)
    jobs = {row["job"]: row for row in tidegate.tells("jobs", "--log", log)["jobs"]}
    assert {row["job"] for row in found["running"]} == {n for n, row in jobs.items() if row["gpus"]}
    assert {row["job"] for row in found["queue"]} == {
        name for name, row in jobs.items() if row["state"] == "queued"
    }
    sizes = [row["gpus"] for row in found["running"]]
    assert sizes == sorted(sizes, reverse=True)
    nodes = tidegate.tells("nodes", "--log", log)["nodes"]
    for pool in found["pools"]:
        mine = [node for node in nodes if node["pool"] == pool["pool"]]
        assert pool["nodes"] == len(mine)
        assert pool["gpus"] == sum(node["gpu_count"] for node in mine) == sum(pool["uses"].values())
    assert found["overview"]["gpus"]["held"] == sum(sizes)


class Looks:
    """What is found, until somebody stops it; some looks fail."""

    def __init__(self, *fails: int) -> None:
        self.count, self._fails = 0, fails

    def __call__(self) -> Found:
        self.count += 1
        if self.count in self._fails:
            fail("no gateway answers")
        return Found({}, [Text(f"look {self.count}")])


def stopping(after: int) -> Callable[[float], None]:
    slept: list[float] = []

    def sleep(length_s: float) -> None:
        slept.append(length_s)
        if len(slept) == after:
            raise KeyboardInterrupt

    return sleep


def test_it_looks_again_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", stopping(3))
    looks = Looks()
    watch(looks, 5.0)
    assert looks.count == 3


def test_a_look_that_fails_is_told_of_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("time.sleep", stopping(4))
    screen = io.StringIO()
    monkeypatch.setattr("console.forms.out", lambda: Console(file=screen, force_terminal=True))
    looks = Looks(2, 3)
    watch(looks, 5.0)
    assert looks.count == 4
    assert screen.getvalue().count("no gateway answers") == 2
    assert capsys.readouterr().err == ""
    with pytest.raises(typer.Exit):
        watch(Looks(1), 5.0)


@pytest.mark.parametrize(
    "error", [BusError("no broker answers"), sqlite3.OperationalError("disk I/O error")]
)
def test_a_log_that_cannot_be_read_for_a_while_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("time.sleep", stopping(3))
    screen = io.StringIO()
    monkeypatch.setattr("console.forms.out", lambda: Console(file=screen, force_terminal=True))
    looks = Looks()

    def look() -> Found:
        found = looks()
        if looks.count == 2:
            raise error
        return found

    watch(look, 5.0)
    assert looks.count == 3
    assert str(error) in screen.getvalue()
