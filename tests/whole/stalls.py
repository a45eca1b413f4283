"""Notices a device whose words stand still though nothing is in their way."""

from bus.clock import PacedClock
from bus.contract import Message
from tests.whole.agents import Agent
from tests.whole.bridges import Bridging
from tests.whole.mosquitto import Mosquitto

#: After whatever was in the way has gone, words are stored within so long: connections are made
#: anew, lost ones are noticed, and what nobody confirmed is sent again.
STALL_S = 240.0


class Stalls:
    """Looks at the edge agents again and again."""

    def __init__(
        self,
        world: PacedClock,
        mosquitto: Mosquitto,
        bridges: list[Bridging],
        devices: list[Agent],
    ) -> None:
        self._world, self._mosquitto = world, mosquitto
        self._bridges, self._devices = bridges, devices
        self._oldest: dict[str, tuple[Message, float]] = {}

    def look(self) -> list[str]:
        """Name the agents whose oldest word has waited for too long."""
        now_s, found = self._world.now_s(), []
        mosquitto = self._mosquitto
        hindered = (
            not mosquitto.up or bool(mosquitto.holds) or any(one.hindered for one in self._bridges)
        )
        for device in self._devices:
            message = None if device.service is None else device.service.oldest_waiting
            if message is None or hindered or device.hindered:
                self._oldest.pop(device.name, None)
                continue
            before, since_s = self._oldest.get(device.name, (None, now_s))
            if message is not before:
                since_s = now_s
            self._oldest[device.name] = message, since_s
            if now_s - since_s > STALL_S:
                found.append(f"{device.name} since {since_s:.0f}")
        return found
