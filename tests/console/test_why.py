"""`tidegate why`: the answer for each kind of job, in words and as JSON."""

from pathlib import Path
from typing import Any

import pytest

from bus.contract import Bus
from console.reading import ask_log, read_bus
from explain.answer import Reading
from scheduler.core.stimuli import Length, LengthsLearned
from scheduler.policies.interface import Figure, Need, Reason, Target
from schemas.events import JobCancelled
from tests.builders import submitted
from tests.console.conftest import Run
from tests.console.stories import START_S, Teller, job, node, sized, tell


def answer(tidegate: Run, log: Path, job: str) -> dict[str, Any]:
    found: dict[str, Any] = tidegate.tells("why", job, "--log", log)
    return found


def test_a_waiting_job_says_who_has_what_it_wants_and_what_must_change(
    tidegate: Run, log: Path
) -> None:
    found = answer(tidegate, log, "waiter")
    assert found["state"] == "queued"
    assert found["since_s"] == START_S
    assert found["because"]["rule"] == "gang.capacity"
    assert found["because"]["lost_to"] == ["grown", "mover"]
    (need,) = found["because"]["needs"]
    assert (need["name"], need["have"], need["want"]) == ("gpus_above_base", 0.0, 1.0)
    assert need["text"].endswith("0 now, must rise to 1")
    text = tidegate("why", "waiter", "--log", log).out
    for part in (
        "QUEUED",
        "Who has what it wants",
        "2 GPUs of training (smallest size 1)",
        "0 now, must rise to 1",
        "33 min 20 s",
    ):
        assert part in text


def test_a_running_job_says_why_it_has_its_size_and_how_old_the_figures_were(
    tidegate: Run, log: Path
) -> None:
    found = answer(tidegate, log, "grown")
    assert (found["state"], found["gpus"], found["pool"]) == ("running", 2, "training")
    assert found["because"]["verb"] == "scales_out"
    assert [line["what"] for line in found["history"]] == ["submitted", "started", "scaled"]
    text = tidegate("why", "grown", "--log", log).out
    assert "1 → 2 GPUs" in text
    assert "2 steps/s  2 min old" in text
    rows = [line.replace("│", " ").split() for line in text.splitlines()]
    assert ["1", "1.25", "12.5", "measured", "41", "min", "4", "s", "ago"] in rows
    assert ["▸", "2", "2", "20", "measured", "31", "min", "4", "s", "ago"] in rows
    assert ["4", "3", "30", "modelled"] in rows
    assert "How fast it is in training" in text
    assert "in serving 0.5 times that, as measured there" in text
    assert [point["measured"] for point in found["curve"]["points"]] == [True, True, False]
    assert found["curve"]["points"][1]["age_s"] < found["curve"]["points"][0]["age_s"]
    assert found["curve"]["points"][2]["age_s"] is None
    assert "99%" in text, "as it went on since its report"
    assert "step 400 was recorded 31 min 4 s ago" in text


def test_a_preempted_job_names_the_reclaim_and_its_owners_forecast(
    tidegate: Run, log: Path
) -> None:
    found = answer(tidegate, log, "victim")
    assert found["state"] == "queued"
    assert found["because"]["rule"] == "gang.backfill"
    (reclaim,) = found["reclaims"]
    assert reclaim["node"] == "s0"
    assert reclaim["because"]["rule"] == "victims.fraction"
    assert reclaim["due_s"] > reclaim["at_s"]
    text = " ".join(tidegate("why", "victim", "--log", log).out.replace("│", " ").split())
    assert "How it lost its GPUs" in text
    assert "s0 was called back" in text
    assert "serving is forecast to need 4 GPUs" in text
    assert "goes on from step 120" in text
    assert "Ahead of it" in text


def test_a_migrated_job_is_told_as_one_move_with_its_cause(tidegate: Run, log: Path) -> None:
    found = answer(tidegate, log, "mover")
    assert found["because"]["verb"] == "migrates"
    assert [line["what"] for line in found["history"]] == ["submitted", "started", "migrated"]
    moved = found["history"][-1]
    assert moved["detail"] == "to 2 GPUs of training (n0), from step 150"
    assert moved["rule"] == "loans.reclaim"
    assert found["reclaims"][0]["node"] == "s0"
    text = tidegate("why", "mover", "--log", log).out
    assert "Lost to" in text
    assert "needs 3 GPUs by its last report" in text
    assert "can still be met" in text


