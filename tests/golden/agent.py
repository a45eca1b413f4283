"""A tiny agent for recording logs: runs gangs at their declared rates, and forgets nothing."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from bus.clock import Clock
from bus.contract import Bus, Message
from schemas.codec import CommandEnvelope, decode_command, encode, event
from schemas.commands import LendNode, Rebirth, ReturnNode, ScaleGang, StartGang, StopGang
from schemas.events import (
    CommandAcknowledged,
    EventData,
    InferenceLoad,
    JobProgressed,
    NodeBorn,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from schemas.parse import Rejected
from schemas.topics import COMMANDS, EVENTS, TELEMETRY
from schemas.values import NodeGpus

REPORT_S = 600.0


@dataclass
class Gang:
    order: StartGang
    epoch: int
    placement: list[NodeGpus]
    step: float
    since_s: float | None = None  #: When it began to train; None while it starts.

    @property
    def size(self) -> int:
        return sum(len(part.gpus) for part in self.placement)

    @property
    def rate(self) -> float:
        """Steps per second."""
        spec = self.order.spec
        known = {point.gpus: point.samples_per_s for point in spec.rates}
        return known[self.size] / spec.samples_per_step

    def step_at(self, now_s: float) -> int:
        trained_s = 0.0 if self.since_s is None else now_s - self.since_s
        return min(self.order.spec.total_steps, round(self.step + self.rate * trained_s))


class FakeAgent:
    """Answers commands after fixed times. `load` gives the GPUs its owner needs, if it has one."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        name: str,
        nodes: list[NodeBorn],
        load: Callable[[float], int] | None = None,
        fails: str | None = None,
    ) -> None:
        self.bus, self.clock, self.name, self.nodes = bus, clock, name, nodes
        self.load, self.fails = load, fails
        self.gangs: dict[str, Gang] = {}
        self.loans: dict[str, str] = {}
        self.sequence = 0
        self.due: list[tuple[float, int, Callable[[], list[EventData]]]] = []
        self.order = 0

    async def run(self, end_s: float) -> None:
        commands = await self.bus.consumer(f"agent-{self.name}", [COMMANDS.name], keys=[self.name])
        await self.say(list(self.nodes))
        self.after(0.0, self.report)
        while self.clock.now_s() < end_s:
            until_s = self.due[0][0] if self.due else end_s
            for record in await commands.poll(100, max(0.0, until_s - self.clock.now_s())):
                envelope = decode_command(record.value or b"")
                assert not isinstance(envelope, Rejected), envelope
                await self.say(self.obey(envelope))
            while self.due and self.due[0][0] <= self.clock.now_s():
                await self.say(heapq.heappop(self.due)[2]())
        await commands.close()

    def after(self, wait_s: float, what: Callable[[], list[EventData]]) -> None:
        self.order += 1
        heapq.heappush(self.due, (self.clock.now_s() + wait_s, self.order, what))

    async def say(self, events: list[EventData]) -> None:
        messages = []
        for data in events:
            envelope = event(
                data,
                source=f"/agents/{self.name}",
                sequence=self.sequence,
                bootid=1,
                time_s=self.clock.now_s(),
            )
            self.sequence += 1
            load = isinstance(data, InferenceLoad)
            topic, key = (TELEMETRY.name, self.name) if load else (EVENTS.name, "default")
            messages.append(Message(topic, key, encode(envelope)))
        await self.bus.publish(*messages)

    def report(self) -> list[EventData]:
        """Say what is measured; also the sign of life."""
        self.after(60.0, self.report)
        now_s = self.clock.now_s()
        found: list[EventData] = [
            JobProgressed(
                job=job,
                epoch=gang.epoch,
                step=gang.step_at(now_s),
                samples_per_s=gang.rate * gang.order.spec.samples_per_step,
                checkpoint_step=int(gang.step),
                checkpoint_cost_s=5.0,
            )
            for job, gang in self.gangs.items()
            if gang.since_s is not None
        ]
        if self.load is None:
            return found
        needed = self.load(now_s)
        own = sum(node.gpu_count for node in self.nodes if node.node not in self.loans)
        load = InferenceLoad(
            pool=self.nodes[0].pool,
            requests_running=needed,
            requests_waiting=0,
            request_rate_per_s=float(needed),
            gpus_needed=needed,
            gpus_serving=own,
        )
        return [*found, load]

    def obey(self, envelope: CommandEnvelope) -> list[EventData]:
        data = envelope.data
        done = CommandAcknowledged(command=envelope.id, outcome="done")
        match data:
            case StartGang():
                self.gangs[data.job] = Gang(data, data.epoch, data.placement, data.step)
                self.after(data.spec.start_cost_s, lambda: self.started(data.job, data.epoch))
            case ScaleGang():
                return [done, *self.scaled(data)]
            case StopGang() if data.job in self.gangs:
                gang = self.gangs.pop(data.job)
                step = gang.step_at(self.clock.now_s())
                self.after(5.0, lambda: self.left(data.job, gang, step, data.reason))
            case LendNode():
                self.after(30.0, lambda: self.lent(data, done))
                return []
            case ReturnNode():
                self.loans.pop(data.node, None)
            case Rebirth():
                return [*self.nodes]
            case _:
                return []
        return [done]

    def lent(self, order: LendNode, done: CommandAcknowledged) -> list[EventData]:
        self.loans[order.node] = order.loan
        return [done]

    def started(self, job: str, epoch: int) -> list[EventData]:
        gang = self.gangs.get(job)
        if gang is None or gang.epoch != epoch:
            return []
        gang.since_s = self.clock.now_s()
        if job == self.fails:
            self.fails = None
            del self.gangs[job]
            return [
                WorkerFailed(
                    job=job, epoch=epoch, node=part.node, gpus=part.gpus, error="no memory", step=0
                )
                for part in gang.placement
            ]
        left_s = (gang.order.spec.total_steps - gang.step) / gang.rate
        self.after(left_s, lambda: self.completed(job, epoch))
        return [
            WorkerStarted(
                job=job, epoch=epoch, node=part.node, gpus=part.gpus, step=round(gang.step)
            )
            for part in gang.placement
        ]

    def completed(self, job: str, epoch: int) -> list[EventData]:
        gang = self.gangs.get(job)
        if gang is None or gang.epoch != epoch:
            return []
        del self.gangs[job]
        return self.left(job, gang, gang.order.spec.total_steps, "completed")

    def left(self, job: str, gang: Gang, step: int, reason: str) -> list[EventData]:
        return [
            WorkerStopped.model_validate(
                {
                    "job": job,
                    "epoch": gang.epoch,
                    "node": part.node,
                    "gpus": part.gpus,
                    "reason": reason,
                    "step": step,
                }
            )
            for part in gang.placement
        ]

    def scaled(self, order: ScaleGang) -> list[EventData]:
        gang = self.gangs[order.job]
        step, left = gang.step_at(self.clock.now_s()), []
        kept = {part.node: part.gpus for part in order.placement}
        for part in gang.placement:
            gone = [gpu for gpu in part.gpus if gpu not in kept.get(part.node, [])]
            if gone:
                left.append(NodeGpus(node=part.node, gpus=gone))
        old = Gang(gang.order, gang.epoch, left, step)
        self.gangs[order.job] = Gang(gang.order, order.epoch, order.placement, step)
        self.after(20.0, lambda: self.started(order.job, order.epoch))
        return self.left(order.job, old, step, "scaled_in")
