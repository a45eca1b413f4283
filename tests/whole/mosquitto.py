"""An MQTT broker in memory that does what ours are told to do (`compose/mosquitto/broker.conf`).

Quality 1 is kept until it is acknowledged, and comes again with the next connection of its session;
a session outlives its connection for as long as its client wished; queues are bounded. Words are
retained; a Will is published some seconds after its client was lost, unless it came back. Of a
shared subscription each message is dealt to one session in turn, whether that one is there or not.
"""

import asyncio
import copy
import heapq
import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bus.clock import PacedClock
from bus.mqtt_client import WILL_DELAY_S
from bus.wire import Outgoing

#: A client that says nothing for so long is lost: one and a half times our clients' keepalive.
KEEPALIVE_S = 30.0
SILENCE_S = 1.5 * KEEPALIVE_S
#: `max_inflight_messages` and `max_queued_messages`, far fewer than ours, so that they are reached.
IN_FLIGHT_MAX = 50
QUEUED_MAX = 300
#: How often sessions are looked after.
LOOK_S = 5.0


class Line(Protocol):
    """A connection, as the broker sees it."""

    @property
    def lives(self) -> bool:
        """Whether anybody is at the other end."""
        ...

    def give(self, packet: int, message: Outgoing) -> None:
        """Send a message; of quality 0, packet is 0."""
        ...

    def drop(self) -> None:
        """Hang up."""
        ...


class Filter:
    """A subscription, shared by a group or not."""

    def __init__(self, text: str) -> None:
        """Read it as a client writes it."""
        self.text, self.share = text, ""
        if text.startswith("$share/"):
            _, self.share, text = text.split("/", 2)
        self._parts = text.split("/")
        self.known: dict[str, bool] = {}  #: By address, what `matches` found.

    def matches(self, address: str) -> bool:
        """Whether a message to an address is meant."""
        found = self.known.get(address)
        if found is None:
            parts = address.split("/")
            found = self.known[address] = len(parts) == len(self._parts) and all(
                ours in ("+", theirs) for ours, theirs in zip(self._parts, parts, strict=True)
            )
        return found


@dataclass
class Session:
    """What is kept for a client id."""

    expiry_s: float
    filters: list["Filter"] = field(default_factory=list)
    in_flight: dict[int, Outgoing] = field(default_factory=dict)
    waiting: deque[tuple[float, Outgoing]] = field(default_factory=deque)
    line: Line | None = None
    will: Outgoing | None = None
    heard_s: float = 0.0
    left_s: float = 0.0
    dropped: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "Session":
        filters, in_flight = list(self.filters), dict(self.in_flight)
        return replace(
            self, filters=filters, in_flight=in_flight, waiting=deque(self.waiting), line=None
        )


@dataclass(eq=False)
class Hold:
    """A word of a device that somebody on the way keeps, and every copy of it; others pass it."""

    node: str
    part: bytes  #: The first word that has this in it.
    message: Outgoing | None = None

    def keeps(self, message: Outgoing) -> bool:
        """Whether a message is it; the first that fits is kept from now on."""
        _, _, node, way, *_ = message.address.split("/")
        if node != self.node or way != "up" or not message.qos or message.retain:
            return False
        if self.message is None and self.part in message.value:
            self.message = message
        return self.message is not None and self.message.value == message.value


