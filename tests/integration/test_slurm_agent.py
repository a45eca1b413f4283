"""A whole agent on a real Slurm cluster, over the bus: started, crashed, resized, reclaimed."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.contract import Message
from bus.memory import MemoryBus
from cloud_agent.agent import CloudAgentConfig, build_agent
from cloud_agent.slurm import SlurmExecutor
from runtime.build import Options
from runtime.executor import Machine
from runtime.service import Schedule
from schemas.codec import Rejected, command, decode_event, encode
from schemas.commands import CommandData, ScaleGang, StartGang, StopGang
from schemas.events import (
    CheckpointCommitted,
    EventData,
    NodeMeasured,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from schemas.topics import COMMANDS, EVENTS
from schemas.values import NodeGpus
from tests.patience import PATIENCE_S, until
from tests.slurm import SlurmBench
from tests.workers import TRAINER, python, spec

pytestmark = pytest.mark.slow

EVEN = [NodeGpus(node="n1", gpus=[0, 1]), NodeGpus(node="n2", gpus=[0, 1])]
ONE = [NodeGpus(node="n1", gpus=[0])]


class NoMeter:
    """Measures nothing: what GPUs do is not the question here."""

    def measure(self, now_s: float, window_s: float) -> Sequence[NodeMeasured]:
        return []


class Desk:
    """A scheduler's side of the bus, and the agents that come and go on the other."""

    def __init__(self, bench: SlurmBench, folder: Path) -> None:
        self.bench, self.folder, self.clock = bench, folder, SystemClock()
        self.bus = MemoryBus(self.clock)
        self._orders = 0

    async def begin(self) -> None:
        """Start an agent with the state that the last one stored."""
        self._executor = SlurmExecutor(self.bench.options)
        about = CloudAgentConfig(
            name=self.bench.options.agent,
            pool="train",
            pool_kind="training",
            nodes=("n1", "n2"),
            gpus_per_node=2,
            options=Options(schedule=Schedule(progress_every_s=0.5)),
        )
        agent = build_agent(
            about,
            self.bus,
            self.clock,
            self.folder / "agent.db",
            lambda *_: Machine(self._executor, NoMeter()),
        )
        self._life = asyncio.create_task(agent.run())

    async def crash(self) -> None:
        """End the agent where it stands."""
        self._life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._life
        self._executor.close()

    async def order(self, data: CommandData) -> None:
        self._orders += 1
        envelope = command(
            data,
            id=f"c{self._orders}",
            source="/schedulers/default",
            sequence=self._orders,
            bootid=0,
            time_s=self.clock.now_s(),
            subject=self.bench.options.agent,
        )
        await self.bus.publish(Message(COMMANDS.name, self.bench.options.agent, encode(envelope)))

    async def said(self) -> list[EventData]:
        found: list[EventData] = []
        async for record in self.bus.read(EVENTS.name):
            envelope = decode_event(record.value or b"")
            assert not isinstance(envelope, Rejected)
            found.append(envelope.data)
        return found

    async def workers(self, kind: type[WorkerStarted | WorkerStopped], epoch: int) -> list[str]:
        """Give the nodes of which this was said, of this epoch."""
        of_epoch = [one for one in await self.said() if getattr(one, "epoch", None) == epoch]
        return sorted(one.node for one in of_epoch if isinstance(one, kind))

    async def until(
        self, kind: type[WorkerStarted | WorkerStopped], epoch: int, *nodes: str
    ) -> None:
        """Wait until it was said of these nodes."""
        deadline_s = self.clock.now_s() + PATIENCE_S
        while not set(nodes) <= set(await self.workers(kind, epoch)):
            assert self.clock.now_s() < deadline_s, await self.said()
            await asyncio.sleep(0.05)

    async def saved(self) -> list[int]:
        return [one.step for one in await self.said() if isinstance(one, CheckpointCommitted)]


async def test_gang_lives_through_crashes_a_resize_and_a_reclaim(
    bench: SlurmBench, tmp_path: Path
) -> None:
    desk = Desk(bench, tmp_path)
    await desk.begin()
    await desk.order(
        StartGang(job="j", epoch=1, placement=EVEN, spec=spec(python(TRAINER)), step=0)
    )
    await desk.until(WorkerStarted, 1, "n1", "n2")
    (first,) = bench.cluster.jobs()

    await desk.crash()
    assert bench.cluster.jobs() == [first]
    await desk.begin()
    await desk.order(ScaleGang(job="j", epoch=2, placement=ONE))
    await until(lambda: bench.cluster.jobs() != [first], "the change does not begin")
    await desk.crash()  # in the middle of the change
    await desk.begin()
    await desk.until(WorkerStopped, 1, "n1", "n2")
    await desk.until(WorkerStarted, 2, "n1")
    assert len(bench.cluster.jobs()) == 1

    await desk.order(StopGang(job="j", epoch=2, reason="preempted", checkpoint=True, grace_s=60.0))
    await desk.crash()  # perhaps before it was heard, perhaps after
    await desk.begin()
    await desk.until(WorkerStopped, 2, "n1")
    assert bench.cluster.jobs() == []

    step = max(await desk.saved())
    (stopped,) = [
        one for one in await desk.said() if isinstance(one, WorkerStopped) and one.epoch == 2
    ]
    assert (stopped.reason, stopped.step) == ("preempted", step)
    await desk.order(
        StartGang(job="j", epoch=3, placement=EVEN, spec=spec(python(TRAINER)), step=step)
    )
    await desk.until(WorkerStarted, 3, "n1", "n2")
    await until(lambda: f"rank 0 of 4 goes on from {step}\n" in bench.logs(3))
    await desk.crash()
    assert not [one for one in await desk.said() if isinstance(one, WorkerFailed)]
    for epoch in (1, 2, 3):
        assert bench.logs(epoch).count("rank 0 of") == 1
