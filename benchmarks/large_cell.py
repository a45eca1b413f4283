"""A cell behind a real `SchedulerService`: agents that answer on the bus, and a watch on its loop.

Virtual time: it stands still while the service works. So what is measured is the service alone,
and what the agents do is left out.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from bus.clock import PacedClock
from bus.contract import Bus, Message
from scheduler import garbage
from scheduler.core.stimuli import Command, Decision, Stimulus
from scheduler.policies.interface import Plan, Policy, Snapshot
from scheduler.policies.registry import make_policy
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, event
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import (
    CommandAcknowledged,
    EventData,
    InferenceLoad,
    JobProgressed,
    JobSubmitted,
    NodeBorn,
    RatePoint,
    WorkerStarted,
    WorkerStopped,
)
from schemas.topics import EVENTS

START_S, CYCLE_S = 1_000_000.0, 60.0
_BEAT_S = 0.002
_TENANTS = 50
Cells = dict[str, list[int]]


@dataclass(slots=True)
class Cost:
    """What something took."""

    cpu_s: float = 0.0  #: Of the whole process, the policy's thread included.
    wall_s: float = 0.0
    blocked_s: float = 0.0  #: The longest stretch in which the loop let nobody else on.
    blocked_cpu_s: float = 0.0  #: The longest, in CPU time of the loop's thread.


class Watch:
    """A task that wants to run every few milliseconds, and sees how long it could not."""

    def __init__(self) -> None:
        self._on = 0  # odd while it counts; a beat counts that lies in one such time
        self.cost = Cost()

    async def beat(self) -> None:
        """Beat until cancelled."""
        while True:
            was_on, before_s, before_cpu_s = self._on, time.perf_counter(), time.thread_time()
            await asyncio.sleep(_BEAT_S)
            if was_on == self._on and was_on % 2:
                cost = self.cost
                late_s = time.perf_counter() - before_s - _BEAT_S
                cost.blocked_s = max(cost.blocked_s, late_s)
                cost.blocked_cpu_s = max(cost.blocked_cpu_s, time.thread_time() - before_cpu_s)

    @asynccontextmanager
    async def over(self, cost: Cost) -> AsyncIterator[None]:
        """Add to a cost what passes meanwhile."""
        self.cost, self._on = cost, self._on + 1
        await asyncio.sleep(2 * _BEAT_S)  # a beat begins
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            cost.wall_s += time.perf_counter() - began_s
            cost.cpu_s += time.process_time() - began_cpu_s
            await asyncio.sleep(2 * _BEAT_S)  # and the last one ends
            self._on += 1


class Timed:
    """A policy that notes what its plans take, in CPU time of the thread that makes them."""

    def __init__(self, policy: Policy, plans_s: list[float]) -> None:
        self._policy, self._plans_s = policy, plans_s
        self.name = policy.name

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide as the policy does."""
        began_s = time.thread_time()
        try:
            return self._policy.plan(snapshot)
        finally:
            self._plans_s.append(time.thread_time() - began_s)


