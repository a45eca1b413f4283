"""Branches of logs in which names change hands: of lenders that share a pool, and of jobs."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from bus.contract import Record
from bus.reading import open_log
from scheduler.core import facts
from scheduler.core.engine import Engine
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Cause, Input, LeaderStarted, Stimulus, TimePassed
from scheduler.core.transitions import JobState
from scheduler.journal import JournalReader, write_entry
from scheduler.policies.registry import make_policy
from scheduler.replay import entries
from schemas.events import JobSubmitted, NodeBorn, NodeDied
from schemas.journal import NO_DIGEST
from schemas.topics import JOURNAL
from simulator.branch.change import Change
from simulator.branch.deeds import Deed, first_difference
from simulator.branch.origin import Origin, read_origin
from simulator.branch.places import Places
from simulator.branch.recorded_gangs import _job_of
from simulator.branch.run import branch
from simulator.branch.save import Recorder
from tests.builders import START_S, load, node_born, submitted

#: When, by whom, what.
Said = tuple[float, str, Input]


def records_of(values: Iterable[bytes]) -> list[Record]:
    return [
        Record(JOURNAL.name, offset, "default", value, {}, START_S)
        for offset, value in enumerate(values)
    ]


def recorded(
    path: Path,
    born: Iterable[NodeBorn],
    said: Iterable[Said],
    *,
    policy: str = "fifo",
    lives: Iterable[Job] = (),
    forget_s: float = 2 * 86_400.0,
) -> list[Record]:
    """Give the journal of two hours of a cell whose ideal agents work while this is said.

    Of jobs that declare no total, `lives` say how long they are.
    """
    engine, digest, begun = Engine(ClusterState(cell="default"), make_policy), NO_DIGEST, []
    settings = Settings(forget_s=forget_s).to_dict()
    first: list[tuple[str, Input]] = [("scheduler", LeaderStarted("a", 1, policy, settings))]
    first += [(f"/agents/{one.agent}", one) for one in born]
    for number, (source, data) in enumerate([*first, ("scheduler", TimePassed())]):
        stimulus = Stimulus(START_S, data, Cause(source, 1, number, START_S))
        decision = engine.handle(stimulus)
        value, digest = write_entry(engine.state, stimulus, decision, digest)
        begun.append(value)
    origin = read_origin(records_of(begun), None, 2.0)
    origin.record.jobs = {(one.id, one.submit_s): one for one in lives}
    origin.record.until_s = origin.until_s  # nothing is made up after a log's end
    origin.future = [
        Stimulus(START_S + at_s, data, Cause(source, 1, 1000 + number, START_S + at_s))
        for number, (at_s, source, data) in enumerate(said)
    ]
    recorder = Recorder(origin)
    assert branch(origin, watch=recorder.saw).violations == 0
    recorder.save(records_of(begun), path)
    with open_log(path) as opened:
        return list(opened.records(JOURNAL.name))


def after(records: list[Record], at_s: float, hours: float = 1.0) -> Origin:
    """Give the moment of a log after so many seconds."""
    known = entries(records, JournalReader(None), None, None)
    number = max(one.number for one in known if one.at_s <= START_S + at_s)
    return read_origin(records, number, hours)


# --- lenders that share a pool --------------------------------------------------------------------


def server(agent: str, number: int) -> NodeBorn:
    return node_born(f"{agent}-{number}", agent=agent, pool="serve", kind="inference")


def needs(at_s: float, agent: str, gpus: int) -> Said:
    return at_s, f"/agents/{agent}", load(gpus)


def test_what_an_owner_lacks_is_counted_once_when_a_second_comes_to_share_its_pool(
    tmp_path: Path,
) -> None:
    said: list[Said] = [
        needs(60.0, "east", 10),  # it has eight
        *((600.0, "/agents/west", server("west", number)) for number in range(2)),
        needs(660.0, "west", 0),
        needs(660.0, "east", 8),
        *((1200.0, "/agents/west", NodeDied(node=f"west-{n}", reason="gone")) for n in range(2)),
        needs(1260.0, "east", 9),
        needs(1320.0, "east", 1),
    ]
    born = [node_born("n0"), *(server("east", number) for number in range(2))]
    log = recorded(tmp_path / "run.db", born, said)
    begin = after(log, 120.0)
    first_s = START_S + 660.0 - begin.at_s
    assert begin.record.short_gpu_s == 2 * first_s + 1 * 60.0
    short_gpu_h = branch(begin).outcome.short_gpu_h
    assert short_gpu_h * 3600.0 == pytest.approx(begin.record.short_gpu_s)
    twice = branch(begin, Change(demand=2.0)).outcome.short_gpu_h * 3600.0
    assert twice == pytest.approx(12 * first_s + 8 * 600.0 + 10 * 60.0)


def test_a_word_of_who_has_the_pools_name_now_is_passed_on_as_its_own(tmp_path: Path) -> None:
    said: list[Said] = [
        needs(60.0, "east", 3),
        (120.0, "/agents/west", server("west", 0)),
        needs(180.0, "west", 2),  # east has not spoken since, so it has the pool's name still
        (240.0, "/agents/east", NodeDied(node="east-0", reason="gone")),
        needs(300.0, "west", 1),
    ]
    log = recorded(tmp_path / "run.db", [node_born("n0"), server("east", 0)], said)
    state = branch(after(log, 240.0)).state
    assert {name: (one.source, one.gpus_needed) for name, one in state.lenders.items()} == {
        "serve": ("/agents/west", 1.0)
    }


def test_a_control_does_what_a_log_with_a_shared_pool_did(tmp_path: Path) -> None:
    said: list[Said] = []
    for minute in range(1, 119):
        said.append(needs(60.0 * minute, "east", 4 if 40 < minute < 80 else 0))
        said.append(needs(60.0 * minute, "west", 7 if 60 < minute < 90 else 1))
    for number in range(6):
        job = submitted(f"j{number}", total_steps=6000 + 1000 * number, gpus_max=4)
        said.append((90.0 + 300.0 * number, "/tenants/t", job))
    born = [node_born("n0"), *(server(agent, n) for agent in ("east", "west") for n in range(2))]
    log = recorded(tmp_path / "run.db", born, sorted(said, key=lambda one: one[0]), policy="tide")
    for at_s in (600.0, 2000.0, 3600.0):
        begin = after(log, at_s)
        control = branch(begin)
        assert len(begin.record.deeds) > 5
        assert first_difference(begin.record.deeds, control.deeds) is None
        short_gpu_s = control.outcome.short_gpu_h * 3600.0
        # The record knows what was told each minute, while at most three GPUs were short.
        assert short_gpu_s == pytest.approx(begin.record.short_gpu_s, abs=3 * 60.0)
        assert control.violations == 0
    called = {deed.subject for deed in after(log, 1.0, 2.0).record.deeds if "called" in deed.kind}
    assert {name.partition("-")[0] for name in called} == {"east", "west"}


def test_a_checkpoint_travels_from_agent_to_agent_of_a_pool() -> None:
    state = ClusterState(cell="default")
    places = Places(state)
    for one in (server("east", 0), server("west", 0), server("east", 1)):
        places.add(one)
    east, west, other = (places.site(((number, 4),)) for number in range(3))
    assert (east == other, east == west) == (True, False)
    places.add(server("east", 0).model_copy(update={"agent": "north"}))
    assert places.site(((0, 4),)) not in (east, west), "another agent speaks for it now"


# --- names that are given again -------------------------------------------------------------------


def _life(said: JobSubmitted, at_s: float, steps: int) -> Job:
    """A job that declares no total, as it was when it had done so many steps."""
    job = _job_of(said)
    job.submit_s, job.step, job.state = START_S + at_s, steps, JobState.COMPLETED
    return job


def test_a_job_of_a_name_that_was_used_before_is_another_job(tmp_path: Path) -> None:
    job = submitted("again", gpus_max=1).model_copy(update={"total_steps": None})
    lives = [_life(job, 10.0, 1200), _life(job, 2000.0, 300), _life(job, 3000.0, 900)]
    said: list[Said] = [(one.submit_s - START_S, "/tenants/t", job) for one in lives]
    said.insert(1, (20.0, "/tenants/t", job))  # again, as a bus may have it
    log = recorded(tmp_path / "run.db", [node_born("n0")], said, lives=lives, forget_s=60.0)

    def done(deeds: list[Deed]) -> list[float]:
        return [deed.at_s for deed in deeds if deed.kind == "is done"]

    ends = done(after(log, 5.0, 2.0).record.deeds)
    took = [end_s - life.submit_s for end_s, life in zip(ends, lives, strict=True)]
    assert [round(one, -2) for one in took] == [1200.0, 300.0, 900.0]
    for at_s in (5.0, 600.0, 1300.0, 2100.0):  # before it; in it; over, and known; in the second
        begin = after(log, at_s, 1.5)
        control = branch(begin)
        assert first_difference(begin.record.deeds, control.deeds) is None, at_s
        assert done(control.deeds) == done(begin.record.deeds)
        assert control.violations == 0


def test_a_job_that_still_has_its_name_keeps_it_in_a_slower_branch(tmp_path: Path) -> None:
    job = submitted("again", gpus_max=1).model_copy(update={"total_steps": None})
    lives = [_life(job, 10.0, 1200), _life(job, 2000.0, 300)]
    said: list[Said] = [(one.submit_s - START_S, "/tenants/t", job) for one in lives]
    log = recorded(tmp_path / "run.db", [node_born("n0")], said, lives=lives, forget_s=900.0)
    begin = after(log, 600.0)
    found: list[object] = []
    agent, at_s = "/agents/agent-train", begin.at_s
    dies, born = NodeDied(node="n0", reason="x"), node_born("n0")
    begin.future[:0] = [
        Stimulus(at_s + 1.0, dies, Cause(agent, 1, 10**8, at_s + 1.0)),
        Stimulus(at_s + 600.0, born, Cause(agent, 2, 10**8, at_s + 600.0)),
    ]
    slow = branch(begin, watch=lambda _state, _stimulus, decision: found.extend(decision.facts))
    assert not any(isinstance(one, facts.JobAccepted) for one in found)
    (only,) = [deed for deed in slow.deeds if deed.kind == "is done"]
    assert only.at_s > START_S + 2000.0
    assert slow.violations == 0