class Mosquitto:
    """The broker."""

    def __init__(self, world: PacedClock, rng: np.random.Generator) -> None:
        self.up = True
        #: The chance that a message is given twice, as after a publisher's connection broke.
        self.repeats = 0.0
        #: By node, what was said at its addresses; Wills too.
        self.said: dict[str, set[bytes]] = defaultdict(set)
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, Outgoing] = {}
        self.holds: list[Hold] = []
        self._world, self._rng = world, rng
        self._wills: list[tuple[float, int, Session, Outgoing]] = []
        self._waiter = world.waiter()
        self._packets = itertools.count(1)
        self._turns: dict[str, int] = defaultdict(int)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look after sessions and Wills from now on."""
        self._task = asyncio.create_task(self._run(), name="mosquitto")

    # --- what clients do ---

    def connect(self, name: str, line: Line, expiry_s: float, will: Outgoing | None) -> None:
        """Take a client in; whoever had its name is hung up on, and no Will of it published."""
        now_s = self._world.now_s()
        session = self._alive(name)
        if session is None:
            session = self.sessions[name] = Session(expiry_s)
        if session.line is not None:
            session.line.drop()
        session.line, session.will, session.expiry_s = line, will, expiry_s
        session.heard_s = now_s
        for packet, message in session.in_flight.items():
            line.give(packet, message)
        self._fill(session)

    def subscribe(self, name: str, line: Line, filters: list[str]) -> None:
        """Add subscriptions; a retained message comes with a new one.

        With a shared one, too, as Mosquitto 2.0.11 does; MQTT 5 (4.8.2) says that none should.
        """
        session = self.sessions[name]
        if session.line is not line:
            return
        known = {one.text for one in session.filters}
        for one in [Filter(text) for text in filters if text not in known]:
            session.filters.append(one)
            for address, message in self.retained.items():
                if one.matches(address):
                    self._give(session, message)

    def publish(self, name: str, line: Line, message: Outgoing) -> bool | None:
        """Take a message; False if nobody subscribes, None if the connection is not known."""
        session = self.hear(name, line)
        if session is None:
            return None
        return any(hold.keeps(message) for hold in self.holds) or self.tell(message)

    def acknowledge(self, name: str, line: Line, packet: int) -> None:
        """Forget a message that a client has taken."""
        session = self.hear(name, line)
        if session is not None and session.in_flight.pop(packet, None) is not None:
            self._fill(session)

    def hear(self, name: str, line: Line) -> Session | None:
        """Note that a client is there; None if it is not known by this connection."""
        session = self.sessions.get(name)
        if session is None or session.line is not line:
            return None
        session.heard_s = self._world.now_s()
        return session

    def farewell(self, name: str, line: Line, keep: bool) -> None:
        """Let a client go in good order: without its Will, and without its session if so said."""
        session = self.sessions.get(name)
        if session is not None and session.line is line:
            session.line, session.will, session.left_s = None, None, self._world.now_s()
            if not keep:
                del self.sessions[name]

    def lose(self, name: str, line: Line) -> None:
        """Note that a connection broke; its Will follows."""
        session = self.sessions.get(name)
        if session is None or session.line is not line:
            return
        session.line, session.left_s = None, self._world.now_s()
        will, session.will = session.will, None
        if will is not None:
            due_s = session.left_s + WILL_DELAY_S
            heapq.heappush(self._wills, (due_s, next(self._packets), session, will))
            self._waiter.notify()

    # --- messages ---

    def let_go(self, hold: Hold) -> None:
        """Route what was kept; what comes now is no more than late."""
        if hold in self.holds:
            self.holds.remove(hold)
            if hold.message is not None and self.up:  # else its device says it again
                self.tell(hold.message)

    def tell(self, message: Outgoing) -> bool:
        """Route a message to all whom it concerns."""
        address = message.address
        node, way = address.split("/")[2:4]
        if way == "up":
            self.said[node].add(message.value)
        if message.retain and message.value:
            self.retained[address] = message
        elif message.retain:
            self.retained.pop(address, None)
        heard, shares = False, dict[str, list[Session]]()
        for name, session in list(self.sessions.items()):
            if session.line is None and self._alive(name) is None:
                continue
            for one in session.filters:
                known = one.known.get(address)
                if not (one.matches(address) if known is None else known):
                    continue
                heard = True
                if one.share:
                    shares.setdefault(one.share, []).append(session)
                else:
                    self._give(session, message)
        for share, members in shares.items():
            self._turns[share] += 1
            self._give(members[self._turns[share] % len(members)], message)
        return heard

    def _give(self, session: Session, message: Outgoing) -> None:
        for _ in range(2 if self.repeats and self._rng.random() < self.repeats else 1):
            if message.qos == 0:
                if session.line is not None:
                    session.line.give(0, message)
            elif len(session.waiting) >= QUEUED_MAX:
                session.dropped += 1
            else:
                session.waiting.append((self._expires_s(message), message))
        self._fill(session)

    def _fill(self, session: Session) -> None:
        while session.line and session.waiting and len(session.in_flight) < IN_FLIGHT_MAX:
            expires_s, message = session.waiting.popleft()
            if expires_s > self._world.now_s():
                packet = next(self._packets)
                session.in_flight[packet] = message
                session.line.give(packet, message)

    def _expires_s(self, message: Outgoing) -> float:
        for_s = float("inf") if message.expiry_s is None else message.expiry_s
        return self._world.now_s() + for_s

    # --- as time passes ---

    def _alive(self, name: str) -> Session | None:
        session = self.sessions.get(name)
        if session is None:
            return None
        if session.line is None and self._world.now_s() > session.left_s + session.expiry_s:
            del self.sessions[name]
            return None
        return session

    async def _run(self) -> None:
        self._world.enter()
        next_s = 0.0
        while True:
            now_s = self._world.now_s()
            while self._wills and self._wills[0][0] <= now_s:
                *_, session, will = heapq.heappop(self._wills)
                if session.line is None:  # who came back in time has no Will
                    self.tell(will)
            if now_s >= next_s:
                next_s = now_s + LOOK_S
                self._look(now_s)
            await self._waiter.wait(min([next_s, *(due_s for due_s, *_ in self._wills[:1])]))

    def _look(self, now_s: float) -> None:
        for name, session in list(self.sessions.items()):
            line = session.line
            if line is not None and (now_s > session.heard_s + SILENCE_S or not line.lives):
                line.drop()
                self.lose(name, line)

    # --- what befalls it ---

    def copy(self) -> tuple[dict[str, Session], dict[str, Outgoing]]:
        """Give what its file holds now."""
        return copy.deepcopy(self.sessions), dict(self.retained)

    def crash(self, kept: tuple[dict[str, Session], dict[str, Outgoing]]) -> None:
        """End at once, with a file that holds this; Wills are in none."""
        if not self.up:
            return
        self.up = False
        self._wills.clear()
        for session in self.sessions.values():
            if session.line is not None:
                session.line.drop()
        self.sessions, self.retained = copy.deepcopy(kept[0]), dict(kept[1])

    def start(self) -> None:
        """Go on with what the file holds; who was connected has been away since now."""
        if self.up:
            return
        self.up = True
        for session in self.sessions.values():
            session.line, session.will, session.left_s = None, None, self._world.now_s()
