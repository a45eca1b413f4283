"""Leases by kind of pool: who may run on unheard for how long, and when that is surely over."""

from pathlib import Path

import pytest

from scheduler.core.settings import Settings
from scheduler.core.stimuli import LeaderStarted, NodeSilent
from scheduler.relevance import stimulus_of
from schemas.commands import Rebirth, RenewLease, StartGang
from schemas.events import JobCancelled, WorkerStarted
from tests.builders import Cell, node_born, progressed, submitted, target
from tests.desk import Desk, measured, open_desk

HOURS = Settings(edge_lease_s=4 * 3600.0)
MARGIN_S = HOURS.lease_margin_s


def fleet(settings: Settings) -> Cell:
    return Cell(settings=settings).told(node_born("n0"), node_born("e0", pool="edge", kind="edge"))


def lease_left_s(cell: Cell, node: str) -> float:
    """From its last word until its workers have surely ended, if it falls silent now."""
    cell.feed(NodeSilent(node, cell.now_s))
    end_s = cell.state.nodes[node].lease_end_s
    assert end_s is not None
    return end_s - cell.now_s


def test_edge_nodes_have_a_lease_of_their_own() -> None:
    cell = fleet(HOURS)
    assert lease_left_s(cell, "n0") == HOURS.lease_s + MARGIN_S
    assert lease_left_s(cell, "e0") == 4 * 3600 + MARGIN_S


def test_an_agent_that_got_another_kind_of_node_may_hold_the_long_lease_still() -> None:
    cell = fleet(HOURS)
    cell.feed(node_born("n9", agent="agent-edge"))
    assert lease_left_s(cell, "n9") == lease_left_s(cell, "e0") == 4 * 3600 + MARGIN_S
    assert lease_left_s(cell, "n0") == HOURS.lease_s + MARGIN_S


def test_unless_it_is_set_all_leases_are_alike_and_recorded_as_ever() -> None:
    cell = fleet(Settings())
    assert lease_left_s(cell, "e0") == lease_left_s(cell, "n0") == 900 + MARGIN_S
    assert "edge_lease_s" not in cell.state.leader.settings


def test_an_edge_lease_may_not_undercut_what_commands_rely_on() -> None:
    with pytest.raises(ValueError, match="edge_lease_s must be at least lease_s"):
        Settings(edge_lease_s=600.0)


@pytest.mark.parametrize(
    ("before", "after", "node"),
    [
        (HOURS, Settings(), "e0"),
        (HOURS, Settings(edge_lease_s=1000.0), "e0"),
        (Settings(lease_s=7200.0), Settings(), "n0"),
    ],
)
def test_a_leader_with_shorter_leases_waits_for_those_that_agents_hold(
    before: Settings, after: Settings, node: str
) -> None:
    cell = fleet(before)
    longest_s = cell.now_s + max(before.lease_s, before.edge_lease_s or 0.0)
    cell.wait(60.0)
    given_s = cell.now_s + max(before.lease_s, before.edge_lease_s or 0.0)
    cell.feed(LeaderStarted("next", 2, "scripted", after.to_dict()))
    cell.feed(LeaderStarted("third", 3, "scripted", after.to_dict()))
    cell.wait(600.0)
    assert cell.now_s + lease_left_s(cell, node) == given_s + MARGIN_S > longest_s
    cell.now_s = given_s + 1.0
    cell.feed(LeaderStarted("fourth", 4, "scripted", after.to_dict()))
    assert cell.state.leader.settings == after.to_dict(), "none of before is left"


def test_a_gang_that_its_agent_resumed_is_further_back_and_not_counted_again() -> None:
    cell = fleet(Settings())
    cell.feed(submitted("j0"))
    job = cell.run("j0", n0=2)
    epoch, totals = job.epoch, cell.state.totals

    def reports(step: int) -> int:
        cell.progress("j0", step, 9.0, saved=min(step, 100))
        return job.step

    assert reports(170) == 170
    cell.feed(WorkerStarted(job="j0", epoch=epoch, node="n0", gpus=[0, 1], step=101))
    assert (job.state, job.step, job.checkpoint_step, job.epoch) == ("running", 101, 100, epoch)
    assert reports(130) == 130, "and it is followed from there"
    assert (job.failures, job.preemptions, totals.failures) == (0, 0, 0)
    cell.feed(WorkerStarted(job="j0", epoch=epoch, node="n0", gpus=[0, 1], step=140))
    assert job.step == 130, "the same word again says nothing"


