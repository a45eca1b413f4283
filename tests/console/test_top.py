"""`tidegate top`: what it says of a cell at once, and how it goes on and ends."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.text import Text

from console.forms import Found, watch
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
    """What is found, until somebody stops it, or until nothing can be found any more."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.count, self._fails_at = 0, fails_at

    def __call__(self) -> Found:
        self.count += 1
        if self._fails_at is not None and self.count >= self._fails_at:
            raise typer.Exit(2)
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


def test_what_goes_wrong_is_said_where_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen of its own is gone with what was printed on it: so it is said once more."""
    monkeypatch.setattr("time.sleep", stopping(9))
    looks = Looks(fails_at=3)
    with pytest.raises(typer.Exit):
        watch(looks, 5.0)
    assert looks.count == 4
