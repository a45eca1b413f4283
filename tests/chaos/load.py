"""Who makes the load: a tenant that submits short jobs, and a crowd of edge servers that report."""

import asyncio
import itertools
import time
from collections.abc import Callable

import numpy as np

from bus.clock import SystemClock
from bus.contract import Bus, BusError, Message
from bus.mqtt_client import MqttClient
from bus.options import MqttOptions
from bus.wire import LinkDown, Outgoing
from schemas.codec import encode, event
from schemas.events import EventData, JobCancelled, JobSubmitted, RatePoint
from schemas.topics import EVENTS, MQTT_UP
from tests.builders import node_born
from tests.chaos.ledger import Cause
from tests.post import readings

#: A publish that takes longer is tried again; nobody knows then whether it was stored.
PATIENCE_S = 20.0


class Tenant:
    """Publishes until the bus confirms, as a careful tenant would; copies may result."""

    def __init__(self, bus: Bus, rng: np.random.Generator, name: str) -> None:
        self._bus, self._rng = bus, rng
        self._name, self._source = name, f"/tenants/{name}"
        self._boot = int(time.time() // 60)
        self._sequence = itertools.count()
        self._publishing = asyncio.Lock()
        #: What the bus has confirmed.
        self.confirmed: list[Cause] = []
        self.jobs: list[str] = []
        self.retries = 0

    async def submit(self) -> str:
        """Submit one short job; give its name when it is accepted."""
        job = f"job-{len(self.jobs):05d}"
        await self._say(_short_job(job, self._name, self._rng))
        self.jobs.append(job)
        return job

    async def probe(self) -> Cause:
        """Say something harmless that the engine is told of; give how it is known there."""
        job = _short_job(f"probe-{len(self.confirmed)}", self._name, self._rng)
        said = await self._say(job)
        await self._say(JobCancelled(job=job.job, reason="a probe"))
        return said

    async def _say(self, data: EventData) -> Cause:
        async with self._publishing:
            cause = self._source, self._boot, next(self._sequence)
            envelope = event(
                data, source=cause[0], bootid=cause[1], sequence=cause[2], time_s=time.time()
            )
            message = Message(EVENTS.name, "default", encode(envelope))
            while True:
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        await self._bus.publish(message)
                    break
                except (BusError, TimeoutError):
                    self.retries += 1
                    await asyncio.sleep(0.5)
            self.confirmed.append(cause)
            return cause


async def submit_steadily(
    tenant: Tenant, rate_per_s: float, ended: Callable[[], int], most: int
) -> None:
    """Submit jobs at a steady rate until cancelled; never more than `most` open."""
    while True:
        if len(tenant.jobs) - ended() < most:
            await tenant.submit()
        await asyncio.sleep(1.0 / rate_per_s)


def _short_job(job: str, tenant: str, rng: np.random.Generator) -> JobSubmitted:
    seconds = float(rng.uniform(5.0, 30.0))
    gpus_max = int(rng.choice([1, 1, 2, 4]))
    gpus_min = 1 if rng.random() < 0.7 else gpus_max
    rates = [RatePoint(gpus=n, samples_per_s=10.0 * n**0.9) for n in (1, 2, 4) if n <= gpus_max]
    own = next(point for point in rates if point.gpus >= gpus_min)
    return JobSubmitted(
        job=job,
        tenant=tenant,
        model="resnet50",
        gpus_min=gpus_min,
        gpus_max=gpus_max,
        total_steps=max(1, round(seconds * own.samples_per_s)),
        samples_per_step=1.0,
        rates=rates,
        deadline_s=time.time() + 120.0 if rng.random() < 0.2 else None,
        memory_mib=1000,  # more than the crowd's nodes have
        checkpoint_mib=10,
        checkpoint_cost_s=0.3,
        start_cost_s=1.0,
    )


class Crowd:
    """Many edge servers on one connection, that are born and then report; none can run a job."""

    def __init__(self, options: MqttOptions, members: int, rate_per_s: float) -> None:
        self._names = [f"crowd-{number:03d}" for number in range(members)]
        self._rate_per_s = rate_per_s
        self._boot = int(time.time() // 60)
        self._sequences = dict.fromkeys(self._names, 0)
        self._client = MqttClient(
            options, "crowd", subscriptions=[], hear=lambda _: None, clock=SystemClock()
        )
        #: Reports that the broker has confirmed.
        self.reported = 0
        self.failures = 0

    async def run(self) -> None:
        """Report until cancelled."""
        self._client.start()
        try:
            for name in self._names:
                await self._say(
                    name,
                    "event",
                    node_born(name, agent=name, pool="crowd", kind="edge", gpus=1).model_copy(
                        update={"gpu_memory_mib": 1}
                    ),
                )
            ticks = itertools.count(1)
            began_s = time.monotonic()
            for name in itertools.cycle(self._names):
                await self._say(name, "telemetry", readings(name))
                due_s = began_s + next(ticks) / self._rate_per_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        finally:
            await self._client.close()

    async def _say(self, name: str, kind: str, data: EventData) -> None:
        sequence = self._sequences[name]
        self._sequences[name] += 1
        envelope = event(
            data,
            source=f"/agents/{name}",
            bootid=self._boot,
            sequence=sequence,
            time_s=time.time(),
        )
        address = MQTT_UP.format(node=name, kind=kind)
        while True:
            try:
                await self._client.publish(Outgoing(address, encode(envelope)))
                self.reported += 1
                return
            except LinkDown:
                self.failures += 1
                await asyncio.sleep(0.5)
