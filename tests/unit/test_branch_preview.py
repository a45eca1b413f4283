"""What a preview says of a request is what its branch does, and its control does not."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from bus.reading import open_log
from scheduler.core.restore import state_from_dict
from scheduler.core.state import ClusterState
from scheduler.core.transitions import JobState
from schemas.requests import (
    CancelJob,
    DrainNode,
    HoldJob,
    RecallLoans,
    ScaleJob,
    SetPolicy,
    VerbData,
)
from schemas.topics import JOURNAL
from simulator.branch.change import Change
from simulator.branch.deeds import Deed
from simulator.branch.origin import Origin, read_origin
from simulator.branch.preview import Preview, preview
from simulator.branch.requests import relative
from simulator.branch.run import Branch, branch

LOG = Path(__file__).parent.parent / "golden" / "aryl.jsonl.zst"
HOURS = 1.0


@pytest.fixture(scope="module")
def begin() -> Origin:
    with open_log(LOG) as opened:
        return read_origin(opened.records(JOURNAL.name), 80, HOURS)


@pytest.fixture(scope="module")
def control(begin: Origin) -> Branch:
    return branch(begin)


@pytest.fixture(scope="module")
def state(begin: Origin) -> ClusterState:
    return state_from_dict(orjson.loads(begin.state))


def running(state: ClusterState) -> str:
    return min(job.id for job in state.jobs.values() if job.state is JobState.RUNNING)


def shown(begin: Origin, control: Branch, asked: VerbData) -> tuple[Preview, Branch]:
    changed = branch(begin, Change(requests=(asked,)))
    return preview(begin, control, changed, asked), changed


def test_of_a_drain_it_names_who_leaves_and_when_the_node_is_empty(
    begin: Origin, control: Branch, state: ClusterState
) -> None:
    node = min(state.jobs[running(state)].allocation)
    there = {job for job in state.nodes[node].holder if job is not None}
    found, changed = shown(begin, control, DrainNode(node=node, by_s=1800.0))
    assert {move.job for move in found.moves if move.is_subject} == there
    for move in found.moves:
        assert node not in move.again_on
    (freed,) = found.nodes
    assert freed.node == node
    assert freed.free_s is not None
    assert begin.at_s < freed.free_s <= freed.by_s == begin.at_s + 1800.0
    assert not any(changed.state.nodes[node].holder)
    assert found.branch == changed.outcome
    assert orjson.loads(orjson.dumps(found))["nodes"][0]["node"] == node


def test_of_a_job_that_is_held_it_says_that_it_leaves_and_waits(
    begin: Origin, control: Branch, state: ClusterState
) -> None:
    job = running(state)
    found, _ = shown(begin, control, HoldJob(job=job))
    first = found.moves[0]
    assert (first.job, first.does, first.is_subject) == (job, "saves_and_leaves", True)
    assert (first.again_s, first.again_on) == (None, {})
    assert found.nodes == []


def test_a_request_that_changes_nothing_has_an_empty_preview(
    begin: Origin, control: Branch, state: ClusterState
) -> None:
    done = min(job.id for job in state.jobs.values() if job.state is JobState.RUNNING)
    asked = ScaleJob(job=done, gpus=state.jobs[done].size)
    same = preview(begin, control, control, asked)
    assert (same.moves, same.nodes, same.missed, same.won) == ([], [], [], [])


def test_of_nodes_that_are_called_back_it_says_when_their_owner_has_them(
    begin: Origin, control: Branch, state: ClusterState
) -> None:
    lent = [name for name in state.on_loan if any(state.nodes[name].holder)]
    asked = RecallLoans(lender=state.nodes[lent[0]].pool, by_s=900.0)
    found, changed = shown(begin, control, asked)
    assert set(lent) <= {node.node for node in found.nodes}
    for one in found.nodes:
        back = [deed.at_s for deed in changed.deeds if deed.key[:2] == (one.node, BACK)]
        assert one.free_s == back[0]
    there = {job for name in lent for job in state.nodes[name].holder if job is not None}
    assert {move.job for move in found.moves if move.is_subject} == there


def test_of_another_policy_it_says_who_fares_otherwise(begin: Origin, control: Branch) -> None:
    found, changed = shown(begin, control, SetPolicy(line="srtf", recall=True))
    assert changed.state.leader.policy == "srtf"
    assert found.moves
    assert not any(move.is_subject for move in found.moves)
    assert found.moves == sorted(found.moves, key=lambda move: (move.at_s, move.job))


BACK = "is back with its owner"


def told(control: Branch, deeds: Sequence[Deed], **ended: tuple[float, float | None]) -> Branch:
    return replace(control, deeds=list(deeds), ended=dict(ended))


def test_deadlines_and_moves_by_hand(begin: Origin, control: Branch) -> None:
    """Each case is one job, so that each rule of the comparison is seen alone."""
    at_s, end_s = begin.at_s, begin.until_s
    before = told(
        control,
        [
            Deed(at_s + 10, 1, "alike", "starts on", "n0:0,1"),
            Deed(at_s + 20, 2, "elsewhere", "starts on", "n0:2"),
            Deed(at_s + 30, 3, "later", "starts on", "n1:0,1,2"),
            Deed(at_s + 35, 3, "spared", "saves and leaves", "(preempted)"),
        ],
        late=(at_s + 50, at_s + 60),
        open=(end_s - 5, end_s + 50),
        never=(at_s + 70, at_s + 80),
        taken=(at_s + 90, at_s + 95),
    )
    after = told(
        control,
        [
            Deed(at_s + 10.5, 1, "alike", "starts on", "n0:0,1"),
            Deed(at_s + 20, 2, "elsewhere", "starts on", "n1:0"),
            Deed(at_s + 400, 9, "later", "starts on", "n1:0,1,2"),
        ],
        late=(at_s + 61, at_s + 60),
        gained=(at_s + 1, at_s + 2),
    )
    found = preview(begin, before, after, CancelJob(job="taken"))
    moves = {move.job: (move.does, move.again_on) for move in found.moves}
    assert moves == {
        "elsewhere": ("starts", {"n1": 1}),
        "later": ("stays", {"n1": 3}),
        "spared": ("stays", {}),
    }
    missed = [(one.job, one.branch_s) for one in found.missed]
    assert missed == [("late", at_s + 61), ("never", None)]
    assert [(one.job, one.control_s) for one in found.won] == [("gained", None)]


def test_moments_of_a_verb_count_from_now() -> None:
    assert relative(DrainNode(node="n", by_s=1060.0), 1000.0) == DrainNode(node="n", by_s=60.0)
    assert relative(HoldJob(job="j"), 1000.0) == HoldJob(job="j")
