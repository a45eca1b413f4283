"""Clocks that are set: what a leader does while its own is wrong, and after one that was."""

import asyncio
from collections.abc import Callable

import pytest

from bus.clock import PacedClock, Waiter
from bus.steady import SETTLE_S, STEP_S, Steady
from scheduler.core.trial import refused
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.commands import RenewLease
from schemas.requests import CordonNode, PauseCell, UncordonNode
from schemas.topics import EVENTS, dead_letters
from tests.builders import node_born, request_of, submitted
from tests.desk import Desk, measured
from tests.unit.test_requests import ask, done

DAY_S = 86_400.0
#: Far more than any lease, and a cell takes ten times as long to make up for it.
AHEAD_S = 7200.0


class Machine:
    """A clock that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.set_s = self.since_s = 0.0
        self.steady = Steady(lambda: 1e9 + self.since_s + self.set_s, lambda: self.since_s)

    def after(self, seconds: float) -> float:
        """Give how far ahead of the true time it is gone by, after so long."""
        self.since_s += seconds
        return self.steady.now_s() - 1e9 - self.since_s


def test_a_step_that_does_not_last_is_not_followed() -> None:
    machine = Machine()
    machine.set_s = DAY_S
    assert machine.after(1.0) == pytest.approx(0.0)
    assert machine.steady.off_s() == pytest.approx(DAY_S)
    assert machine.after(SETTLE_S - 1.0) == pytest.approx(0.0)
    machine.set_s = 0.0
    assert machine.after(1.0) == pytest.approx(0.0)
    assert machine.after(2 * SETTLE_S) == pytest.approx(0.0)
    assert (machine.steady.steps, machine.steady.off_s()) == (1, 0.0)


def test_a_step_after_another_has_to_last_for_itself() -> None:
    """Nobody may have looked in between, while the clock was right."""
    machine = Machine()
    machine.set_s = -0.1 * DAY_S
    assert machine.after(1.0) == pytest.approx(0.0)
    machine.set_s = -DAY_S
    assert machine.after(SETTLE_S) == pytest.approx(0.0)
    assert machine.after(SETTLE_S - 1.0) == pytest.approx(0.0)
    assert machine.after(1.0) == pytest.approx(-DAY_S)
    assert machine.steady.steps == 2


@pytest.mark.parametrize("set_s", [DAY_S, -DAY_S])
def test_a_step_that_lasts_is_followed(set_s: float) -> None:
    machine = Machine()
    machine.set_s = set_s
    assert machine.after(1.0) == pytest.approx(0.0)
    assert machine.after(SETTLE_S) == pytest.approx(set_s)
    assert machine.steady.off_s() == 0.0


def test_a_clock_that_is_put_right_little_by_little_is_followed() -> None:
    machine = Machine()
    for _ in range(10):
        machine.set_s += 0.9 * STEP_S
        assert machine.after(1.0) == pytest.approx(machine.set_s)
    assert machine.steady.steps == 0


# --- a cell ------------------------------------------------------------------------------------


class Wrong:
    """The desk's time, as a process sees it whose clock is wrong."""

    def __init__(
        self, clock: PacedClock, off_s: Callable[[], float], *, is_sure: bool = False
    ) -> None:
        self._clock, self._off_s, self._is_sure = clock, off_s, is_sure

    def now_s(self) -> float:
        return self._clock.now_s() + self._off_s()

    def latest_s(self) -> float:
        return self.now_s() if self._is_sure else max(self.now_s(), self._clock.now_s())

    def waiter(self) -> Waiter:
        return self._clock.waiter()

    async def sleep_until(self, moment_s: float) -> None:
        await self._clock.sleep_until(moment_s - self._off_s())

    def enter(self) -> None:
        self._clock.enter()

    def leave(self) -> None:
        self._clock.leave()


def led(desk: Desk, off_s: Callable[[], float], *, is_sure: bool = False) -> SchedulerService:
    """Let a process whose clock is wrong lead; `is_sure`: nothing tells it so."""
    clock = Wrong(desk.clock, off_s, is_sure=is_sure)
    service = SchedulerService(desk.bus, clock, ServiceConfig(policy="fifo"))
    desk.tasks.append(asyncio.create_task(service.run()))
    return service