@pytest.mark.parametrize(("job", "state"), [("done", "completed"), ("dropped", "cancelled")])
def test_a_finished_job_tells_its_history(tidegate: Run, log: Path, job: str, state: str) -> None:
    assert answer(tidegate, log, job)["state"] == state
    text = tidegate("why", job, "--log", log).out
    assert state.upper() in text
    assert "after it was submitted" in text
    assert "now" not in text.splitlines()[-3], "a finished job has no present"


def test_a_cancellation_says_who_asked_and_why(tidegate: Run, log: Path) -> None:
    line = answer(tidegate, log, "dropped")["history"][-1]
    assert (line["what"], line["detail"]) == ("cancelled", "by /agents/a: not needed")
    assert "by /agents/a: not needed" in tidegate("why", "dropped", "--log", log).out


def test_a_running_job_is_asked_to_leave_and_says_by_whom(tidegate: Run, tmp_path: Path) -> None:
    t = tell()
    t.feed(JobCancelled(job="grown", reason="a better idea"))
    t.off("grown", "cancelled", 500)
    path = tmp_path / "cancelled.db"
    t.write(path)
    found = {line["what"]: line["detail"] for line in answer(tidegate, path, "grown")["history"]}
    assert found["asked to cancel"] == "by /agents/a: a better idea"
    assert found["cancelled"] == ""


def late() -> Teller:
    """Two jobs share four GPUs; the second waits for the first, and misses its deadline."""
    t = Teller()
    t.feed(node("n0", "training", "training"))
    t.feed(job("first"))
    t.feed(job("second", deadline_s=START_S + 1800.0))
    wait = (Figure("waited_s", 0.0),)
    need = (Need("gpus_above_base", 0.0, 1.0),)
    t.decides(
        sized("first", "starts", "market.price", 0, 4),
        Reason("second", "waits", "gang.capacity", wait, ("first",), need),
        targets={"first": Target("training", (("n0", 4),))},
    )
    t.up("first")
    t.now_s += 3600.0
    t.off("first", "completed", 1000)
    t.decides(
        sized("second", "starts", "market.price", 0, 4),
        targets={"second": Target("training", (("n0", 4),))},
    )
    t.up("second")
    t.now_s += 250.0
    t.off("second", "completed", 1000)
    return t


def test_a_missed_deadline_is_explained_by_the_waits(tidegate: Run, tmp_path: Path) -> None:
    path = tmp_path / "late.db"
    late().write(path)
    (wait,) = answer(tidegate, path, "second")["waits"]
    assert (wait["rule"], wait["lost_to"]) == ("gang.capacity", ["first"])
    assert wait["begin_s"] == START_S
    assert wait["end_s"] - wait["begin_s"] == pytest.approx(3650.0, abs=30.0)
    text = tidegate("why", "second", "--log", path).out
    assert "Why it missed its deadline" in text
    assert "It had 30 min and took 1 h 6 min" in text
    assert "waited 1 h" in text
    assert "first" in text
    assert "Why it missed" not in tidegate("why", "first", "--log", path).out


def test_an_id_that_is_submitted_again_does_not_change_when_its_job_ended(
    tidegate: Run, tmp_path: Path
) -> None:
    t, path = tell(), tmp_path / "again.db"
    ended_s = t.job("done").end_s
    t.now_s += 3600.0
    t.feed(submitted("done", gpus_max=2))
    t.write(path)
    found = answer(tidegate, path, "done")
    assert [line["what"] for line in found["history"]][-2:] == ["completed", "refused"]
    assert found["since_s"] == ended_s


ERROR = "rank 0: the command was not found (exit code 127, pyton): No such file: pyton"


@pytest.mark.parametrize(
    ("retriable", "tries", "says"),
    [(False, 1, f"cannot be run: {ERROR}"), (True, 20, f"failed too often: {ERROR}")],
)
def test_a_job_that_failed_for_good_says_what_its_agent_said(
    tidegate: Run, tmp_path: Path, *, retriable: bool, tries: int, says: str
) -> None:
    t = Teller()
    t.feed(node("n0", "training", "training"))
    t.feed(job("bad"))
    for _ in range(tries):
        t.now_s += 4000.0  # past any pause after a failure
        t.decides(
            sized("bad", "starts", "market.price", 0, 1),
            targets={"bad": Target("training", (("n0", 1),))},
        )
        t.acknowledge()
        t.fail_worker("bad", retriable=retriable, error=ERROR)
    path = tmp_path / "bad.db"
    t.write(path)
    found = answer(tidegate, path, "bad")
    assert (found["state"], found["failure"]) == ("failed", says)
    line = found["history"][-1]
    assert (line["what"], line["detail"]) == ("failed for good", says)
    assert "told to leave" not in [line["what"] for line in found["history"]]
    text = " ".join(tidegate("why", "bad", "--log", path).out.replace("│", " ").split())
    assert f"Why Failed for good: {says}. History" in text
    (row,) = tidegate.tells("jobs", "--all", "--log", path)["jobs"]
    assert row["why_in_words"] == says
    assert says[:12] in tidegate("jobs", "--state", "failed", "--log", path).out


