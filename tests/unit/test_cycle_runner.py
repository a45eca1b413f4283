"""A policy that takes too long: the process goes on, another stands in, and the log says so."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bus.clock import SystemClock
from bus.contract import Message
from scheduler import journal
from scheduler.core.engine import Answer, Engine, Question
from scheduler.core.settings import Settings
from scheduler.core.stimuli import Decision, TimePassed
from scheduler.cycle_runner import CycleRunner
from scheduler.journal import recover
from scheduler.policies.checked import Names
from scheduler.policies.interface import Figure, Plan, Policy, Reason, Snapshot
from scheduler.policies.registry import make_policy
from scheduler.replay import verify
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, event
from schemas.events import EventData
from schemas.journal import decode_entry
from schemas.topics import EVENTS, JOURNAL
from tests.builders import node_born, submitted
from tests.memory_bus import MemoryBus
from tests.patience import PATIENCE_S
from tests.snapshots import Job, Pool, snapshot

QUICK = Settings(cycle_s=0.2, cycle_gap_s=0.05)


@dataclass
class Scripted:
    """Answers when it is let."""

    planner: Callable[[Snapshot], Plan]
    name: str = "scripted"

    def plan(self, snapshot: Snapshot) -> Plan:
        return self.planner(snapshot)


@dataclass
class Led:
    """A cell on the memory bus in real time, under a scripted policy."""

    planner: Callable[[Snapshot], Plan]
    budget_s: float
    bus: MemoryBus = field(default_factory=lambda: MemoryBus(SystemClock()))

    async def __aenter__(self) -> "Led":
        config = ServiceConfig(policy="tide", settings=QUICK, cycle_budget_s=self.budget_s)
        self.service = SchedulerService(self.bus, SystemClock(), config, self.policy)
        self.task = asyncio.create_task(self.service.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.service.stop()
        await asyncio.wait_for(self.task, PATIENCE_S)

    def policy(self, name: str) -> Policy:
        return Scripted(self.planner)

    async def say(self, *said: EventData) -> None:
        for number, data in enumerate(said):
            source = "/tenants/t" if data.TYPE.startswith("tidegate.job") else "/agents/agent-train"
            sent = event(data, source=source, sequence=number, bootid=0, time_s=time.time())
            await self.bus.publish(Message(EVENTS.name, "default", encode(sent)))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - in real time, whatever it is
                await asyncio.sleep(0.01)

    async def cuts(self) -> list[str]:
        entries = [decode_entry(one.value or b"") async for one in self.bus.read(JOURNAL.name)]
        stimuli = [getattr(one, "stimulus", {}) for one in entries]
        cuts = [one["data"]["cut"] for one in stimuli if one["kind"] == TimePassed.__name__]
        return [cut for cut in cuts if cut]

    async def replays(self, policy: Callable[[str], Policy]) -> None:
        records = [record async for record in self.bus.read(JOURNAL.name)]
        result = verify(records, policies=policy)
        assert result.identical, result.first_difference
        found = await recover(self.bus, "default")
        assert found.state.number == result.decisions


async def gaps(until: asyncio.Event) -> float:
    """Give the longest time that the loop was blocked, in seconds."""
    longest_s, last_s = 0.0, time.monotonic()
    while not until.is_set():
        await asyncio.sleep(0.01)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


async def test_a_policy_that_never_ends_keeps_nobody_waiting() -> None:
    let = threading.Event()

    def planner(_: Snapshot) -> Plan:
        let.wait(30.0)
        return Plan()

    ended = asyncio.Event()
    async with Led(planner, 0.3) as cell:
        watch = asyncio.create_task(gaps(ended))
        await cell.say(node_born("n0"), submitted("j", gpus_max=1))
        await cell.until(lambda: hasattr(cell.service, "engine"))
        jobs = cell.service.engine.state.jobs
        await cell.until(lambda: "j" in jobs and jobs["j"].allocation)
        await cell.until(lambda: cell.service.cycle_runner.cut >= 3)
        threads = [one for one in threading.enumerate() if one.name == "policy"]
        assert len(threads) == 1, "what is not done is not asked again"
        ended.set()
        assert await watch < 5.0, "the loop was blocked while the policy was busy"
        await cell.until(lambda: cell.service.engine.state.totals.policy_failures >= 3)
        let.set()
        threads[0].join(PATIENCE_S)
        before = cell.service.cycle_runner.cut
        number = cell.service.engine.state.number
        await cell.until(lambda: cell.service.engine.state.number > number + 2)
        assert cell.service.cycle_runner.cut <= before + 1, "it is asked again once it is done"
    first, second, *_ = await cell.cuts()
    assert first == "its plan took longer than 0.3 s; fifo stood in"
    assert "busy with an earlier cycle" in second
    # However fast it is there: a replay decides what was decided.
    await cell.replays(lambda _: Scripted(lambda _: Plan()))


@pytest.mark.slow
async def test_a_cycle_that_takes_long_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish = Engine.finish

    def slowly(engine: Engine, answer: Answer | None) -> Decision:
        time.sleep(0.0 if answer is None else 2.0)  # as if there were very much to adopt
        return finish(engine, answer)

    monkeypatch.setattr(Engine, "finish", slowly)
    ended = asyncio.Event()
    async with Led(lambda _: Plan(), 30.0) as cell:
        watch = asyncio.create_task(gaps(ended))
        await cell.say(node_born("n0"))
        await cell.until(lambda: hasattr(cell.service, "engine"))
        await cell.until(lambda: cell.service.engine.state.cycle_number > 0)
        ended.set()
        assert await watch < 1.5, "the loop was blocked while a plan was adopted"


async def test_a_policy_in_time_is_heard() -> None:
    async with Led(lambda snapshot: make_policy("tide").plan(snapshot), 30.0) as cell:
        await cell.say(node_born("n0"), submitted("j"))
        await cell.until(lambda: hasattr(cell.service, "engine"))
        jobs = cell.service.engine.state.jobs
        await cell.until(lambda: "j" in jobs and jobs["j"].allocation)
    assert (await cell.cuts(), cell.service.cycle_runner.cut) == ([], 0)
    await cell.replays(lambda _: Scripted(make_policy("tide").plan))


async def test_a_decision_too_large_for_the_journal_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody could read it again, and on Kafka the commit would fail for ever."""
    monkeypatch.setattr(journal, "MAX_JOURNAL_BYTES", 20_000)

    def planner(snapshot: Snapshot) -> Plan:
        figures = tuple(Figure("x" * 100, 1.0) for _ in range(200))
        return Plan(reasons=tuple(Reason(j, "waits", "wordy", figures) for j in snapshot.jobs.ids))

    async with Led(planner, float("inf")) as cell:
        large = submitted("large").model_copy(update={"program": None, "model": "m" * 128})
        huge = submitted("huge").model_dump() | {"program": {"argv": ["x", "y" * 15_000]}}
        await cell.say(node_born("n0"), large, type(large).model_validate(huge))
        await cell.until(lambda: hasattr(cell.service, "engine"))
        jobs = cell.service.engine.state.jobs
        await cell.until(lambda: cell.service.intake.counts["dead_letters"])
        await cell.until(lambda: cell.service.engine.state.jobs["large"].allocation)
        jobs = cell.service.engine.state.jobs
    assert list(jobs) == ["large"]
    letters = [one async for one in cell.bus.read(f"{EVENTS.name}.dlq")]
    assert ["an entry of the journal 20000" in one.headers["dlq_error"] for one in letters] == [
        True
    ]
    assert all("fifo stood in" in cut for cut in await cell.cuts())
    await cell.replays(lambda _: Scripted(planner))


