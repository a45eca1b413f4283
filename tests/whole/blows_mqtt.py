"""What each kind of fault does to the bridges, the MQTT broker, and the connections to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bus.clock import PacedClock
from bus.wire import Outgoing
from schemas.codec import encode, event
from schemas.events import LinkLost, LinkOpened
from schemas.topics import MQTT_UP
from tests.whole.agents import Agent
from tests.whole.bridges import Bridging
from tests.whole.broker import Connection
from tests.whole.mosquitto import Hold, Mosquitto
from tests.whole.schedulers import Group, Member
from tests.whole.storm import Blow
from tests.whole.wires import MqttWire

#: How old a copy of the MQTT broker's file is: what it saves by itself, or a backup.
SAVED_S, BACKUP_S = 5.0, 900.0
#: What is held back is the next of these, in turn; of the last, anything.
HELD = (b".node.born.", b".worker.", b".node.born.", b"", b".node.born.")
#: A device without connection for so long says all that it has anew.
ANEW_S = 120.0
#: Who is dead has started again after about so long.
DEAD_S = 60.0
#: Others pass for up to so long until the leader dies; the next one has so long to lead.
PASSED_S, LED_S = 300.0, 300.0
KINDS = ("birth", "death", "event", "telemetry", "ack")


@dataclass
class MqttBlows:
    """Carries out blows; each public method but `touches` is a kind."""

    world: PacedClock
    mosquitto: Mosquitto
    group: Group[Member]
    bridges: list[Bridging]
    devices: list[Agent]
    hostile: set[bytes]
    later: Callable[[float, Callable[[], Any]], None]  #: Does something at a moment.

    # --- bridges ---

    def bridge_crash(self, blow: Blow) -> None:
        self._bridge(blow).crash()

    def bridge_leave(self, blow: Blow) -> None:
        self._bridge(blow).leave()

    def bridge_pause(self, blow: Blow) -> None:
        self._bridge(blow).process.pause(300.0 * blow.size**2)

    def bridge_cut(self, blow: Blow) -> None:
        self._cut(self._bridge(blow).link, 1800.0 * blow.size**2)

    def bridge_slow(self, blow: Blow) -> None:
        link = self._bridge(blow).link
        link.slow, link.lost_answers, link.deadly = 0.5, 0.1, 0.02 * (blow.who % 2)

        def end() -> None:
            link.slow = link.lost_answers = link.deadly = 0.0

        self.later(self.world.now_s() + 900.0 * blow.size, end)

    def cell_sick(self, blow: Blow) -> None:
        """Let the other cell's Kafka answer nobody."""
        until_s = self.world.now_s() + 5400.0 * blow.size**2
        for bridge in self.bridges:
            bridge.sick_until_s = bridge.other_link.cut_until_s = until_s

    # --- connections ---

    def mqtt_cut(self, blow: Blow) -> None:
        """Cut a connection one way or both."""
        wire = self._wire(blow)
        until_s = self.world.now_s() + 3600.0 * blow.size**2
        way = blow.who % 3
        if way != 1:
            wire.up_cut_until_s = max(wire.up_cut_until_s, until_s)
        if way != 2:
            wire.down_cut_until_s = max(wire.down_cut_until_s, until_s)

    def mqtt_snap(self, blow: Blow) -> None:
        self._wire(blow).snap()

    def mqtt_answers_lost(self, blow: Blow) -> None:
        self._for_a_while(blow, "lost_answers", 0.1)

    def mqtt_deadly(self, blow: Blow) -> None:
        self._for_a_while(blow, "deadly", 0.05)

    # --- the broker ---

    def mqtt_crash(self, blow: Blow) -> None:
        """Let it start again: with what it had saved, with an old copy, or with nothing."""
        kind = blow.who % 4
        kept = ({}, {}) if kind == 3 else self.mosquitto.copy()
        after_s = (0.0, SAVED_S, BACKUP_S, 0.0)[kind] * blow.size
        now_s = self.world.now_s()
        self.later(now_s + after_s, lambda: self.mosquitto.crash(kept))
        self.later(now_s + after_s + 300.0 * blow.size**2, self.mosquitto.start)

    def mqtt_repeats(self, blow: Blow) -> None:
        """Let it give messages twice."""
        self.mosquitto.repeats = 0.3

        def end() -> None:
            self.mosquitto.repeats = 0.0

        self.later(self.world.now_s() + 900.0 * blow.size, end)

    # --- what devices say ---

    def mqtt_held(self, blow: Blow) -> None:
        """Hold a word of a device back until others have passed it and the leader is another.

        A device says more when that is confirmed which it is saying, or when it starts again or
        was without connection for long: then it says all at once, and some of it goes past.
        """
        device, kind = self._device(blow), blow.who % len(HELD)
        hold = Hold(device.name, HELD[kind])
        self.mosquitto.holds.append(hold)
        now_s = self.world.now_s()
        if HELD[kind] == HELD[0]:
            device.crash()  # who starts says that it is born
        passed_s = now_s + DEAD_S + PASSED_S * blow.size
        ends_s = passed_s + 2.0 * (ANEW_S + DEAD_S)
        if blow.who % 7 < 2:
            self.later(passed_s, device.crash)
        else:
            for at_s in (passed_s, passed_s + ANEW_S + DEAD_S):
                self.later(at_s, lambda: self._cut(device.link, ANEW_S))
        self.later(ends_s, self._end_leader)
        self.later(ends_s, lambda: self._let_go(hold, ends_s + LED_S))

    def _cut(self, link: MqttWire | Connection, seconds: float) -> None:
        link.cut_until_s = max(link.cut_until_s, self.world.now_s() + seconds)

    def _end_leader(self) -> None:
        if self.group.holder is not None:
            self.group.holder.crash()

    def _let_go(self, hold: Hold, until_s: float) -> None:
        """Let go of what is held once somebody leads again, or when that takes too long."""
        holder, now_s = self.group.holder, self.world.now_s()
        service = None if holder is None else holder.service
        if now_s >= until_s or (service is not None and service.leads):
            self.mosquitto.let_go(hold)
        else:
            self.later(now_s + 5.0, lambda: self._let_go(hold, until_s))

    def mqtt_late_copy(self, blow: Blow) -> None:
        """Say again, at its own address, what a device said before."""
        device = self._device(blow)
        said = sorted(self.mosquitto.said[device.name])
        if said:
            value = said[int(blow.size * len(said))]
            kind = _kind_of(value)
            self._say(device.name, kind, value, retain=kind in KINDS[:2])

    def mqtt_forged(self, blow: Blow) -> None:
        """Say what no agent of ours says: another's words, links of all times, nonsense."""
        device, kind = self._device(blow).name, blow.who % 5
        others = [one.name for one in self.devices if one.name != device]
        other = others[0] if others else "a-other"
        now_s = self.world.now_s()
        session = round((now_s + 1e5 * (blow.size - 0.5)) * 1000)
        if kind < 2:
            data = LinkLost if kind else LinkOpened
            name = KINDS[kind]
            self._say(device, name, _word(data, device, session, now_s), retain=True)
        elif kind == 2:
            value = _word(LinkLost, other, session, now_s)
            self.hostile.add(value)
            self._say(device, "death", value, retain=True)
        elif kind == 3:
            said = sorted(self.mosquitto.said[other])
            if said:
                value = said[int(blow.size * len(said))]
                self.hostile.add(value)
                self._say(device, KINDS[2 + blow.who % 3], value)
        else:
            value = np.random.default_rng(blow.who).bytes(int(10 ** (1 + 3 * blow.size)))
            self.hostile.add(value)
            self._say(device, KINDS[blow.who % 5], value)

    def _say(self, node: str, kind: str, value: bytes, retain: bool = False) -> None:
        if self.mosquitto.up:
            address = MQTT_UP.format(node=node, kind=kind)
            self.mosquitto.tell(Outgoing(address, value, retain=retain, expiry_s=60))

    # --- whom ---

    def _bridge(self, blow: Blow) -> Bridging:
        return self.bridges[blow.who % len(self.bridges)]

    def _device(self, blow: Blow) -> Agent:
        return self.devices[(blow.who // 7) % len(self.devices)]

    def _wire(self, blow: Blow) -> MqttWire:
        wires = [bridge.wire for bridge in self.bridges]
        wires += [one.link for one in self.devices if isinstance(one.link, MqttWire)]
        return wires[(blow.who // 3) % len(wires)]

    def _for_a_while(self, blow: Blow, what: str, chance: float) -> None:
        wire = self._wire(blow)
        setattr(wire, what, chance)
        self.later(self.world.now_s() + 900.0 * blow.size, lambda: setattr(wire, what, 0.0))


def _word(data: type[LinkLost] | type[LinkOpened], agent: str, session: int, at_s: float) -> bytes:
    envelope = event(
        data(agent=agent, session=session),
        source=f"/links/{agent}",
        sequence=session,
        bootid=0,
        time_s=at_s,
        cell="default",
    )
    return encode(envelope)


def _kind_of(value: bytes) -> str:
    if b".link.opened." in value:
        return "birth"
    if b".link.lost." in value:
        return "death"
    if b".node.measured." in value or b".inference.load." in value:
        return "telemetry"
    return "ack" if b".command.acknowledged." in value else "event"