class Fleet:
    """Agents of a cell and its tenants: what they say, in the order in which they say it."""

    def __init__(self, nodes: int, seed: int) -> None:
        """Name the nodes: seven tenths train, the rest serve, but for a hundredth at the edge."""
        self._rng = np.random.default_rng(seed)
        self._said: dict[str, int] = {}
        self.gangs: dict[str, tuple[int, Cells, float, float]] = {}  # epoch, GPUs, since, step
        self._jobs: dict[str, JobSubmitted] = {}
        edge = nodes // 100
        serve = (nodes - edge) * 3 // 10
        train = nodes - edge - serve
        self.nodes: dict[str, tuple[str, str, str]] = {}  # agent, pool, kind
        for pool, kind, count, agents in (
            ("train", "training", train, 10),
            ("infer", "inference", serve, 4),
            ("edge", "edge", edge, edge),
        ):
            for number in range(count):
                agent = f"{pool}-{number * agents // count:04d}"
                self.nodes[f"{agent}-{number:05d}"] = agent, pool, kind
        self._owned = {"infer": 8 * serve}

    def owners(self) -> list[tuple[str, int]]:
        """List who lends, each with how many GPUs it has."""
        edge = [(name, 1) for name, (_, pool, _) in self.nodes.items() if pool == "edge"]
        return [*self._owned.items(), *edge]

    def _message(self, data: EventData, source: str, now_s: float) -> Message:
        sequence = self._said[source] = self._said.get(source, -1) + 1
        envelope = event(data, source=source, sequence=sequence, bootid=1, time_s=now_s)
        return Message(EVENTS.name, "default", encode(envelope))

    def _of(self, node: str) -> str:
        return f"/agents/{self.nodes[node][0]}"

    def births(self, now_s: float) -> list[Message]:
        """Let all be born, in random order."""
        names = list(self.nodes)
        self._rng.shuffle(names)
        said = []
        for name in names:
            agent, pool, kind = self.nodes[name]
            born = NodeBorn(
                node=name,
                agent=agent,
                pool=pool,
                pool_kind=cast(Any, kind),
                gpu_count=1 if kind == "edge" else 8,
                gpu_type="a100",
                gpu_memory_mib=80_000,
                speed_factor={"training": 1.0, "inference": 0.8, "edge": 0.3}[kind],
            )
            said.append(self._message(born, f"/agents/{agent}", now_s))
        return said

    def loads(self, now_s: float) -> list[Message]:
        """Let each agent say something: owners what they need, the others of one pool's."""
        said = []
        tide = 0.25 + 0.2 * float(np.sin(2 * np.pi * now_s / 86_400.0))
        spoken: dict[str, str] = {}
        for node, (agent, _, _) in self.nodes.items():
            spoken.setdefault(agent, node)
        for agent, node in spoken.items():
            _, pool, kind = self.nodes[node]
            if kind == "training":
                said.append(self._message(_ack("nothing"), f"/agents/{agent}", now_s))
                continue
            gpus = 0 if kind == "edge" else round(tide * self._owned[pool])
            load = InferenceLoad(
                pool=pool,
                node=node if kind == "edge" else None,
                requests_running=1,
                requests_waiting=0,
                request_rate_per_s=1.0,
                gpus_needed=gpus,
                gpus_serving=gpus,
            )
            said.append(self._message(load, f"/agents/{agent}", now_s))
        return said

    def submissions(self, count: int, now_s: float) -> list[Message]:
        """Let so many jobs come, of any length and size."""
        rng, said = self._rng, []
        for _ in range(count):
            number = len(self._jobs)
            low = int(rng.integers(0, 3))
            sizes = (1, 2, 4, 8, 16)[low : low + int(rng.integers(1, 4))]
            power = float(rng.uniform(0.6, 0.95))
            job = JobSubmitted(
                job=f"job-{number:06d}",
                tenant=f"team-{number % _TENANTS}",
                model=f"m-{number % 200}",
                gpus_min=sizes[0],
                gpus_max=sizes[-1],
                total_steps=1 + int(rng.lognormal(9, 1)),
                samples_per_step=1.0,
                rates=[RatePoint(gpus=size, samples_per_s=float(size**power)) for size in sizes],
                deadline_s=now_s + float(rng.uniform(3e3, 3e4)) if rng.random() < 0.2 else None,
                memory_mib=10_000,
                checkpoint_mib=1000,
                checkpoint_cost_s=10.0,
                start_cost_s=20.0,
                edge_allowed=bool(rng.random() < 0.3),
            )
            self._jobs[job.job] = job
            said.append(self._message(job, f"/tenants/{job.tenant}", now_s))
        return said

    def obey(self, commands: Iterable[Command], now_s: float) -> list[Message]:
        """Answer commands as agents that are done at once."""
        said: list[Message] = []
        for command in commands:
            source = f"/agents/{command.agent}"
            said.append(self._message(_ack(command.id), source, now_s))
            data = command.data
            if isinstance(data, StartGang | ScaleGang):
                said += self._placed(data, source, now_s)
            elif isinstance(data, StopGang) and data.job in self.gangs:
                said += self._left(data.job, data.reason, source, now_s)
        return said

    def _step(self, job: str, now_s: float) -> float:
        _, cells, since_s, step = self.gangs[job]
        size, rates = sum(map(len, cells.values())), self._jobs[job].rates
        rate = max((point.samples_per_s for point in rates if point.gpus <= size), default=0.0)
        return min(step + (now_s - since_s) * rate, float(self._jobs[job].total_steps or 0))

    def _placed(self, data: StartGang | ScaleGang, source: str, now_s: float) -> list[Message]:
        there = data.job in self.gangs
        step = self._step(data.job, now_s) if there else float(getattr(data, "step", 0))
        before = self.gangs[data.job][1] if there else {}
        cells = {part.node: list(part.gpus) for part in data.placement}
        self.gangs[data.job] = data.epoch, cells, now_s, step
        part: dict[str, Any] = {"job": data.job, "epoch": data.epoch, "step": int(step)}
        said = []
        for node, gpus in before.items():
            if gone := sorted(set(gpus) - set(cells.get(node, ()))):
                left = WorkerStopped(node=node, gpus=gone, reason="scaled_in", **part)
                said.append(self._message(left, source, now_s))
        for node, gpus in cells.items():
            up = WorkerStarted(node=node, gpus=gpus, **part)
            said.append(self._message(up, source, now_s))
        return said

    def _left(self, job: str, reason: Any, source: str, now_s: float) -> list[Message]:
        step = int(self._step(job, now_s))
        epoch, cells, _, _ = self.gangs.pop(job)
        part: dict[str, Any] = {"job": job, "epoch": epoch, "step": step, "reason": reason}
        return [
            self._message(WorkerStopped(node=node, gpus=gpus, **part), source, now_s)
            for node, gpus in cells.items()
        ]

    def work(self, now_s: float) -> list[Message]:
        """Let a fifteenth of the gangs say how far they are, and those that are done end."""
        said = []
        for number, job in enumerate(list(self.gangs)):
            epoch, cells, since_s, _ = self.gangs[job]
            source, step = self._of(next(iter(cells))), self._step(job, now_s)
            if step >= float(self._jobs[job].total_steps or 0):
                said += self._left(job, "completed", source, now_s)
            elif number % 15 == int(now_s / CYCLE_S) % 15 and now_s > since_s:
                size = sum(map(len, cells.values()))
                rates = self._jobs[job].rates
                rate = max(one.samples_per_s for one in rates if one.gpus <= size)
                got = JobProgressed(
                    job=job,
                    epoch=epoch,
                    step=int(step),
                    samples_per_s=rate,
                    checkpoint_step=int(step),
                    checkpoint_cost_s=10.0,
                )
                said.append(self._message(got, source, now_s))
        return said