def test_what_the_length_of_a_job_is_known_from(tidegate: Run, tmp_path: Path) -> None:
    t = Teller()
    t.feed(node("n0", "training", "training"))
    for name in ("says", "alone", "behind", "known"):
        total = 1000 if name == "says" else None
        t.feed(job(name, deadline_s=START_S + 1e6).model_copy(update={"total_steps": total}))
    ended = Length(left=1234.0, ended=8, took=[900.0, 1100.0], running=0)
    running = Length(left=600.0, ended=0, took=[], running=2)
    t.feed(LengthsLearned({"known": ended, "behind": running}))
    path = tmp_path / "lengths.db"
    t.write(path)
    known = {
        "says": ("declared", "1,000 steps, as declared"),
        "alone": ("itself", "some 600 steps, not declared: it has no kin that came as far"),
        "behind": ("kin", "some 600 steps, not declared: 2 of its kin run, and are further"),
        "known": ("kin", "some 1,234 steps, not declared: 8 of its kin that went further took 900"),
    }
    for name, (source, line) in known.items():
        assert answer(tidegate, path, name)["length"]["known_from"] == source
        text = " ".join(tidegate("why", name, "--log", path).out.replace("│", " ").split())
        assert f"Length: {line}" in text
        assert ("not promised: it declared no total" in text) == (name != "says")
    rows = {row["job"]: row for row in tidegate.tells("jobs", "--log", path)["jobs"]}
    assert rows["known"]["length"]["kin_took"] == [900.0, 1100.0]
    assert (rows["known"]["total_steps"], rows["known"]["slack_s"]) == (None, None)
    assert "~0%" in tidegate("jobs", "--log", path).out


def test_an_unknown_job_gets_the_nearest_names(tidegate: Run, log: Path) -> None:
    said = tidegate.refuses("why", "movers", "--log", log)
    assert said == "movers: no such job in this log. Nearest: mover.\n"
    assert "`tidegate jobs --all`" in tidegate.refuses("why", "zzzzzzzz", "--log", log)


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_every_answer_fits_the_width(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for name in ("waiter", "grown", "victim", "mover", "done"):
        ran = tidegate.does("why", name, "--log", log)
        assert max(map(len, ran.out.splitlines())) <= int(width)
        assert "\x1b" not in ran.out


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_a_log_that_goes_on_meanwhile_does_not_outrun_the_answer(
    tidegate: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    t = tell()
    t.messages = t.messages[: int(len(t.messages) * share)]
    path = tmp_path / "early.db"
    t.write(path)
    early = ask_log(str(path), None, read_bus)

    async def read_early(bus: Bus, cell: str | None) -> Reading:
        assert cell is None
        return early

    expected = answer(tidegate, path, "victim")
    monkeypatch.setattr("console.at_log.read_bus", read_early)
    found = answer(tidegate, log, "victim")
    assert found == expected
    assert max(line["at_s"] for line in found["history"]) <= found["now_s"] < tell().now_s


def test_a_figure_without_a_bound_is_told(tidegate: Run, tmp_path: Path) -> None:
    t, path = tell(), tmp_path / "endless.db"
    t.decides(Reason("waiter", "waits", "gang.capacity", (Figure("score", float("inf")),)))
    t.write(path)
    assert " score inf " in " ".join(tidegate.does("why", "waiter", "--log", path).out.split())
    assert "waiter" in tidegate.does("jobs", "--log", path).out


def test_what_a_policy_of_ones_own_calls_a_figure_or_rule_is_no_markup(
    tidegate: Run, tmp_path: Path
) -> None:
    t, path = tell(), tmp_path / "brackets.db"
    t.decides(Reason("waiter", "waits", "mine.[/first]", ()))
    t.decides(
        Reason("waiter", "waits", "mine.second", (Figure("score[/per]", 2.0), Figure("[b]", 1)))
    )
    t.write(path)
    shown = " ".join(tidegate.does("why", "waiter", "--log", path).out.split())
    assert "score[/per] 2 " in shown
    assert " [b] 1 " in shown
    assert "no words for (mine.[/first])" in shown
