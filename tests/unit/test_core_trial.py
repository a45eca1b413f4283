"""A request that is tried on a borrowed state comes to what it would, and leaves that as it is."""

from typing import Any

import numpy as np
import pytest

from scheduler.core.canonical import document_of, state_hash
from scheduler.core.changed_claims import ChangedClaims
from scheduler.core.requests import VERBS, requested
from scheduler.core.restore import state_from_dict
from scheduler.core.settings import settings_from
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Requested
from scheduler.core.trial import Borrowed, copied, trial_of
from scheduler.core.turn import Turn
from scheduler.policies.registry import make_policy
from schemas import requests
from tests.builders import request_of
from tests.simulation.test_requests import drawn
from tests.simulation.world import Faults, World


def tried(state: ClusterState, asked: Requested) -> list[Any]:
    turn = Turn(state, settings_from(state.leader.settings), ChangedClaims())
    requested(turn, asked)
    return turn.facts


def of_jobs(rng: np.random.Generator, world: World) -> requests.VerbData:
    """Any request about one of the jobs, or about the cell's pauses and a log."""
    job = str(rng.choice(world.submitted))
    wanted: list[requests.VerbData] = [
        requests.HoldJob(job=job),
        requests.ReleaseJob(job=job),
        requests.RequeueJob(job=job),
        requests.PrioritiseJob(job=job, priority=3),
        requests.ScaleJob(job=job, gpus=1),
        requests.PauseCell(what="all"),
        requests.ResumeCell(what="all"),
        requests.ReadLog(job=job, reader="r", from_byte=0, max_bytes=10, until_s=world.now_s + 9),
    ]
    return wanted[int(rng.integers(len(wanted)))]


@pytest.mark.parametrize("seed", range(3))
def test_any_request_comes_to_the_same_on_a_copy_of_all(seed: int) -> None:
    world = World(seed, Faults(loss=0.05), policy=make_policy("tide"), policies=make_policy)
    rng = np.random.default_rng(seed)
    asked_of, touched, most = set[type](), 0, 0
    for number in range(250):
        if rng.random() < 0.1 and len(world.submitted) < 12:
            world.submit(total_steps=int(10 ** rng.uniform(2.0, 4.0)))
        world.step(float(rng.uniform(1.0, 40.0)))
        if not world.submitted:
            continue
        choose = of_jobs if rng.random() < 0.5 else drawn
        asked = request_of(world.now_s, choose(rng, world), f"r{number}", role="admin")
        state = world.engine.state
        before, whole = state_hash(state), state_from_dict(document_of(state))
        borrowed = trial_of(state)
        assert tried(borrowed, asked) == tried(whole, asked)
        assert state_hash(borrowed) == state_hash(whole)
        assert state_hash(state) == before, "the state itself is as it was"
        assert isinstance(borrowed.jobs, Borrowed)
        touched = max(touched, len(borrowed.jobs.own))
        most = max(most, len(state.jobs))
        asked_of.add(type(asked.request.args))
        if rng.random() < 0.2 or isinstance(asked.request.args, requests.SubmitJob):
            world.feed(asked)
    assert asked_of == set(VERBS), "each verb was tried"
    assert touched < most, "not all jobs were copied"


def test_a_borrowed_table_is_as_any_other() -> None:
    lent = {"a": [1], "b": [2]}
    table = Borrowed(lent)
    table["a"].append(5)
    table["c"] = [7]
    assert table == {"a": [1, 5], "b": [2], "c": [7]}
    assert table.own == {"a", "c"}
    assert (table.get("x"), table.get("x", 3), table.pop("x", 4)) == (None, 3, 4)
    table.pop("b").append(9)
    for record in table.values():
        record.append(0)
    assert [record[-1] for _, record in sorted(table.items())] == [0, 0]
    with pytest.raises(KeyError):
        table["b"]
    assert lent == {"a": [1], "b": [2]}
    assert copied(lent) is not lent
