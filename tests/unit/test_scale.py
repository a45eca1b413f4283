"""What one event of a large cell costs: what it touches, not what there is."""

from typing import Any

import orjson
import pytest

from bus.contract import Unreadable
from scheduler.contact import Contact
from scheduler.core import carry_out, claims
from scheduler.core.canonical import state_to_json
from scheduler.core.restore import state_in_steps
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, Job, Node
from scheduler.core.stimuli import Curve, CurvesLearned
from scheduler.dedupe import Dedupe
from scheduler.estimator.estimator import Estimator
from scheduler.journal import folding
from schemas.events import GangHeld
from schemas.journal import RawEntry
from tests.builders import START_S, Cell, node_born, submitted, target

CURVE: Curve = {
    "points": [[1.0, 1.0], [8.0, 6.0]],
    "per_step": 1.0,
    "left": None,
    "measured": [1],
    "affinity": {},
    "at_s": [START_S],
}


def test_births_in_any_order_do_not_build_the_table_of_nodes_anew() -> None:
    cell = Cell()
    nodes = cell.state.nodes
    cell.told(*map(node_born, ("n9", "n5", "n7")))
    assert cell.state.nodes is nodes
    assert len(nodes) == 3


def test_an_event_looks_at_the_claims_alone_that_it_touches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = range(6)
    cell = Cell().told(*(node_born(f"n{pair}") for pair in pairs))
    cell.told(*(submitted(f"{kind}{pair}", total_steps=10**8) for kind in "AB" for pair in pairs))
    swap: dict[str, Any] = {}
    for pair in pairs:
        here: Any = {f"n{pair}": 4}
        cell.run(f"A{pair}", **here)
        swap |= {f"A{pair}": None, f"B{pair}": target(**here)}
    cell.plan(swap)
    assert len(cell.state.claimants) == len(pairs)
    looked: list[str] = []
    look = claims._outlook

    def noted(state: ClusterState, job: Job) -> claims._Outlook:
        if state is cell.state:  # not of the twin, which begins anew each time
            looked.append(job.id)
        return look(state, job)

    monkeypatch.setattr(claims, "_outlook", noted)
    cell.acks()
    cell.stop_workers("A3", "preempted", step=7)
    assert cell.job("B3").state == "starting"
    assert set(looked) <= {"B3"}, "the others wait as they did"


def test_the_end_of_a_gang_that_was_given_up_looks_at_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a journal was lost, each gang of the fleet is one."""
    given_up = [GangHeld(job="x", epoch=7, gpus=[0], step=1)]
    cell = Cell().told(node_born("n0"), node_born("n1", held=given_up))
    cell.told(submitted("A"), submitted("B"))
    cell.run("A", n0=4)
    cell.plan({"A": None, "B": target(n0=4)})
    looked: list[ClusterState] = []

    def noted(state: ClusterState) -> set[str]:
        looked.append(state)
        return claims.still_there(state)

    monkeypatch.setattr(carry_out, "still_there", noted)
    cell.leave("x", "n1", [0], 7, "superseded")
    assert (cell.job("B").target, cell.state.stray_nodes) == ({"n0": [0, 1, 2, 3]}, [])
    assert looked == []


def test_an_event_looks_at_the_loans_alone_that_it_touches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"i{number}" for number in range(6)]
    cell = Cell().told(*(node_born(name, pool="infer", kind="inference") for name in names))
    cell.plan(lend=names)
    cell.acks()
    cell.plan(reclaim=dict.fromkeys(names, cell.now_s + 600.0))
    assert {cell.state.nodes[name].loan_state for name in names} == {"returning"}
    looked: list[str] = []
    look = ClusterState.is_open

    def noted(state: ClusterState, kind: str, subject: str) -> bool:
        if state is cell.state:  # not of the twin, which looks at all
            looked.append(subject)
        return look(state, kind, subject)

    monkeypatch.setattr(ClusterState, "is_open", noted)
    cell.feed(node_born("t0"))
    assert looked == []


def test_strangers_make_nobody_look_through_the_fleet_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contact, looks = Contact(), list[ClusterState]()
    monkeypatch.setattr(contact, "_know", looks.append)
    strangers = [f"e{number}" for number in range(50)]
    assert contact.orders(ClusterState(), strangers, {}, Dedupe(), 1.0, Settings()) == []
    assert len(looks) == 1


def test_strangers_that_say_they_have_a_dead_node_are_forgotten() -> None:
    """Anybody can make up names; each was asked once what it has."""
    contact, state, settings = Contact(), ClusterState(), Settings()
    for number in range(3):
        names = {f"e{number}-{other}": "n0" for other in range(1000)}
        assert len(contact.orders(state, [], names, Dedupe(), 1.0, settings)) == 1000
        contact.changes(state, 100.0 * number, settings.silence_s, 100.0 * number)
    assert len(contact._asked_s) <= 1000


def test_a_large_state_is_read_in_steps() -> None:
    cell = Cell().told(*(node_born(f"n{number}") for number in range(3)))
    document = orjson.loads(state_to_json(cell.state))
    (node,) = [one for one in document["nodes"].values() if one["id"] == "n0"]
    document["nodes"] |= {f"m{number}": {**node, "id": f"m{number}"} for number in range(2500)}
    *steps, state = state_in_steps(document)
    assert len(steps) >= 3
    assert steps == [None] * len(steps)
    assert state is not None
    assert len(state.nodes) == 2503


def test_a_large_entry_is_folded_in_steps() -> None:
    facts = [["NodeReturned", {"node": "n0"}], ["NodeSilenced", {"node": "n0", "lease_end_s": 1.0}]]
    cell = Cell().told(node_born("n0"))
    decision = orjson.dumps({"facts": facts[::-1] * 1250})
    entry = RawEntry("default", cell.state.number, START_S, "fifo", b"{}", decision, "")
    assert len(list(folding(cell.state, entry))) == 2
    assert cell.state.nodes["n0"].state == "alive"


def test_a_job_with_a_field_of_a_newer_release_is_not_read_and_said_to_be() -> None:
    (accepted,) = Cell().feed(submitted("j0")).facts
    spec = {**accepted.spec, "of_a_newer_release": 1.0}
    decision = orjson.dumps({"facts": [["JobAccepted", {"job": "j0", "spec": spec}]]})
    entry = RawEntry("default", 7, START_S, "fifo", b"{}", decision, "")
    with pytest.raises(Unreadable, match=r"entry 7 .*of_a_newer_release"):
        list(folding(Cell().state, entry))


def test_an_estimator_that_begins_looks_at_each_node_once() -> None:
    cell = Cell().told(*(node_born(f"n{number}") for number in range(20)))
    cell.told(*(submitted(f"j{number}") for number in range(30)))
    cell.feed(CurvesLearned({f"j{number}": CURVE for number in range(30)}))
    looks: list[str] = []

    class Noted(dict[str, Node]):
        def __getitem__(self, name: str) -> Node:
            looks.append(name)
            return super().__getitem__(name)

    cell.state.nodes = Noted(cell.state.nodes)
    Estimator(cell.state)
    assert sorted(looks) == sorted(cell.state.nodes)