async def goes_on(desk: Desk, service: SchedulerService) -> None:
    """Assert that jobs start, leases are short and silence is noticed."""
    state, before = service.engine.state, len(await desk.commands(RenewLease))
    await desk.hears(desk.say(node_born("n0")), desk.say(submitted("a")), wait_s=90.0)
    assert state.jobs["a"].state == "starting"
    await desk.hears(desk.say(measured()), wait_s=service.engine.settings.lease_s / 3)
    await desk.hears(desk.say(measured()))
    for lease in (await desk.commands(RenewLease))[before:]:
        assert lease.data.until_s <= desk.clock.now_s() + service.engine.settings.lease_s
        assert lease.data.until_s > desk.clock.now_s()
        assert lease.time_s <= desk.clock.now_s()
    assert len(await desk.commands(RenewLease)) > before
    await desk.wait(300.0)
    assert state.nodes["n0"].state == "unknown"
    await desk.wait(service.engine.settings.lease_s + 300.0)
    assert state.nodes["n0"].state == "dead"


async def test_a_clock_that_is_set_and_set_back_changes_nothing(desk: Desk) -> None:
    machine = Machine()
    begun_s = desk.clock.now_s()

    def off_s() -> float:
        machine.since_s = desk.clock.now_s() - begun_s
        return machine.steady.now_s() - 1e9 - machine.since_s

    service = led(desk, off_s)
    await desk.hears(desk.say(node_born("n0")))
    machine.set_s = DAY_S
    await desk.hears(desk.say(measured()), wait_s=2.0)
    machine.set_s = 0.0
    await desk.hears(desk.say(measured()), wait_s=2.0)
    assert service.engine.state.now_s <= desk.clock.now_s()
    await goes_on(desk, service)


@pytest.mark.slow
async def test_a_cell_goes_on_after_a_leader_whose_clock_was_ahead(desk: Desk) -> None:
    led(desk, lambda: AHEAD_S)
    await desk.hears(desk.say(node_born("n0")), wait_s=30.0)
    await desk.crash()
    service = desk.start(name="b")
    await desk.wait(1.0)
    assert service.time.ahead_s == pytest.approx(AHEAD_S, rel=0.01)
    await goes_on(desk, service)
    await desk.replayed(service)
    await desk.wait(11 * AHEAD_S)
    assert service.time.ahead_s == 0.0
    assert service.engine.state.now_s <= desk.clock.now_s()


async def test_people_are_heard_in_a_cell_whose_time_is_days_ahead(desk: Desk) -> None:
    led(desk, lambda: 3 * DAY_S)
    await desk.hears(desk.say(node_born("n0")), wait_s=30.0)
    await desk.crash()
    service = desk.start(name="b")
    await desk.wait(1.0)
    now_s, standing = desk.clock.now_s(), service.engine.state.standing
    cordon, pause = ask(desk, CordonNode(node="n0")), PauseCell(what="all", until_s=now_s + 3600.0)
    assert refused(service.engine.state, request_of(now_s, pause, "dry").request) is None
    await desk.hears(cordon, ask(desk, pause))
    assert done(desk) == ["r1", "r2"]
    assert service.engine.state.now_s > now_s + 2 * DAY_S
    await desk.hears(ask(desk, UncordonNode(node="n0")), cordon)
    assert not standing.cordons, "one that comes again is known, though its id is old by cell time"
    late = ask(desk, CordonNode(node="n0"), expires_s=now_s + 5.0)
    await desk.wait(60.0)
    await desk.hears(late)
    assert done(desk) == ["r1", "r2", "r3"], "too late by the clock"
    assert standing.pauses
    await desk.wait(now_s + 3600.0 - desk.clock.now_s() - 5.0)
    assert standing.pauses, "it ends by the clock"
    await desk.wait(10.0)
    assert not standing.pauses
    await desk.replayed(service)


