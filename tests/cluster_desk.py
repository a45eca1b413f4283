"""A whole agent on a real cluster, over the bus, seen from where a scheduler sits."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from bus.clock import SystemClock
from cloud_agent.agent import CloudAgentConfig, build_agent
from cloud_agent.clusters.executor import ClusterExecutor
from runtime.build import Options
from runtime.executor import Machine
from runtime.service import Schedule
from schemas.commands import CommandData
from schemas.events import CheckpointCommitted, NodeMeasured, WorkerStarted, WorkerStopped
from tests.heard import Heard
from tests.patience import PATIENCE_S

_Workers = type[WorkerStarted | WorkerStopped]


class NoMeter:
    """Measures nothing: what GPUs do is not the question here."""

    def measure(self, now_s: float, window_s: float) -> Sequence[NodeMeasured]:
        return []


class ClusterDesk(Heard):
    """Orders what a scheduler would, and hears what the agents say."""

    def __init__(
        self, agent: str, nodes: Sequence[str], make: Callable[[], ClusterExecutor], folder: Path
    ) -> None:
        """Take what makes an executor, and the folder of the agent's state."""
        super().__init__(SystemClock())
        self._agent, self._nodes, self._make, self._folder = agent, tuple(nodes), make, folder

    async def begin(self) -> None:
        """Start an agent with the state that the last one stored."""
        self._executor = executor = self._make()
        about = CloudAgentConfig(
            name=self._agent,
            pool="train",
            pool_kind="training",
            nodes=self._nodes,
            gpus_per_node=2,
            options=Options(schedule=Schedule(progress_every_s=0.5)),
        )
        state = self._folder / "agent.db"
        agent = build_agent(
            about, self.bus, self.clock, state, lambda *_: Machine(executor, NoMeter())
        )
        self._life = asyncio.create_task(agent.run())

    async def crash(self) -> None:
        """End the agent where it stands."""
        self._life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._life
        self._executor.close()

    async def tell(self, data: CommandData) -> None:
        """Give the agent a command."""
        await self.order(self._agent, data)

    async def until(self, kind: _Workers, epoch: int, *nodes: str) -> None:
        """Wait until it was said of these nodes."""
        deadline_s = self.clock.now_s() + PATIENCE_S
        while not set(nodes) <= {one.node for one in await self.workers(kind, epoch)}:
            assert self.clock.now_s() < deadline_s, await self.kinds()
            await asyncio.sleep(0.05)

    async def workers(self, kind: _Workers, epoch: int) -> list[WorkerStarted | WorkerStopped]:
        """Give what was said of this kind, of this epoch."""
        return [one for one in await self.said(kind) if one.epoch == epoch]

    async def saved(self) -> list[int]:
        """Give the steps that are durable."""
        return [one.step for one in await self.said(CheckpointCommitted)]