def test_of_hours_of_progress_that_come_at_once_a_word_for_each_stretch_is_taken() -> None:
    cell = fleet(Settings())
    cell.feed(submitted("j0", total_steps=100_000))
    job = cell.run("j0", n0=1)

    cell.progress("j0", 10)  # a step a second
    cell.now_s += 12 * 3600.0
    taken = []
    for step in range(70, 12 * 3600, 60):  # said each minute, come in one tick
        said = progressed(step, "j0", job.epoch, 10.0)
        if stimulus_of(cell.state, said, cell.now_s) is not None:
            cell.feed(said)
            taken.append(step)
    assert 44 <= len(taken) <= 48, "one for 15 minutes of work"
    assert job.step > 12 * 3600 - 960


def test_a_job_that_is_faster_than_it_says_is_followed_no_more_closely() -> None:
    cell = fleet(Settings())
    cell.feed(submitted("j0", total_steps=10_000_000))
    job = cell.run("j0", n0=1)
    taken = 0
    for minute in range(1, 12 * 60):
        cell.now_s += 60.0
        said = progressed(6000 * minute, "j0", job.epoch)
        if stimulus_of(cell.state, said, cell.now_s) is not None:
            cell.feed(said)
            taken += 1
    assert 40 <= taken <= 49, "one for 15 minutes"


def test_what_was_saved_unheard_counts_if_the_job_still_waits() -> None:
    cell = fleet(Settings())
    cell.feed(submitted("j0"))
    job = cell.run("j0", n0=2)
    epoch = job.epoch
    cell.feed(NodeSilent("n0", cell.now_s))
    cell.wait(900.0 + MARGIN_S)
    assert (job.state, job.checkpoint_step) == ("queued", 0)
    cell.save("j0", 70, epoch - 1)
    assert job.checkpoint_step == 0, "of another stay"
    cell.save("j0", 70, epoch)
    assert (job.state, job.checkpoint_step, job.step) == ("queued", 70, 70)
    cell.feed(node_born("n9"))
    cell.wait(120.0)
    cell.plan({"j0": target(n9=2)})
    (start,) = cell.sent(StartGang)
    assert start.step == 70
    cell.save("j0", 90, epoch)
    assert job.checkpoint_step == 70, "the next allocation goes on from where it began"


# --- the service ---------------------------------------------------------------------------------


async def test_renewals_are_as_long_as_the_pool_and_as_frequent_as_ever(tmp_path: Path) -> None:
    async with open_desk("memory", tmp_path) as desk:
        desk.start(settings=HOURS)
        births = [
            node_born("n0"),
            node_born("e0", pool="edge", kind="edge"),
            node_born("m0", agent="mixed"),
            node_born("m1", agent="mixed", pool="edge", kind="edge"),
        ]
        for born in births:
            await desk.bus.publish(desk.say(born, f"/agents/{born.agent}"))
        await desk.wait(1.0)
        leases = {e.subject: e.data.until_s - e.time_s for e in await desk.commands(RenewLease)}
        assert leases["agent-edge"] == pytest.approx(4 * 3600, abs=1)
        assert leases["agent-train"] == leases["mixed"] == pytest.approx(900, abs=1)
        for _ in range(12):
            await desk.hears(desk.say(measured("e0"), "/agents/agent-edge"), wait_s=60.0)
        given = [e for e in await desk.commands(RenewLease) if e.subject == "agent-edge"]
        assert len(given) == 3, "every lease_s / 3"


async def test_telemetry_dropped_for_hours_is_asked_for_once(tmp_path: Path) -> None:
    async with open_desk("memory", tmp_path) as desk:
        desk.start()
        await desk.hears(desk.say(node_born("n0")))
        desk.sequence["/agents/agent-train"] += 43_200
        asked: list[int] = []
        for _ in range(20):
            await desk.hears(desk.say(measured()), wait_s=60.0)
            asked.append(len(await desk.commands(Rebirth)))
            if asked == [1]:
                await desk.bus.publish(desk.say(node_born("n0")))  # as its agent answers
        assert asked == [1] * 20
        assert await dead(desk) == 0


async def dead(desk: Desk) -> int:
    return len(await desk.records("tidegate.telemetry.v1.dlq"))


def test_a_job_that_ends_with_its_nodes_lease_is_remembered_as_long_as_any() -> None:
    cell = fleet(Settings())
    cell.feed(submitted("j0"))
    job = cell.run("j0", n0=2)
    cell.feed(JobCancelled(job="j0", reason="enough"))
    assert job.state == "stopping"
    lease_left_s(cell, "n0")
    cell.wait(60.0)
    cell.wait(3600.0, step_s=3600.0)  # the agent is overdue with its answer and the lease ends
    assert job.state == "cancelled"
    assert "j0" in cell.state.jobs
    cell.wait(cell.engine.settings.forget_s, step_s=3600.0)
    assert "j0" not in cell.state.jobs
