"""Tenants of the simulated system, and whoever else can write; what they said, and was taken."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from bus.clock import PacedClock
from bus.contract import BusError, Message
from schemas.codec import encode, event
from schemas.events import EventData, JobCancelled, JobSubmitted
from schemas.topics import EVENTS
from tests.builders import submitted
from tests.whole.broker import Broker, Connection
from tests.whole.process import Process
from tests.whole.storm import Job

#: Who was not answered says it again after so long.
AGAIN_S = 5.0


class Tenants:
    """They say everything until the broker has confirmed it."""

    def __init__(self, broker: Broker, world: PacedClock, rng: np.random.Generator) -> None:
        self.accepted: list[str] = []
        self.cancelled: list[str] = []
        #: Jobs with a deadline, which a policy may decline.
        self.deadlines: set[str] = set()
        #: What was said that nobody honest says.
        self.hostile: set[bytes] = set()
        self.link = Connection(broker, Process("tenants", world), rng)
        self._world = world
        self._sequences: dict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._submissions: list[JobSubmitted] = []
        self._tasks: list[asyncio.Task[None]] = []

    def submit(self, job: Job) -> None:
        """Submit a job by an event."""
        data = self.specify(job)
        self._say(job.tenant, data, lambda: self.accepted.append(job.name))

    def specify(self, job: Job) -> JobSubmitted:
        """Say what a job is that is about to be submitted."""
        made = submitted(job.name, gpus_min=job.gpus_min, gpus_max=job.gpus_max)
        wanted = {
            "total_steps": job.steps,
            "tenant": job.tenant,
            "start_cost_s": job.start_s,
            "checkpoint_cost_s": job.save_s,
            "checkpoint_mib": job.saved_mib,
        }
        if job.deadline_s is not None:
            wanted["deadline_s"] = self._world.now_s() + job.deadline_s
            self.deadlines.add(job.name)
        data = JobSubmitted.model_validate({**made.model_dump(), **wanted})
        self._submissions.append(data)
        return data

    def submit_again(self, which: int) -> None:
        """Submit a job that is known."""
        if (data := self.known(which)) is not None:
            self._say(data.tenant, data)

    def cancel(self, which: int) -> None:
        """Cancel a job, which may have ended."""
        if (data := self.known(which)) is not None:
            self.cancelled.append(data.job)
            self._say(data.tenant, JobCancelled(job=data.job))

    def raw(self, message: Message, then: Callable[[], None] | None = None) -> None:
        """Say something as it is; do `then` when the broker has it."""
        self._tasks.append(asyncio.create_task(self._insist(message, then)))

    def forge(self, which: int, source: str, data: EventData) -> None:
        """Say something well-formed that is not this source's to say."""
        envelope = event(
            data,
            source=source,
            sequence=which,
            bootid=which,
            time_s=self._world.now_s(),
            cell="default",
        )
        value = encode(envelope)
        self.hostile.add(value)
        self.raw(Message(EVENTS.name, "default", value))

    @property
    def names(self) -> list[str]:
        """The jobs that were submitted."""
        return [data.job for data in self._submissions]

    def job(self, which: int) -> str | None:
        """Name a job that was submitted; None if none was."""
        data = self.known(which)
        return None if data is None else data.job

    def known(self, which: int) -> JobSubmitted | None:
        """Give a job that was submitted; None if none was."""
        return self._submissions[which % len(self._submissions)] if self._submissions else None

    def _say(self, who: str, data: EventData, then: Callable[[], None] | None = None) -> None:
        envelope = event(
            data,
            source=f"/tenants/{who}",
            sequence=next(self._sequences[who]),
            bootid=0,
            time_s=self._world.now_s(),
            cell="default",
        )
        message = Message(EVENTS.name, "default", encode(envelope))
        self._tasks.append(asyncio.create_task(self._insist(message, then)))

    async def _insist(self, message: Message, then: Callable[[], None] | None) -> None:
        self._world.enter()
        try:
            while True:
                try:
                    await self.link.publish(message)
                    break
                except BusError:
                    await self._world.sleep_until(self._world.now_s() + AGAIN_S)
            if then is not None:
                then()
        finally:
            self._world.leave()
