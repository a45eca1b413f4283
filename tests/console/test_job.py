"""What people ask of jobs and of a cell on the command line, and what others are told of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from console.asked_before import asked_otherwise
from console.source import Before
from schemas.codec import Rejected, decode_request
from schemas.programs import Program
from schemas.requests import (
    CancelJob,
    HoldJob,
    PauseCell,
    PrioritiseJob,
    ReleaseJob,
    Request,
    RequeueJob,
    ResumeCell,
    ScaleJob,
    SubmitJob,
    VerbData,
)
from schemas.topics import REQUESTS
from tests.builders import node_born, request_of, submitted
from tests.console.conftest import Run
from tests.console.stories import START_S, Teller


def said(log: Path) -> list[Request]:
    """The requests on a log."""

    async def run() -> list[Request]:
        bus = SqliteBus.open_readonly(log, SystemClock())
        read = [decode_request(record.value or b"") async for record in bus.read(REQUESTS.name)]
        await bus.close()
        return [one.data for one in read if not isinstance(one, Rejected)]

    return asyncio.run(run())


class Asked(Teller):
    """Two jobs of which one runs, and what people ask."""

    def __init__(self) -> None:
        super().__init__()
        self.told(node_born("n0"), submitted("j0"), submitted("j1", deadline_s=START_S + 9e3))
        self.run("j0", n0=2)

    def asks(self, args: VerbData, reason: str = "", **over: Any) -> None:
        self.now_s += 60.0
        over = {"subject": "ann@example", **over}
        self.feed(request_of(self.now_s, args, f"r{self.state.number}", reason=reason, **over))

    def log(self, folder: Path) -> Path:
        self.write(folder / "run.db", online=False)
        return folder / "run.db"


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_why_says_who_holds_a_job_since_when_and_how_it_goes_on(
    tidegate: Run, asked: Asked, tmp_path: Path
) -> None:
    asked.asks(HoldJob(job="j0"), "data is wrong")
    asked.off("j0", "preempted", 40)
    log = asked.log(tmp_path)
    found = tidegate.tells("why", "j0", "--log", log)
    assert found["asked"] == [
        "held by ann@example since d0 06:01: data is wrong; `tidegate job release j0` lets it go on"
    ]
    assert found["because"]["rule"] == "operator.hold"
    lines = [(line["what"], line["detail"]) for line in found["history"]][2:]
    assert lines == [
        ("held", "by ann@example: data is wrong"),
        ("held", "waits again, goes on from step 40"),
    ]
    shown = " ".join(tidegate.does("why", "j0", "--log", log).out.replace("│", "").split())
    assert "Held by ann@example since d0 06:01: data is wrong" in shown
    (row,) = [one for one in tidegate.tells("jobs", "--log", log)["jobs"] if one["job"] == "j0"]
    assert (row["hold"]["by"], row["set_size"]) == ("ann@example", None)
    assert "held by ann@example" in tidegate.does("jobs", "--log", log).out


def test_why_says_of_a_size_what_is_missing_and_who_set_it(
    tidegate: Run, asked: Asked, tmp_path: Path
) -> None:
    asked.asks(ScaleJob(job="j0", gpus=8), "a demo")
    asked.plan()
    log = asked.log(tmp_path)
    found = tidegate.tells("why", "j0", "--log", log)
    assert found["asked"] == [
        "set to 8 GPUs by ann@example since d0 06:01: a demo; "
        "`tidegate job scale j0 auto` leaves its size to the policy"
    ]
    assert found["reasons"][-1]["sentence"] == (
        "its size is set to 8 GPUs; it needs 6 more GPUs where it runs, and 2 are free"
    )
    assert "set to 8 by ann@example" in tidegate.does("jobs", "--log", log).out


def test_a_pause_is_told_with_the_jobs_and_for_each_that_waits(
    tidegate: Run, asked: Asked, tmp_path: Path
) -> None:
    asked.asks(PauseCell(what="all", until_s=START_S + 7200.0), "the chillers")
    asked.plan()
    log = asked.log(tmp_path)
    paused = (
        "starts and growth are paused by ann@example since d0 06:01 until d0 08:00: the chillers; "
        "`tidegate resume starts` ends that"
    )
    assert tidegate.tells("why", "j1", "--log", log)["asked"] == [paused]
    assert tidegate.tells("why", "j0", "--log", log)["asked"] == [], "it runs"
    shown = " ".join(tidegate.does("jobs", "--log", log).out.split())
    assert "Starts and growth are paused by ann@example" in shown
    assert "New loans are paused by ann@example" in shown
    assert "New loans are paused" in " ".join(tidegate.does("loans", "--log", log).out.split())


@pytest.mark.parametrize(("saved", "then"), [(40, "goes on from step 40"), (0, "begins anew")])
def test_the_history_of_a_job_has_what_people_asked_for(
    tidegate: Run, asked: Asked, tmp_path: Path, saved: int, then: str
) -> None:
    asked.asks(PrioritiseJob(job="j0", priority=7), subject="bo")
    asked.asks(ScaleJob(job="j0", gpus=2))
    asked.asks(ReleaseJob(job="j0"))
    asked.asks(RequeueJob(job="j0"), "its node is slow")
    asked.off("j0", "preempted", saved)
    lines = tidegate.tells("why", "j0", "--log", asked.log(tmp_path))["history"]
    assert [(line["what"], line["detail"]) for line in lines][2:] == [
        ("priority set", "7, by bo"),
        ("size set", "2 GPUs, by ann@example"),
        ("size freed", "by ann@example"),
        ("asked to requeue", "by ann@example: its node is slow"),
        ("requeued", f"waits again, {then}"),
    ]
    assert lines[-1]["rule"] == "operator.requeue"


#: What is typed, what is asked for, and a part of what is said.
VERBS: list[tuple[tuple[str, ...], VerbData, str]] = [
    (("job", "hold", "j0"), HoldJob(job="j0"), "leaves its GPUs and waits until `tidegate job"),
    (("job", "hold", "j1"), HoldJob(job="j1"), "it is not started until `tidegate job release j1`"),
    (("job", "requeue", "j0"), RequeueJob(job="j0"), "waits for its turn"),
    (("job", "priority", "j1", "12"), PrioritiseJob(job="j1", priority=12), "12, it was 0"),
    (("job", "priority", "j1", "-5"), PrioritiseJob(job="j1", priority=-5), "-5, it was 0"),
    (
        ("job", "scale", "j0", "4"),
        ScaleJob(job="j0", gpus=4),
        "on 4 GPUs until `tidegate job scale",
    ),
    (("job", "cancel", "j1"), CancelJob(job="j1"), "Asked to cancel j1 (submitted "),
    (("pause",), PauseCell(), "no node is lent until `tidegate resume all`"),
    (("pause", "loans"), PauseCell(what="loans"), "no node is lent until `tidegate resume loans`"),
]


@pytest.mark.parametrize(("typed", "args", "part"), VERBS)
def test_a_verb_puts_one_request_on_the_log(
    tidegate: Run, asked: Asked, tmp_path: Path, typed: tuple[str, ...], args: VerbData, part: str
) -> None:
    log = asked.log(tmp_path)
    ran = tidegate.does(*typed, "--reason", "so it is", "--log", log)
    assert part in " ".join(ran.out.split())
    (found,) = said(log)
    assert (found.args, found.reason, found.role) == (args, "so it is", "operator")


def test_what_stands_is_ended_by_its_verb(tidegate: Run, asked: Asked, tmp_path: Path) -> None:
    asked.asks(HoldJob(job="j1"))
    asked.asks(ScaleJob(job="j0", gpus=4))
    asked.asks(PauseCell())
    log = asked.log(tmp_path)
    tidegate.does("job", "release", "j1", "--log", log)
    tidegate.does("job", "scale", "j0", "auto", "--log", log)
    tidegate.does("resume", "starts", "--log", log)
    assert [one.args for one in said(log)] == [
        ReleaseJob(job="j1"),
        ScaleJob(job="j0", gpus=None),
        ResumeCell(what="starts"),
    ]


def test_a_pause_for_a_time_ends_that_long_from_now(
    tidegate: Run, asked: Asked, tmp_path: Path
) -> None:
    log = asked.log(tmp_path)
    tidegate.does("pause", "starts", "--for", "2h", "--log", log)
    (found,) = said(log)
    assert isinstance(found.args, PauseCell)
    assert found.args.until_s == found.asked_s + 7200.0


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        (("job", "hold", "nobody"), "nobody: no such job in "),
        (("job", "scale", "j0", "many"), "'many' is no number of GPUs"),
        (("job", "priority", "j0", "5000"), "less than or equal to 1000"),
        (("pause", "all", "--for", "soon"), "--for: "),
        (("pause", "all", "--for", "2"), "--for: 2 has no unit; say 2s, 2m or 2h."),
        (("node", "drain", "n0", "--by", "30"), "--by: 30 has no unit; say 30s, 30m or 30h."),
        (("loans", "recall", "n0", "--by", "10"), "--by: 10 has no unit; say 10s, 10m or 10h."),
        (("pause", "everything"), "everything"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_asked(
    tidegate: Run, asked: Asked, tmp_path: Path, typed: tuple[str, ...], part: str
) -> None:
    log = asked.log(tmp_path)
    assert part in tidegate.refuses(*typed, "--log", log)
    assert said(log) == []


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        (("job", "release", "j0"), "j0 is not held, and nobody set its size"),
        (("job", "requeue", "j1"), "j1 waits already"),
        (("job", "scale", "j0", "auto"), "The policy chooses the size of j0 already"),
        (("resume",), "Nothing is paused"),
        (("resume", "loans"), "Loans are not paused"),
        (("node", "uncordon", "n0"), "n0 is not cordoned"),
        (("node", "refuse", "n0"), "n0 was not accepted"),
        (("loans", "unfreeze"), "there is nothing to lift"),
        (("quota", "clear", "acme"), "acme: no quota was set"),
        (("policy", "clear"), "No policy was set"),
    ],
)
def test_what_is_so_already_ends_well_and_asks_for_nothing(
    tidegate: Run, asked: Asked, tmp_path: Path, typed: tuple[str, ...], part: str
) -> None:
    log = asked.log(tmp_path)
    assert part in tidegate.needs_nothing(*typed, "--log", log)
    assert part in tidegate.needs_nothing(*typed, "--dry-run", "--log", log)
    assert tidegate.tells(*typed, "--log", log)["nothing_to_do"] is True
    assert said(log) == []


def test_a_job_is_held_once_and_cancelled_once(tidegate: Run, asked: Asked, tmp_path: Path) -> None:
    asked.asks(HoldJob(job="j1"))
    asked.asks(CancelJob(job="j0"))
    asked.off("j0", "cancelled", 40)
    log = asked.log(tmp_path)
    assert "j1 is held already, by " in tidegate.needs_nothing("job", "hold", "j1", "--log", log)
    for verb in (("cancel",), ("job", "cancel")):
        told = tidegate.needs_nothing(*verb, "j0", "--log", log)
        assert told == "j0 is cancelled already; there is nothing to do.\n"
    ran = tidegate("job", "hold", "j0", "--log", log)
    assert (ran.code, ran.err) == (1, "j0 is cancelled: nothing can be asked of it any more.\n")
    assert said(log) == []


def test_a_key_that_was_taken_for_another_job_is_refused_and_so_is_what_was_refused(
    tidegate: Run, asked: Asked, tmp_path: Path
) -> None:
    for key, job in (("r3", "nightly"), ("r4", "j0")):  # there is another j0
        args = SubmitJob(spec=submitted(job, gpus_max=2))
        asked.feed(request_of(asked.now_s, args, key))
    asked.feed(request_of(asked.now_s, HoldJob(job="nightly"), "r5"))
    log = asked.log(tmp_path)
    flags = ("submit", "--gpus", "1", "--log", log)
    file = tmp_path / "nightly.json"
    spec = submitted("nightly", gpus_max=2).model_dump(mode="json", exclude_none=True)
    file.write_text(json.dumps(spec))
    again = tidegate.does("submit", "--log", log, "--key", "r3", file)
    assert (again.out, "r3 was taken before" in again.err) == ("nightly\n", True)
    file.write_text(json.dumps({**spec, "start_cost_s": 7.0}))
    other = tidegate.refuses("submit", "--log", log, "--key", "r3", "--priority", "3", file)
    assert "for nightly, from which this differs in start_cost_s and --priority; give" in other
    other = tidegate.refuses(*flags, "--key", "r3", "--job", "nightly", "--", "true")
    assert "and the command; give another key, or ask for the same.\n" in other
    held = tidegate.refuses(*flags, "--key", "r5", "--job", "nightly", "--", "true")
    assert "r5 was taken before, for nightly, from which this differs in the verb (job" in held
    other = tidegate.refuses(*flags, "--key", "r3", "--job", "other", "--", "true")
    assert other == "--key: r3 was taken before, for nightly; give another key, or this job.\n"
    refused = tidegate(*flags, "--key", "r4", "--job", "j0", "--", "true")
    assert (refused.code, refused.out) == (1, "")
    assert "The scheduler refused it before: " in refused.err


def test_what_a_gateway_of_another_release_does_not_say_is_no_difference() -> None:
    job = submitted("nightly", gpus_max=2)
    spec = job.model_dump(mode="json")
    del spec["edge_allowed"], spec["program"]
    before = Before("nightly", {"verb": "job.submit", "spec": {**spec, "later": 1}}, START_S)
    assert asked_otherwise(before, job, None, own=False) == ""
    assert asked_otherwise(Before("nightly"), job, None, own=False) == "", "nothing is known of it"
    newer = Before("nightly", {"verb": "job.submit", "spec": {"id": "nightly"}}, START_S)
    assert asked_otherwise(newer, job, None, own=False) == "", "it names its fields otherwise"
    other = job.model_copy(update={"edge_allowed": False})
    assert asked_otherwise(before, other, None, own=False) == "--no-edge"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code_sha256": "b" * 64}, "--code"),
        ({"code": "file:///srv/b.zip", "code_sha256": "b" * 64}, "--code"),
        ({"workdir": "/srv", "argv": ["true"]}, "the command"),
        ({"outputs": ["*.csv"]}, "program.outputs"),
    ],
)
def test_what_differs_in_a_program_is_named(change: dict[str, Any], said: str) -> None:
    program = Program(argv=["a"], code="file:///srv/a.zip", code_sha256="a" * 64)
    job = submitted("nightly").model_copy(update={"program": program})
    spec = job.model_dump(mode="json")
    before = Before("nightly", {"verb": "job.submit", "spec": spec}, START_S)
    assert asked_otherwise(before, job, None, own=False) == ""
    other = job.model_copy(update={"program": program.model_copy(update=change)})
    assert asked_otherwise(before, other, None, own=False) == said


def test_the_audit_lists_what_was_asked_of_a_job_and_of_the_cell(
    tidegate: Run, asked: Asked, tmp_path: Path
) -> None:
    asked.asks(HoldJob(job="j0"), "data is wrong")
    asked.asks(PauseCell(what="starts"))
    asked.asks(ScaleJob(job="j1", gpus=3))
    acts = [
        (act["subject"], act["verb"], act["about"], act["result"])
        for act in tidegate.tells("audit", "--log", asked.log(tmp_path))["acts"]
    ]
    assert acts[-3:] == [
        ("ann@example", "job.hold", "j0", "done"),
        ("ann@example", "cell.pause", "starts", "done"),
        ("ann@example", "job.scale", "j1", "refused"),
    ]
