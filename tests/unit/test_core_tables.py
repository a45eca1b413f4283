"""Every (state, fact) of the four tables: as the table says, or refused without a trace."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from scheduler.core import diagrams, facts
from scheduler.core.canonical import state_to_json
from scheduler.core.evolve import apply
from scheduler.core.facts import FACTS
from scheduler.core.registry import FOLDS
from scheduler.core.state import ClusterState, Job, Node, OpenCommand, Pool
from scheduler.core.transitions import (
    COMMAND,
    HOLDING,
    JOB,
    LOAN,
    NODE,
    CommandState,
    InvalidTransition,
    JobState,
    LoanState,
    NodeState,
)
from scheduler.core.validate import violations
from tests.builders import Cell, submitted

JOB_FACTS = sorted({fact for _, fact in JOB})
SPEC = next(f.spec for f in Cell().feed(submitted()).facts if isinstance(f, facts.JobAccepted))
#: One fact of each kind that moves a job, valid but for the job's state.
MOVES: dict[str, Any] = {
    "GangStarting": facts.GangStarting("j", 7, "train", {"n": [0, 1]}, 0),
    "GangScaling": facts.GangScaling("j", 7, {"n": [0]}),
    "GangRunning": facts.GangRunning("j"),
    "GangCheckpointing": facts.GangCheckpointing("j", "preempted"),
    "GangStopping": facts.GangStopping("j", "failed"),
    "CheckpointSaved": facts.CheckpointSaved("j", 1, 1.0),
    "CheckpointMissed": facts.CheckpointMissed("j", "e"),
    "JobQueued": facts.JobQueued("j", "preempted", 0, None),
    "JobMigrating": facts.JobMigrating("j", 0),
    "JobCompleted": facts.JobCompleted("j"),
    "JobDeclined": facts.JobDeclined("j"),
    "JobFailed": facts.JobFailed("j", "r"),
    "JobCancelled": facts.JobCancelled("j"),
}
#: Facts that say that the job is off its GPUs.
OFF = ("JobQueued", "JobMigrating", "JobCompleted", "JobFailed", "JobCancelled")


def cell(job_state: JobState = JobState.QUEUED, *, on_gpus: bool = False) -> ClusterState:
    state = ClusterState(number=3, now_s=100.0, gpus_alive=4)
    node = Node("n", "a", "train", 4, "A", 1, 1.0, 1.0, 0)
    node.holder, node.epoch, node.claim = [None] * 4, [0] * 4, [None] * 4
    state.nodes["n"] = node
    state.pools["train"] = Pool("train", "training", ["n"])
    job = Job(id="j", submit_s=0.0, state=job_state, epoch=5, start_epoch=5, **SPEC)
    if on_gpus:
        job.allocation, job.pool = {"n": [0, 1]}, "train"
        node.holder[:2], node.epoch[:2] = ["j", "j"], [5, 5]
        state.gpus_held = 2
    state.jobs["j"] = job
    return state


def claim(state: ClusterState, job: str, gpu: int) -> None:
    state.nodes["n"].claim[gpu] = job
    state.jobs[job].target, state.jobs[job].target_pool = {"n": [gpu]}, "train"
    state.claimants.append(job)


def refused(state: ClusterState, fact: Any) -> None:
    """Assert that the fact is refused and leaves no trace."""
    before = state_to_json(state)
    with pytest.raises(InvalidTransition) as caught:
        apply(state, fact)
    assert state_to_json(state) == before
    assert caught.value.fact == type(fact).__name__


def goes(state: ClusterState, fact: Any, after: object) -> bool:
    """Whether a table lets a fact through; it is applied then, and refused otherwise."""
    if after is None:
        refused(state, fact)
        return False
    apply(state, fact)
    assert violations(state) == []
    return True


@pytest.mark.parametrize(("before", "kind"), list(product(JobState, JOB_FACTS)))
def test_every_cell_of_the_job_table(before: JobState, kind: str) -> None:
    state = cell(before, on_gpus=before in HOLDING and kind not in OFF)
    if kind == "JobMigrating":
        claim(state, "j", 3)
    after = JOB.get((before, kind))
    assert not goes(state, MOVES[kind], after) or state.jobs["j"].state is after


@pytest.mark.parametrize("kind", OFF)
def test_no_job_is_off_its_gpus_while_it_holds_some(kind: str) -> None:
    refused(cell(JobState.STOPPING, on_gpus=True), MOVES[kind])


#: These need no job that is known.
FREE = {"JobAccepted", "SubmissionRefused", "GpusReleased", "StrayFound"}
ABOUT_JOBS = sorted(n for n, kind in FACTS.items() if "job" in kind.__dataclass_fields__)


@pytest.mark.parametrize("kind", sorted(set(ABOUT_JOBS) - FREE))
def test_facts_about_unknown_jobs(kind: str) -> None:
    state = ClusterState()
    fact = MOVES.get(kind) or _others("nobody")[kind]
    refused(state, replace(fact, job="nobody"))


def _others(job: str) -> dict[str, Any]:
    return {
        "JobAdvanced": facts.JobAdvanced(job, 1, 1.0, 0, 1.0),
        "JobMeasured": facts.JobMeasured(job, 1, {"loss": 0.5}),
        "JobExplained": facts.JobExplained(job, {}),
        "OutputsKept": facts.OutputsKept(job, "file:///o", 1, 1, ""),
        "TargetSet": facts.TargetSet(job, "train", {"n": [2]}, "starts"),
        "TargetDropped": facts.TargetDropped(job, "r"),
        "WorkerReady": facts.WorkerReady(job, 5, "n"),
        "JobForgotten": facts.JobForgotten(job),
        "CancelRequested": facts.CancelRequested(job),
        **_asked(job),
    }


def _asked(job: str) -> dict[str, Any]:
    """What people asked of a job."""
    return {
        "JobHeld": facts.JobHeld(job, "r", "ann", "operator", ""),
        "JobReleased": facts.JobReleased(job, "r", "ann"),
        "JobRequeued": facts.JobRequeued(job, "r", "ann", ""),
        "JobPrioritised": facts.JobPrioritised(job, "r", "ann", 1),
        "JobSizeSet": facts.JobSizeSet(job, "r", "ann", "", 2),
        "JobSizeFreed": facts.JobSizeFreed(job, "r", "ann"),
    }


def test_facts_of_what_people_asked_need_what_they_end_and_a_job_that_goes_on() -> None:
    ended, found = cell(JobState.COMPLETED), _asked("j")
    for kind in ("JobHeld", "JobRequeued", "JobPrioritised", "JobSizeSet"):
        refused(ended, found[kind])
    state = cell()
    for kind in ("JobReleased", "JobSizeFreed"):
        refused(state, found[kind])
    refused(state, facts.CellResumed("starts", "ann"))
    apply(state, found["JobHeld"])
    refused(state, found["JobHeld"])
    apply(state, found["JobReleased"])
    apply(state, found["JobSizeSet"])
    apply(state, found["JobSizeFreed"])
    assert state.standing == ClusterState().standing


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        ("JobAdvanced", HOLDING),
        ("JobMeasured", HOLDING),
        ("JobExplained", tuple(JobState)),
        ("TargetSet", (JobState.QUEUED, JobState.RUNNING)),
        ("WorkerReady", HOLDING),
        ("JobForgotten", (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)),
        ("CancelRequested", HOLDING),
    ],
)
def test_facts_that_move_no_life_cycle(kind: str, allowed: tuple[JobState, ...]) -> None:
    for before in JobState:
        state = cell(before, on_gpus=before in HOLDING)
        fact = _others("j")[kind]
        if before in allowed:
            apply(state, fact)
            assert kind == "JobForgotten" or state.jobs["j"].state is before
        else:
            refused(state, fact)


@pytest.mark.parametrize(
    "allocation",
    [{}, {"n": []}, {"x": [0]}, {"n": [4]}, {"n": [-1]}, {"n": [0], "x": [1]}, {"n": [3]}],
    ids=["nothing", "no GPU", "unknown node", "no such GPU", "negative", "partly", "claimed"],
)
def test_allocations_that_cannot_be(allocation: facts.Allocation) -> None:
    def other() -> ClusterState:
        state = cell()
        state.jobs["k"] = Job(id="k", submit_s=0.0, number=1, **SPEC)
        claim(state, "k", 3)
        return state

    refused(other(), facts.TargetSet("j", "train", allocation, "starts"))
    refused(other(), facts.GangStarting("j", 7, "train", allocation, 0))
    running = other()
    running.jobs["j"].state = JobState.RUNNING
    refused(running, facts.GangScaling("j", 7, allocation))


def test_held_gpus_and_used_epochs_are_refused() -> None:
    state = cell()
    state.nodes["n"].holder[2] = "k"
    refused(state, facts.GangStarting("j", 7, "train", {"n": [1, 2]}, 0))
    refused(state, facts.GangStarting("j", 5, "train", {"n": [1]}, 0))
    scaled = cell(JobState.RUNNING, on_gpus=True)
    refused(scaled, facts.GangScaling("j", 5, {"n": [0]}))
    refused(scaled, facts.WorkerReady("j", 4, "n"))
    refused(scaled, facts.WorkerReady("j", 5, "x"))
    refused(scaled, facts.GpusReleased("j", "n", [0, 4]))
    refused(scaled, facts.StrayFound("n", "j", 1, [2, 9]))
    refused(scaled, facts.TargetDropped("j", "it has none"))
    refused(scaled, facts.JobAccepted("j", SPEC))


NODE_FACTS: dict[str, Any] = {
    "NodeJoined": facts.NodeJoined("n", "a", "train", "training", 4, "A", 1, 1.0, 1.0, 1),
    "NodeSilenced": facts.NodeSilenced("n", 200.0),
    "NodeReturned": facts.NodeReturned("n"),
    "NodeLost": facts.NodeLost("n", "r"),
}


@pytest.mark.parametrize(("before", "kind"), list(product(NodeState, NODE_FACTS)))
def test_every_cell_of_the_node_table(before: NodeState, kind: str) -> None:
    state = cell()
    state.nodes["n"].state = before
    state.gpus_alive = 0 if before is NodeState.DEAD else 4
    after = NODE.get((before, kind))
    assert not goes(state, NODE_FACTS[kind], after) or state.nodes["n"].state is after


LOAN_FACTS = {
    "LoanGranted": facts.LoanGranted("n"),
    "LoanRefused": facts.LoanRefused("n", "r"),
    "ReclaimStarted": facts.ReclaimStarted("n", 200.0),
    "ReturnOrdered": facts.ReturnOrdered("n"),
    "LoanReturned": facts.LoanReturned("n"),
    "LoanLost": facts.LoanLost("n"),
}
#: States that a node can be in; the others end the loan.
ON_LOAN = (LoanState.LENDING, LoanState.LENT, LoanState.RECLAIMING, LoanState.RETURNING)


@pytest.mark.parametrize(("before", "kind"), list(product((None, *ON_LOAN), LOAN_FACTS)))
def test_every_cell_of_the_loan_table(before: LoanState | None, kind: str) -> None:
    state = cell()
    node = state.nodes["n"]
    node.loan, node.loan_state = (None, None) if before is None else ("loan-0", before)
    state.on_loan = [] if before is None else ["n"]
    state.gpus_loaned = 4 if before not in (None, LoanState.LENDING) else 0
    after = None if before is None else LOAN.get((before, kind))
    if goes(state, LOAN_FACTS[kind], after):
        assert node.loan_state == (after if after in ON_LOAN else None)


def test_a_node_is_lent_once() -> None:
    state = cell()
    apply(state, facts.LoanRequested("loan-0", "n"))
    refused(state, facts.LoanRequested("loan-1", "n"))


#: Facts about a node that must be there; who joins need not.
ABOUT_NODES = NODE_FACTS | LOAN_FACTS
ABOUT_NODES |= {"LoanRequested": facts.LoanRequested("loan-0", "n")}
ABOUT_NODES |= {"StrayFound": facts.StrayFound("n", "j", 1, [0])}
ABOUT_NODES |= {"GpusReleased": facts.GpusReleased("j", "n", [0])}


@pytest.mark.parametrize("kind", sorted(ABOUT_NODES.keys() - {"NodeJoined"}))
def test_facts_about_unknown_nodes(kind: str) -> None:
    refused(ClusterState(), ABOUT_NODES[kind])


COMMAND_FACTS = {
    "CommandRepeated": facts.CommandRepeated("default-1-0"),
    "CommandDone": facts.CommandDone("default-1-0"),
    "CommandRefused": facts.CommandRefused("default-1-0", "r"),
    "CommandExpired": facts.CommandExpired("default-1-0"),
}


@pytest.mark.parametrize(("before", "kind"), list(product(CommandState, COMMAND_FACTS)))
def test_every_cell_of_the_command_table(before: CommandState, kind: str) -> None:
    state = cell()
    command = OpenCommand("default-1-0", "Rebirth", "a", "n", {}, 900.0, 100.0, before)
    state.open(command)
    after = COMMAND.get((before, kind))
    if goes(state, COMMAND_FACTS[kind], after):
        assert command.state is after
        assert (command.id in state.commands) == (after is CommandState.ISSUED)


def test_commands_are_issued_and_closed_once() -> None:
    state = cell()
    issued = facts.CommandIssued("default-1-0", "Rebirth", "a", "n", {}, 900.0)
    apply(state, issued)
    refused(state, issued)
    apply(state, facts.CommandDone("default-1-0"))
    for fact in COMMAND_FACTS.values():
        refused(state, fact)


def test_every_fact_has_a_fold_and_every_table_names_facts() -> None:
    assert {kind.__name__ for kind in FOLDS} == set(FACTS)
    for table in (JOB, NODE, LOAN, COMMAND):
        assert {fact for _, fact in table} <= set(FACTS)


def _reached() -> Iterator[tuple[str, set[Any], set[Any]]]:
    yield "job", set(JobState), {JobState.QUEUED, *JOB.values()}
    yield "node", set(NodeState), {NodeState.ALIVE, *NODE.values()}
    yield "loan", set(LoanState), {LoanState.LENDING, *LOAN.values()}
    yield "command", set(CommandState), {CommandState.ISSUED, *COMMAND.values()}


def test_every_state_is_reached() -> None:
    for name, states, reached in _reached():
        assert states == reached, name


def test_diagrams_are_what_the_tables_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagrams.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_diagram_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(diagrams, "FOLDER", tmp_path)
    assert diagrams.main([]) == 0
    assert diagrams.main(["--check"]) == 0
    (tmp_path / "loan.md").write_text("old")
    assert diagrams.main(["--check"]) == 1
    assert "loan.md" in capsys.readouterr().err
