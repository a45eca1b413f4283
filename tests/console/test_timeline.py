"""`tidegate timeline`: where a job ran, as a table, as JSON and as a picture."""

from itertools import pairwise
from pathlib import Path

import pytest

from schemas.events import JobCancelled
from tests.console.conftest import Run
from tests.console.stories import START_S, tell
from tests.unit.test_explain import finished


def test_a_migrated_job_has_a_stay_in_each_pool(tidegate: Run, log: Path) -> None:
    stays = tidegate.tells("timeline", "mover", "--log", log)["stays"]
    assert len(stays) >= 2
    assert {stay["pool"] for stay in stays} > {"training"}
    assert [stay["how"] for stay in stays].count("migrated") == 1
    for before, after in pairwise(stays):
        assert before["since_s"] < before["until_s"] <= after["since_s"]
    assert stays[0]["since_s"] >= START_S
    text = tidegate("timeline", "mover", "--log", log).out
    assert "migrated" in text
    assert "so far" in text or stays[-1]["until_s"] is not None


def test_each_stay_says_how_and_why_it_ended(tidegate: Run, log: Path) -> None:
    def ends(job: str) -> list[str]:
        return [stay["ended"] for stay in tidegate.tells("timeline", job, "--log", log)["stays"]]

    assert ends("mover") == ["migrated: its node goes back", ""]
    assert ends("grown") == ["scaled: gain of the next GPU", ""]
    assert ends("victim") == ["preempted: its node goes back"]
    assert ends("done") == ["completed"]
    shown = " ".join(tidegate.does("timeline", "victim", "--log", log).out.split())
    assert "preempted: its node goes back" in shown


def test_a_stay_that_failed_or_was_cancelled_says_by_what_and_by_whom(
    tidegate: Run, tmp_path: Path
) -> None:
    told, path = tell(), tmp_path / "ended.db"
    told.fail_worker("mover", error="rank 0: exit code 3")
    told.stop_workers("mover", step=150)
    told.feed(JobCancelled(job="grown", reason="a better idea"))
    told.off("grown", "cancelled", 500)
    told.write(path)

    def end(job: str) -> str:
        stays = tidegate.tells("timeline", job, "--log", path)["stays"]
        return str(stays[-1]["ended"])

    assert end("mover") == "failed: rank 0: exit code 3"
    assert end("grown") == "cancelled: by /agents/a: a better idea"


def test_a_narrow_terminal_shows_whole_nodes(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "45")
    text = tidegate("timeline", "mover", "--log", log).out
    nodes = {node for stay in tidegate.tells("timeline", "mover", "--log", log)["stays"]
             for node in stay["nodes"]}  # fmt: skip
    assert nodes <= {word.strip(",") for word in text.split()}
    assert "…" not in text


def test_a_job_that_kept_outputs_names_them(tidegate: Run, tmp_path: Path) -> None:
    log = tmp_path / "run.db"
    finished().write(log)
    said = tidegate.tells("timeline", "done", "--log", log)
    assert said["outputs"]["uri"] == "file:///o/done/outputs/1"
    assert "Its outputs: 2 files, 3 MiB, at" in tidegate("timeline", "done", "--log", log).out


def test_the_picture_has_the_loss_that_the_job_wrote(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    loss, bare, drawn = tmp_path / "loss", tmp_path / "bare.svg", tmp_path / "loss.svg"
    loss.write_text("".join(f"{START_S + 10 * n} {n} 2 {1 / (n + 1)}\n" for n in range(50)))
    assert tidegate("timeline", "mover", "--log", log, "--plot", bare).code == 0
    ran = tidegate.does("timeline", "mover", "--log", log, "--plot", drawn, "--loss", loss)
    assert f"Drawn: {drawn}." in ran.err
    assert len(drawn.read_text()) > len(bare.read_text()) > 1000


@pytest.mark.parametrize(("lowest", "is_log"), [("0.25", True), ("0", False), ("-3.5", False)])
def test_no_loss_is_lost_to_the_scale(
    tidegate: Run, log: Path, tmp_path: Path, lowest: str, is_log: bool
) -> None:
    pytest.importorskip("matplotlib")
    loss, drawn = tmp_path / "loss", tmp_path / "loss.svg"
    values = ["800", "30", "nan", lowest, "inf"]
    loss.write_text("".join(f"{START_S + n} {value}\n" for n, value in enumerate(values)))
    ran = tidegate("timeline", "mover", "--log", log, "--plot", drawn, "--loss", loss)
    assert (ran.code, "Left out: 2 losses, nan or inf." in ran.err) == (0, True), ran.err
    assert ("10^{2}" in drawn.read_text()) == is_log  # a label of a log scale


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--plot", "x.bmp"), "end it in"),
        (("--loss", "missing"), "cannot be read"),
        (("--loss", "LOG"), "cannot be read"),
        (("--loss", "WORDS"), "line 2: 'a b' does not begin and end in a number"),
        (("--loss", "NEVER"), "line 1: 'nan 1.0' does not begin and end in a number"),
    ],
)
def test_what_cannot_be_drawn_is_told_of(
    tidegate: Run, log: Path, tmp_path: Path, more: tuple[str, ...], complaint: str
) -> None:
    pytest.importorskip("matplotlib")
    words = tmp_path / "words"
    words.write_text("1.0 2.0\na b\n")
    never = tmp_path / "never"
    never.write_text("nan 1.0\n")
    named = {"LOG": str(log), "WORDS": str(words), "NEVER": str(never)}
    said = tidegate.refuses(
        "timeline", "mover", "--log", log, *(named.get(one, one) for one in more)
    )
    assert complaint in said


def test_a_job_that_is_not_there(tidegate: Run, log: Path) -> None:
    assert "nobody: no such job in this log" in tidegate.refuses("timeline", "nobody", "--log", log)


def test_a_job_that_never_had_gpus_is_said_to_have_had_none(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "moves.png"
    assert tidegate.does("timeline", "waiter", "--log", log).out == "waiter had no GPUs so far.\n"
    assert tidegate.tells("timeline", "waiter", "--log", log)["stays"] == []
    ran = tidegate("timeline", "waiter", "--plot", picture, "--log", log)
    assert (ran.code, ran.out, picture.exists()) == (1, "", False)
    assert "there is nothing to draw" in ran.err
