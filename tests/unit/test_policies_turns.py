"""The turns that a policy names are those that its plans take; without an order none are named."""

from pathlib import Path

import numpy as np
import pytest

from bus.reading import open_log
from explain import turns
from explain.turns import keeps_order, positions
from scheduler.core.canonical import state_hash
from scheduler.core.state import ClusterState, policy_name
from scheduler.core.transitions import JobState
from scheduler.journal import JournalReader, fold
from scheduler.policies.interface import Queueing
from scheduler.policies.registry import POLICIES, make_policy
from scheduler.replay import entries, stimuli
from schemas.events import NodeDied
from schemas.requests import HoldJob
from schemas.topics import JOURNAL
from tests.builders import Cell, node_born, request_of, submitted
from tests.markets import sizes
from tests.snapshots import Job, Pool, decide, snapshot

ORDERED = sorted(name for name in POLICIES if keeps_order(name))
GOLDEN = Path(__file__).parent.parent / "golden"


def test_those_that_serve_in_an_order_name_it() -> None:
    assert ORDERED == ["edf", "fifo", "gittins", "sjf", "srtf", "tiresias"]
    assert not keeps_order("tide:patience_s=60")
    assert not keeps_order("of-another-release")


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("seed", range(4))
def test_who_starts_is_who_is_first_in_the_order(name: str, seed: int) -> None:
    """Gangs of one size, none of which runs: as many start as there is room for, by their turns."""
    rng = np.random.default_rng(seed)
    jobs = [
        Job(
            f"j{number}",
            work_s=float(rng.uniform(100.0, 10_000.0)),
            sizes=(2,),
            submit_s=float(rng.integers(100)),
            deadline_s=float(rng.uniform(20_000.0, 90_000.0)),
            priority=int(rng.integers(3)) if name == "fifo" else 0,
            backoff_until_s=99_999.0 if number == 3 else -np.inf,
        )
        for number in range(12)
    ]
    seen = snapshot([Pool("train", nodes=1, gpus=8)], jobs)
    policy = make_policy(name)
    assert isinstance(policy, Queueing)
    turns = list(policy.queue(seen))
    assert len(turns) == len(set(turns))
    assert "j3" not in turns, "it waits for the end of its back-off, not for its turn"
    assert len(turns) == 11
    assert set(sizes(decide(policy, seen))) == set(turns[:4])


@pytest.mark.parametrize("name", ORDERED)
def test_while_no_node_is_in_contact_nobody_has_a_turn(name: str) -> None:
    """`tidegate jobs --position` ended with an error of a library."""
    cell = Cell()
    cell.feed(submitted("a", gpus_min=2, gpus_max=2))
    cell.state.leader.policy = name
    assert positions(cell.state) == {}
    cell.feed(node_born("n0"))
    assert positions(cell.state) == {"a": 1}
    cell.feed(NodeDied(node="n0", reason="power"))
    assert positions(cell.state) == {}


def test_no_snapshot_is_made_for_a_policy_without_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a large cell takes long, and the default policy keeps none."""
    cell = Cell()
    cell.feed(submitted("a"))
    cell.state.leader.policy = "tide"
    monkeypatch.setattr(turns, "View", None)
    assert positions(cell.state) == {}


def test_a_job_that_is_held_has_no_turn_and_a_look_changes_nothing() -> None:
    cell = Cell()
    cell.feed(node_born("n0", gpus=1))
    for name in ("a", "b", "c"):
        cell.feed(submitted(name, gpus_min=2, gpus_max=2))
    cell.feed(request_of(cell.now_s, HoldJob(job="b"), "r1"))
    cell.state.leader.policy = "fifo"
    before = state_hash(cell.state)
    assert positions(cell.state) == {"a": 1, "c": 2}
    cell.state.leader.policy = "tide"
    assert positions(cell.state) == {}
    cell.state.leader.policy = "fifo"
    assert state_hash(cell.state) == before


@pytest.mark.parametrize("name", ORDERED)
def test_of_a_recorded_cell_only_those_that_wait_have_turns(name: str) -> None:
    state, reader, most = ClusterState(), JournalReader(), 0
    with open_log(GOLDEN / f"{name}.jsonl.zst") as log:
        for entry, _ in stimuli(entries(log.records(JOURNAL.name), reader, None, None)):
            fold(state, entry)
            if entry.number % 50 or policy_name(state) != name:
                continue
            found = positions(state)
            assert sorted(found.values()) == list(range(1, len(found) + 1))
            assert all(state.jobs[job].state is JobState.QUEUED for job in found)
            most = max(most, len(found))
    assert most > 0
