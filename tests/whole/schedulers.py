"""Schedulers of the simulated system: members of a group that deals the cell to one of them.

The group believes in whom it hears: who is dead, cut off or stands still for a session loses the
cell, and may not know it. What fences it is the broker.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from bus.clock import PacedClock
from bus.contract import BusError, Unreadable
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.journal import ENTRY_VERSION
from tests.whole.broker import Broker, Connection
from tests.whole.process import Process
from tests.whole.releases import NEWEST, RELEASE

#: Kafka's `session.timeout.ms` in our settings.
SESSION_S = 45.0
#: A turn that failed is tried again after so long.
RETRY_S = 1.0


class Member:
    """One scheduler process, and those that come after it under its name."""

    def __init__(
        self,
        name: str,
        broker: Broker,
        world: PacedClock,
        rng: np.random.Generator,
        config: ServiceConfig,
        watch: Callable[[Stimulus, Decision], None],
    ) -> None:
        self.name = name
        self.services: list[SchedulerService] = []
        self.ends: list[str] = []
        self.heard_s = world.now_s()
        self._broker, self._world, self._rng, self._watch = broker, world, rng, watch
        self._config = config
        self._release = ENTRY_VERSION
        self.able = True  #: Whether it can read what the cell has stored.
        self.process = Process(name, world)
        self.link = Connection(broker, self.process, rng)
        self.processes = [self.process]
        self._turns: asyncio.Task[None] | None = None
        self._service: SchedulerService | None = None
        self._holds = False

    def start(self) -> None:
        """Begin a process."""
        self.process = Process(self.name, self._world)
        self.processes.append(self.process)
        self.process.clock.begin()
        self.link = Connection(self._broker, self.process, self._rng)
        self._turns, self._holds, self._service = None, False, None
        self.able, self.heard_s = True, self._world.now_s()

    @property
    def service(self) -> SchedulerService | None:
        """What leads here, as far as this process knows."""
        return self._service

    @property
    def heard(self) -> bool:
        """Whether the group hears it now."""
        now_s = self._world.now_s()
        return self.process.alive and not self.link.cut and now_s >= self.process.paused_until_s

    @property
    def hindered(self) -> bool:
        """Whether something is in its way."""
        link = self.link
        return not self.heard or any((link.slow, link.lost_answers, link.deadly))

    def deal(self) -> None:
        """Give it the cell."""
        if not self.process.alive or self._holds:
            return
        self._holds = True
        if self._turns is None or self._turns.done():  # else it has not yet heard that it lost it
            self._turns = asyncio.create_task(self._lead(self.process), name=f"{self.name} leads")

    def remove_fetched(self) -> None:
        """Tell it that the cell is another's; to be called when it hears us."""
        self._holds = False
        if self._service is not None:
            self._service.stop()

    def crash(self) -> None:
        """End at once."""
        if self.process.alive:
            self.process.kill()
            self._holds, self._service = False, None

    def upgrade(self) -> None:
        """End; who starts again is the next release."""
        self._release = NEWEST
        self.crash()

    def configure(self, policy: str) -> None:
        """End; who starts again has another policy."""
        self._config = self._config.model_copy(update={"policy": policy})
        self.crash()

    async def _lead(self, process: Process) -> None:
        RELEASE.set(self._release)
        while self._holds and process is self.process:
            service = SchedulerService(self.link, process.clock, self._config, watch=self._watch)
            self._service = service
            self.services = [service]
            try:
                await service.run()
            except BusError as error:
                self.able = not isinstance(error, Unreadable)
                self.ends.append(f"{type(error).__name__}: {error}")
            self._service = None
            await self.link.hang_up()
            process.clock.enter()
            await process.clock.sleep_until(process.clock.now_s() + RETRY_S)
            process.clock.leave()


class Dealt(Protocol):
    """Who may be dealt the cell."""

    heard_s: float
    able: bool

    @property
    def heard(self) -> bool:
        """Whether the group hears it now."""
        ...

    def deal(self) -> None:
        """Give it the cell."""
        ...

    def remove_fetched(self) -> None:
        """Tell it that the cell is another's; to be called when it hears us."""
        ...


AnyMember = TypeVar("AnyMember", bound=Dealt)


class Group(Generic[AnyMember]):
    """Who is dealt the cell."""

    def __init__(self, members: Sequence[AnyMember], world: PacedClock) -> None:
        self.members, self._world = members, world
        self.holder: AnyMember | None = None
        self.takeovers = 0

    def look(self) -> None:
        """Hear the members, and deal the cell anew if its holder is silent."""
        now_s = self._world.now_s()
        for member in self.members:
            if member.heard:
                member.heard_s = now_s
                if member is not self.holder:
                    member.remove_fetched()
        holder = self.holder
        if holder is not None and holder.able and holder.heard:
            holder.deal()  # what begins under its name within the session is dealt the cell anew
            return
        heard = [member for member in self.members if member.heard]
        heard = [member for member in heard if member.able] or heard
        if holder is not None and now_s - holder.heard_s < SESSION_S:
            if not holder.heard:
                return
            if holder in heard:
                holder.deal()
                return
        if heard:
            self.holder = heard[self.takeovers % len(heard)]
            self.takeovers += 1
            self.holder.deal()
