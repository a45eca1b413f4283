"""Probes a bus: a role without messages would not notice that the bus is down."""

import asyncio

from bus.contract import Bus, BusError
from schemas.topics import EVENTS

#: A bus that does not answer within this is down.
ANSWER_S = 5.0


class BusProbe:
    """Whether a bus answers, as of the last `ask`."""

    def __init__(self, bus: Bus, name: str) -> None:
        """Ask `bus`, which operators know as `name`."""
        #: Why it is of no use now, in a sentence; empty while it answers.
        self.problem = ""
        self._bus, self._name = bus, name

    async def ask(self) -> None:
        """Ask where a topic ends."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._bus.end(EVENTS.name)
            self.problem = ""
        except TimeoutError:
            self.problem = f"{self._name} did not answer for {ANSWER_S:.0f} s"
        except BusError as error:
            self.problem = f"{self._name} does not answer: {error}"