def _ack(command: str) -> CommandAcknowledged:
    return CommandAcknowledged(command=command, outcome="done")


class LargeCell:
    """A fleet, its scheduler, and the watch on their loop."""

    def __init__(self, clock: PacedClock, bus: Bus, fleet: Fleet, config: ServiceConfig) -> None:
        """Prepare; within `running` the scheduler leads."""
        self.clock, self.bus, self.fleet, self.config = clock, bus, fleet, config
        self.watch = Watch()
        self.plans_s: list[float] = []  #: CPU time of each plan.
        self.cycles: list[tuple[float, float]] = []  #: CPU time of each cycle: all, and its plan's.
        self._commands: list[Command] = []

    @asynccontextmanager
    async def running(self, cost: Cost) -> AsyncIterator[SchedulerService]:
        """Have a scheduler lead; what taking over takes is added to `cost`."""
        beat = asyncio.create_task(self.watch.beat())
        service = SchedulerService(self.bus, self.clock, self.config, self._policy, self._heard)
        async with self.watch.over(cost):
            task = asyncio.create_task(service.run())
            while not service.leads and not task.done():
                await asyncio.sleep(_BEAT_S)
        self._timed(service)
        try:
            yield service
        finally:
            beat.cancel()
            task.cancel()
            ends = await asyncio.gather(beat, task, return_exceptions=True)
            if (fault := ends[1]) is not None and not isinstance(fault, asyncio.CancelledError):
                raise fault

    def _policy(self, name: str) -> Policy:
        return Timed(make_policy(name), self.plans_s)

    def _timed(self, service: SchedulerService) -> None:
        """Note what cycles take on the loop, beside their plans."""
        engine: Any = service.engine
        begin, finish, spent = engine.begin, engine.finish, [0.0, 0]

        def timed_begin(stimulus: Stimulus) -> object:
            began_s = time.thread_time()
            question = begin(stimulus)
            spent[:] = [time.thread_time() - began_s, len(self.plans_s)]
            return question

        def timed_finish(answer: object) -> object:
            began_s = time.thread_time()
            decision = finish(answer)
            if answer is not None:
                plan_s = sum(self.plans_s[int(spent[1]) :])
                self.cycles.append((spent[0] + time.thread_time() - began_s + plan_s, plan_s))
            return decision

        engine.begin, engine.finish = timed_begin, timed_finish

    def _heard(self, stimulus: Stimulus, decision: Decision) -> None:
        self._commands += decision.commands

    async def hear(self, said: Sequence[Message], cost: Cost, at_once: int = 2000) -> None:
        """Let these be read, and what follows at this moment be decided."""
        for first in range(0, len(said), at_once):
            await self.bus.publish(*said[first : first + at_once])
        garbage.look_at_new()  # the agents' own, or the scheduler would look through it
        await self.go_on(self.clock.now_s() + 0.1, cost)

    async def go_on(self, until_s: float, cost: Cost) -> None:
        """Let time pass."""
        async with self.watch.over(cost):
            await self.clock.run_until(until_s)

    async def settle(self, cost: Cost, most: int = 1000) -> None:
        """Answer commands until there are none."""
        for _ in range(most):
            if not self._commands:
                return
            commands, self._commands = self._commands, []
            await self.hear(self.fleet.obey(commands, self.clock.now_s()), cost)

    def forget(self) -> None:
        """Leave commands unanswered."""
        self._commands = []
