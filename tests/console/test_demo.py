"""`tidegate demo`: its log is one run's, is kept, and is left alone once it is finished."""

import fcntl
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from bus.clock import PacedClock
from console.reading import DEFAULT_LOG
from demo.claim import Run as Begun, claim
from demo.fleet import Fleet
from demo.play import drive
from tests.console.conftest import Run

SHORT = ("demo", "--hours", "0.1", "--seconds", "0", "--no-live")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finished_log_is_told_again_until_something_new_waits(
    tidegate: Run, folder: Path
) -> None:
    command = (*SHORT, "--log", "run.db", "--json", "-")
    first = tidegate.does(*command)
    before = (folder / "run.db").read_bytes()
    again = tidegate(*command)
    assert (again.code, again.out) == (0, first.out)
    assert "This run is finished" in again.err
    assert (folder / "run.db").read_bytes() == before
    assert "not due yet" in tidegate(*command[:-1], "out.json").out

    tidegate("submit", "--steps", "100", "--rate", "1=10", "--job", "new", "--log", "run.db")
    went_on = tidegate(*command)
    assert "A message has come since this run was finished" in went_on.err
    told = json.loads(went_on.out), json.loads(first.out)
    assert told[0]["jobs_submitted"] == told[1]["jobs_submitted"] + 1
    assert tidegate("why", "new", "--log", "run.db").code == 0
    assert "This run is finished" in tidegate(*command).err


def test_a_run_that_was_stopped_says_that_it_goes_on(
    tidegate: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped(fleet: Fleet, clock: PacedClock, end_s: float, view: None) -> bool:
        await whole(fleet, clock, end_s - 180.0, view)
        return False

    whole = drive
    command = (*SHORT, "--log", "run.db")
    with monkeypatch.context() as patched:
        patched.setattr("demo.play.drive", stopped)
        first = tidegate.does(*command)
    assert first.err == ""
    assert "Stopped. The same command goes on from here" in first.out
    again = tidegate.does(*command)
    assert again.err == "run.db has a run that was stopped: it goes on at d0 00:03.\n"


def test_the_figures_add_up(tidegate: Run, folder: Path) -> None:
    found = tidegate.tells(*SHORT, "--log", "run.db")
    jobs = tidegate.tells("jobs", "--all", "--log", "run.db")["jobs"]
    assert found["jobs_queued"] == sum(job["state"] == "queued" for job in jobs)
    live = [job for job in jobs if job["end_s"] is None]
    assert found["jobs_running"] + found["jobs_queued"] == len(live)
    assert found["deadlines_open"] > 0
    assert found["deadlines_met"] + found["deadlines_open"] <= found["deadlines_total"]


def test_a_log_that_was_removed_begins_anew_with_its_agents(tidegate: Run, folder: Path) -> None:
    first = tidegate.tells(*SHORT, "--log", "run.db")
    (folder / "run.db").unlink()
    # Another run may have its name now.
    assert tidegate.tells(*SHORT, "--log", "run.db", "--seed", "8") != first
    (folder / "run.db").unlink()
    assert tidegate.tells(*SHORT, "--log", "run.db") == first


def test_the_default_log_is_kept_one_generation(tidegate: Run, folder: Path) -> None:
    assert tidegate(*SHORT).err == ""
    first = (folder / DEFAULT_LOG).read_bytes()
    second = tidegate(*SHORT)
    assert second.err == ("A new log begins; the last one is kept as tidegate-demo.previous.db.\n")
    previous = folder / "tidegate-demo.previous.db"
    assert previous.read_bytes() == first
    assert tidegate("replay", previous).code == 0
    # It is a whole run, so the demo itself knows it as well.
    assert "This run is finished" in tidegate(*SHORT, "--log", previous.name).err
    assert "the one before it is gone" in tidegate(*SHORT).err


def test_a_log_in_use_is_one_sentence(tidegate: Run, folder: Path) -> None:
    run = Begun(0.1, 7, "tide", None, None, 1e-3)
    with claim(Path("run.db"), run):
        said = tidegate.refuses(*SHORT, "--log", "run.db")
    assert said == "run.db is in use by another demo; wait for its end, or give another --log.\n"
    with (folder / "run.db.agents" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given up with the claim


def test_what_is_no_demos_log_is_left_alone(tidegate: Run, folder: Path) -> None:
    (folder / "mine.db").write_text("mine")
    assert "is not a demo's log" in tidegate.refuses(*SHORT, "--log", "mine.db")
    assert not (folder / "mine.db.agents").exists()
    (folder / "own.agents").mkdir()
    for name in ("alice", "lock"):
        (folder / "own.agents" / name).write_text("mine")
    said = tidegate.refuses(*SHORT, "--log", "own")
    assert said == "own.agents holds what no demo wrote; move it away, or give another --log.\n"
    kept = {path.name: path.read_text() for path in (folder / "own.agents").iterdir()}
    assert kept == {"alice": "mine", "lock": "mine"}
    for name in (".", "/"):
        said = tidegate.refuses(*SHORT, "--log", name)
        assert said == f"--log: {name} is a folder; name a file.\n"


def test_a_result_that_could_not_be_written_is_refused_before_the_day(
    tidegate: Run, folder: Path
) -> None:
    said = tidegate.refuses(*SHORT, "--log", "run.db", "--json", "nowhere/result.json")
    assert "--json: nowhere/result.json cannot be written" in said
    assert list(folder.iterdir()) == []


def test_until_before_the_beginning_is_said(tidegate: Run, log: Path) -> None:
    assert "is before the log begins" in tidegate.refuses("replay", log, "--until", "2020-01-01")


def test_a_whole_day_begins_at_noon_and_one_of_before_is_not_gone_on_with(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day = Begun(24.0, 7, "tide", None, None, 0.0)
    assert (day.start_s % 86_400, day.end_s % 86_400) == (43_200, 43_200)
    short, traced = Begun(6.0, 7, "tide", None, None, 0.0), replace(day, workload="trace.csv")
    assert (short.start_s % 86_400, traced.start_s % 86_400) == (0, 0)
    # What a version wrote that began every run at midnight.
    for run, goes_on in ((short, True), (day, False)):
        path = folder / f"{run.hours}.db"
        with claim(path, run):
            path.touch()
        parameters = folder / f"{path.name}.agents" / "run.json"
        known = json.loads(parameters.read_text())
        del known["start_s"]
        parameters.write_text(json.dumps(known))
        if goes_on:
            claim(path, run).__exit__()
        else:
            with pytest.raises(typer.Exit):
                claim(path, run)
            assert "at another hour" in capsys.readouterr().err