async def test_a_first_cycle_too_large_for_the_journal_keeps_nobody_from_leading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planner(snapshot: Snapshot) -> Plan:
        figures = tuple(Figure("x" * 100, 1.0) for _ in range(200))
        return Plan(reasons=tuple(Reason(j, "waits", "wordy", figures) for j in snapshot.jobs.ids))

    async with Led(make_policy("fifo").plan, float("inf")) as cell:
        await cell.say(node_born("n0"), submitted("j", gpus_min=8))
        await cell.until(lambda: hasattr(cell.service, "engine"))
        await cell.until(lambda: cell.service.engine.state.jobs)
    monkeypatch.setattr(journal, "MAX_JOURNAL_BYTES", 20_000)
    await asyncio.sleep(QUICK.cycle_s)  # who leads next asks its policy at once
    async with Led(planner, float("inf"), cell.bus) as after:
        await after.until(lambda: after.service.leads or after.task.done())
        assert after.service.leads
    assert await after.cuts()
    assert all("fifo stood in" in cut for cut in await after.cuts())


async def test_a_policy_that_is_chosen_while_another_hangs_is_asked() -> None:
    let = threading.Event()

    def hangs(_: Snapshot) -> Plan:
        let.wait(PATIENCE_S)
        return Plan()

    seen = snapshot([Pool("train")], [Job("a")])
    slow, runner = Question(Scripted(hangs), seen, Names(seen)), CycleRunner(1.0)
    chosen = Question(make_policy("srtf"), seen, Names(seen))
    try:
        assert "took longer" in (await runner.ask(slow)).cut
        assert "still busy" in (await runner.ask(slow)).cut
        assert (await runner.ask(chosen)).cut == ""
    finally:
        let.set()
