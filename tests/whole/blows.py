"""What each kind of fault does to a simulated system."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bus.clock import PacedClock
from bus.contract import Message
from bus.steady import SETTLE_S
from schemas.events import JobCancelled, NodeBorn, NodeDied
from schemas.topics import ALL_TOPICS, EVENTS, REQUESTS, SNAPSHOTS, TELEMETRY
from tests.whole.agents import Agent
from tests.whole.blows_mqtt import MqttBlows
from tests.whole.bridges import Bridging
from tests.whole.broker import Broker, Connection
from tests.whole.disks import FLUSH_S
from tests.whole.operators import Operators
from tests.whole.policies import POLICIES
from tests.whole.process import SkewedClock
from tests.whole.schedulers import Group, Member
from tests.whole.storm import Blow
from tests.whole.supervisors import FOR_GOOD
from tests.whole.tenants import Tenants
from tests.whole.wires import MqttWire

#: Clocks are less apart than this, or leases could not be kept (`Settings.lease_margin_s`).
CLOCKS_S = 25.0
#: A machine whose power is back runs its agent after so long.
RESET_S = 3.0
#: A copy from which a log is restored is at most so old.
COPY_S = 3600.0


@dataclass
class Blows:
    """Carries out blows; each public method is a kind."""

    world: PacedClock
    broker: Broker
    group: Group[Member]
    agents: list[Agent]
    tenants: Tenants
    bridges: list[Bridging]
    mqtt: MqttBlows
    operators: Operators
    later: Callable[[float, Callable[[], Any]], None]  #: Does something at a moment.
    _leaping: list[SkewedClock] = field(default_factory=list)

    def strike(self, blow: Blow) -> None:
        """Let it happen."""
        kind = getattr(self, blow.kind, None) or getattr(self.mqtt, blow.kind)
        kind(blow)

    # --- schedulers ---

    def scheduler_crash(self, blow: Blow) -> None:
        self._member(blow).crash()

    def scheduler_pause(self, blow: Blow) -> None:
        self._member(blow).process.pause(300.0 * blow.size**2)

    def scheduler_cut(self, blow: Blow) -> None:
        self._cut(self._member(blow).link, 1800.0 * blow.size**2)

    def scheduler_upgrade(self, blow: Blow) -> None:
        self._member(blow).upgrade()

    def policy_changed(self, blow: Blow) -> None:
        """Let an operator give a scheduler another policy."""
        self._member(blow).configure(POLICIES[blow.who % (len(POLICIES) - 1)])

    # --- agents ---

    def agent_crash(self, blow: Blow) -> None:
        self._agent(blow).crash()

    def agent_upgrade(self, blow: Blow) -> None:
        self._agent(blow).upgrade()

    def agent_moved(self, blow: Blow) -> None:
        """Let an operator give an agent's nodes another pool; what runs there runs on."""
        self._agent(blow).move()

    def agent_dead(self, blow: Blow) -> None:
        """Let nobody start it again for long, perhaps beyond its lease."""
        agent = self._agent(blow)
        if agent.process.alive:
            agent.crash()
            agent.process.mourned = True
            self.later(self.world.now_s() + 3600.0 * blow.size, agent.start)

    def agent_torn(self, blow: Blow) -> None:
        self._agent(blow).tear()

    def agent_flaps(self, blow: Blow) -> None:
        """Lose power, and again soon after the start: all that this one wrote may be gone."""
        agent = self._agent(blow)
        self._reset(agent)
        again_s = self.world.now_s() + RESET_S + FLUSH_S * blow.size
        self.later(again_s, lambda: self._reset(agent))

    def agent_pause(self, blow: Blow) -> None:
        self._agent(blow).process.pause(60.0 * blow.size**2)

    def agent_cut(self, blow: Blow) -> None:
        self._cut(self._agent(blow).link, 5400.0 * blow.size**2)

    def agent_leave(self, blow: Blow) -> None:
        self._agent(blow).leave(None)

    def agent_farewell(self, blow: Blow) -> None:
        self._agent(blow).leave("maintenance")

    def disk_full(self, blow: Blow) -> None:
        self._agent(blow).fill(1800.0 * blow.size)

    def disk_errs(self, blow: Blow) -> None:
        """Let writes fail now and then; some are on the disk all the same."""
        disk = self._agent(blow).disk
        disk.errs = 0.02

        def end() -> None:
            disk.errs = 0.0

        self.later(self.world.now_s() + 1800.0 * blow.size, end)

    def disk_unreadable(self, blow: Blow) -> None:
        """Let nothing be read or written for a while."""
        disk = self._agent(blow).disk
        until_s = self.world.now_s() + 1800.0 * blow.size**2
        disk.unreadable_until_s = max(disk.unreadable_until_s, until_s)

    def worker_fails(self, blow: Blow) -> None:
        self._agent(blow).fail_worker()

    def worker_ends_for_good(self, blow: Blow) -> None:
        self._agent(blow).fail_worker(FOR_GOOD)

    def store_fails(self, blow: Blow) -> None:
        """Let an agent's checkpoints fail for a while."""
        agent = self._agent(blow)
        agent.fail_store(True)
        self.later(self.world.now_s() + 3600.0 * blow.size, lambda: agent.fail_store(False))

    # --- what is between them ---

    def slow(self, blow: Blow) -> None:
        self._for_a_while(blow, "slow", 0.5)

    def answers_lost(self, blow: Blow) -> None:
        self._for_a_while(blow, "lost_answers", 0.1)

    def deadly(self, blow: Blow) -> None:
        self._for_a_while(blow, "deadly", 0.05)

    def late_copy(self, blow: Blow) -> None:
        if record := self.broker.stored(EVENTS.name, blow.size):
            self.tenants.raw(Message(record.topic, record.key, record.value, record.headers))

    def garbage(self, blow: Blow) -> None:
        size = int(10 ** (1 + 3 * blow.size))
        value = np.random.default_rng(blow.who).bytes(size)
        if blow.who % 3 == 0:
            value = b'{"type": "tidegate.job.submitted.v1", "data": ' + b"[" * size
        self.tenants.hostile.add(value)
        topic = EVENTS if blow.who % 2 else TELEMETRY
        self.tenants.raw(Message(topic.name, "default", value))

    def offsets_forgotten(self, blow: Blow) -> None:
        self.broker.forget_offsets("scheduler-default")

    def topic_recreated(self, blow: Blow) -> None:
        """Lose all snapshots, or what was measured: nothing that the journal does not tell."""
        self.broker.recreate((SNAPSHOTS if blow.who % 2 else TELEMETRY).name)

    def tail_lost(self, blow: Blow) -> None:
        """Lose what was not flushed, of each topic up to `FLUSH_S`."""
        rng, now_s = np.random.default_rng(blow.who), self.world.now_s()
        self.broker.lose(
            {topic: now_s - float(rng.uniform(0.0, FLUSH_S * blow.size)) for topic in ALL_TOPICS}
        )

    def log_restored(self, blow: Blow) -> None:
        """Go on from a copy of the log that is up to so old."""
        now_s = self.world.now_s()
        self.broker.lose(dict.fromkeys(ALL_TOPICS, now_s - COPY_S * blow.size))

    def resubmitted(self, blow: Blow) -> None:
        self.tenants.submit_again(blow.who)

    def cancelled(self, blow: Blow) -> None:
        self.tenants.cancel(blow.who)

    def asked(self, blow: Blow) -> None:
        """Let an operator ask for something."""
        self.operators.ask(blow)

    def request_forged(self, blow: Blow) -> None:
        self.operators.forge(blow)

    def request_copied(self, blow: Blow) -> None:
        """Let somebody repeat what was asked before, as it was signed."""
        if record := self.broker.stored(REQUESTS.name, blow.size):
            self.tenants.raw(Message(record.topic, record.key, record.value, record.headers))

    def forged(self, blow: Blow) -> None:
        """Let another tenant, or another's agent, say what is not theirs to say."""
        victim, name = self._agent(blow).place, self.tenants.job(blow.who >> 4)
        node = victim.specs[0]
        if blow.who % 4 == 0:
            self.tenants.forge(blow.who, "/agents/forger", NodeDied(node=node.node, reason="gone"))
        elif blow.who % 4 == 1:
            born = NodeBorn(
                node=node.node,
                agent="forger",
                pool=node.pool,
                pool_kind=node.pool_kind,
                gpu_count=64,
                gpu_type="A100",
                gpu_memory_mib=80_000,
                speed_factor=100.0,
            )
            self.tenants.forge(blow.who, "/agents/forger", born)
        elif name is not None:
            source = "/tenants/other" if blow.who % 4 == 2 else "/agents/forger"
            self.tenants.forge(blow.who, source, JobCancelled(job=name))

    # --- clocks ---

    def clock_leaps(self, blow: Blow) -> None:
        """Set a clock far ahead or behind, and right again before that has lasted."""
        clock = self._anyone(blow).process.clock
        if clock in self._leaping:
            return  # else the second would put right what the first had made wrong, for good
        self._leaping.append(clock)
        ahead_s = clock.ahead_s
        leap_s = 10.0 ** (5.0 * blow.size)
        clock.set(ahead_s + (leap_s if blow.who % 2 else -leap_s))

        def end() -> None:
            clock.set(ahead_s)
            self._leaping.remove(clock)

        self.later(self.world.now_s() + 0.9 * SETTLE_S * blow.size, end)

    def clock_off(self, blow: Blow) -> None:
        """Set a clock a little wrong, for good, and let it go too fast or too slow."""
        clock = self._anyone(blow).process.clock
        share = 2.0 * blow.size - 1.0
        clock.set(CLOCKS_S * share, 1.0 + 2e-4 * share)

    # --- whom ---

    def _reset(self, agent: Agent) -> None:
        if agent.process.alive:
            agent.tear()
            agent.process.mourned = True
            self.later(self.world.now_s() + RESET_S, agent.start)

    def _agent(self, blow: Blow) -> Agent:
        return self.agents[blow.who % len(self.agents)]

    def _member(self, blow: Blow) -> Member:
        holder = self.group.holder
        if blow.who % 4 and holder is not None:  # mostly who leads
            return holder
        return self.group.members[blow.who % len(self.group.members)]

    def _anyone(self, blow: Blow) -> Agent | Member | Bridging:
        everybody: list[Agent | Member | Bridging]
        everybody = [*self.group.members, *self.agents, *self.bridges]
        return everybody[blow.who % len(everybody)]

    def _cut(self, link: Connection | MqttWire, seconds: float) -> None:
        link.cut_until_s = max(link.cut_until_s, self.world.now_s() + seconds)

    def _for_a_while(self, blow: Blow, what: str, chance: float) -> None:
        link = self._anyone(blow).link
        setattr(link, what, chance)
        self.later(self.world.now_s() + 900.0 * blow.size, lambda: setattr(link, what, 0.0))