async def test_a_jobs_deadline_is_by_the_clock_of_who_submits_it_by_an_event(desk: Desk) -> None:
    led(desk, lambda: 3 * DAY_S)
    await desk.hears(desk.say(node_born("n0")), wait_s=30.0)
    await desk.crash()
    service = desk.start(name="b")
    await desk.wait(1.0)
    due_s = desk.clock.now_s() + 3600.0
    job = submitted("j0", deadline_s=due_s)
    await desk.hears(desk.say(job))
    await desk.hears(desk.say(job))  # once more, as a tenant may that was not answered
    cell_s = service.engine.state.jobs["j0"].deadline_s
    assert cell_s is not None
    await desk.wait(due_s - desk.clock.now_s())
    await desk.hears(desk.say(node_born("n1")))
    assert service.engine.state.now_s == pytest.approx(cell_s, abs=5.0)
    await desk.wait(3600.0)
    await desk.hears(desk.say(job))  # and once more when it is long over
    assert [one async for one in desk.bus.read(dead_letters(EVENTS).name)] == []
    await desk.hears(desk.say(job.model_copy(update={"deadline_s": due_s + 0.5})))
    assert len([one async for one in desk.bus.read(dead_letters(EVENTS).name)]) == 1
    await desk.replayed(service)


async def test_a_request_is_taken_once_though_the_next_leaders_clock_is_behind(desk: Desk) -> None:
    service = desk.start(name="a")
    await desk.hears(desk.say(node_born("n0")), wait_s=30.0)
    cordon = ask(desk, CordonNode(node="n0"), name="old", expires_s=desk.clock.now_s() + 300.0)
    await desk.hears(cordon, ask(desk, UncordonNode(node="n0")))
    await desk.wait(301.0)
    await desk.bus.publish(*(ask(desk, PauseCell(what="loans")) for _ in range(260)))
    await desk.wait(5.0)
    assert not service.engine.state.standing.cordons
    await desk.crash()
    slow = led(desk, lambda: -200.0)
    await desk.wait(1.0)
    await desk.hears(cordon)
    assert slow.time.ahead_s > 100.0
    assert not slow.engine.state.standing.cordons


async def test_a_cell_goes_on_when_its_leaders_clock_is_put_back(desk: Desk) -> None:
    ahead_s = DAY_S
    service = led(desk, lambda: ahead_s)
    await desk.hears(desk.say(node_born("n0")), wait_s=30.0)
    ahead_s = 0.0
    await desk.hears(desk.say(measured()), wait_s=70.0)
    await goes_on(desk, service)


async def test_who_is_right_is_heard_while_the_clock_of_the_leader_is_being_put_right(
    desk: Desk,
) -> None:
    # It was two hours behind and has just been set: that it was meant is known in a minute.
    service = led(desk, lambda: -7200.0)
    await desk.hears(desk.say(node_born("n0")), desk.say(submitted("a")), wait_s=90.0)
    assert service.engine.state.jobs["a"].state == "starting"
    assert [one async for one in desk.bus.read(dead_letters(EVENTS).name)] == []


async def test_who_is_right_is_heard_by_a_leader_whose_clock_was_always_behind(desk: Desk) -> None:
    # Its machine takes the local time for UTC, and nobody sets it: the broker's clock is right.
    desk.start(name="a")
    await desk.hears(desk.say(node_born("n0")), wait_s=30.0)
    await desk.crash()
    service = led(desk, lambda: -7200.0, is_sure=True)
    await desk.hears(desk.say(submitted("a")), desk.say(measured()), wait_s=90.0)
    assert service.engine.state.jobs["a"].state == "starting"
    assert service.intake.counts["dead_letters"] == 0
    assert service.intake.behind_s == pytest.approx(7200.0, abs=2.0)
    await desk.hears(desk.say(submitted("b"), time_s=desk.clock.now_s() + 2 * 3600.0))
    ((letter,),) = [[one] for one in await desk.records(dead_letters(EVENTS).name)]
    assert "b" not in service.engine.state.jobs
    assert letter.headers["dlq_field"] == "time"


async def test_what_is_told_in_a_cell_whose_time_is_far_ahead_is_kept_as_long_as_any(
    desk: Desk,
) -> None:
    led(desk, lambda: 30 * DAY_S)
    await desk.wait(1.0)
    await desk.hears(desk.say(node_born("n0")))
    await desk.crash()
    service = desk.start(prune_s=600.0)
    for _ in range(3):
        await desk.hears(desk.say(measured()), wait_s=300.0)
    assert service.time.ahead_s > 20 * DAY_S
    assert len(await desk.records(EVENTS.name)) == 1
    assert await desk.commands(RenewLease)
