"""Real agents of the simulated system: their files outlive them, and so do their workers.

What an agent did to its GPUs is witnessed from outside, by the world's clock.
"""

import asyncio
import contextlib
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bus.clock import PacedClock
from bus.mqtt import MqttLink
from runtime.build import Options, build
from runtime.core import NodeSpec
from runtime.effects import EffectsFile
from runtime.executor import Machine
from runtime.service import AgentService, Schedule
from runtime.simulated import Physics, SimulatedExecutor
from runtime.simulated_owner import SimulatedMeter, SimulatedOwner, simulated_machine
from runtime.store import StoreError
from scheduler.node_admission import PoolRule
from schemas.journal import ENTRY_VERSION
from schemas.topics import JOURNAL
from tests.chaos.owners import Effect
from tests.whole.bridges import Told
from tests.whole.broker import Broker, Connection
from tests.whole.disks import Disk
from tests.whole.mosquitto import Mosquitto
from tests.whole.process import Process
from tests.whole.releases import NEWEST, RELEASE
from tests.whole.supervisors import Supervisors
from tests.whole.wires import MqttWire

#: After a storm workers are so many times as fast: half of a run was to wait for them.
HASTE = 6.0
#: What is put before a pool's name to name another of the same kind, which has no node at first.
SPARE = "spare-"
#: Within so many turns of the loop what is said has come to Kafka and back, or waits for time.
TURNS = 300


@dataclass(frozen=True, slots=True)
class Place:
    """What an agent looks after."""

    agent: str
    specs: tuple[NodeSpec, ...]
    options: Options = field(
        default_factory=lambda: Options(schedule=Schedule(retry_s=5.0, drain_s=2.0))
    )


def places() -> list[Place]:
    """Give the machines of the simulated system: two clusters, an owner's, two edge servers."""

    def specs(
        pool: str, kind: Any, gpus: dict[str, int], speed: float = 1.0
    ) -> tuple[NodeSpec, ...]:
        return tuple(
            NodeSpec(node, pool, kind, count, "A100", 80_000, speed) for node, count in gpus.items()
        )

    return [
        Place("a-t0", specs("train", "training", {"t0": 4})),
        Place("a-t1", specs("train", "training", {"t1": 2, "t2": 2})),
        Place("a-infer", specs("infer", "inference", {"i0": 2, "i1": 4})),
        Place("a-e0", specs("edge", "edge", {"a-e0": 2}, 0.5)),
        Place("a-e1", specs("edge", "edge", {"a-e1": 2}, 0.5)),
    ]


def listed() -> tuple[PoolRule, ...]:
    """List who may join, as an operator does: over Kafka a scheduler does not start without that.

    Else a log that was restored from before a node's birth gives the node to whoever claims it
    first, and to nobody else while that one is remembered.
    """
    agents: dict[str, list[str]] = defaultdict(list)
    specs: dict[str, list[NodeSpec]] = defaultdict(list)
    for place in places():
        for pool in (place.specs[0].pool, SPARE + place.specs[0].pool):
            agents[pool].append(place.agent)
            specs[pool] += place.specs
    return tuple(
        PoolRule(
            pool,
            nodes[0].pool_kind,
            max(node.gpu_count for node in nodes),
            nodes[0].speed_factor,
            tuple(agents[pool]),
        )
        for pool, nodes in specs.items()
    )


class Witness(EffectsFile):
    """Takes down what an agent does to its GPUs, and when it truly was."""

    def __init__(
        self, agent: str, world: PacedClock, effects: list[Effect], journal: Callable[[], int]
    ) -> None:
        self._name, self._world, self._effects = agent, world, effects
        self._journal = journal

    def write(self, effect: str, at_s: float, **fields: Any) -> None:
        now_s = self._world.now_s()
        if "job" in fields:
            place = fields["job"], fields["epoch"], fields["node"], tuple(fields["gpus"])
            self._effects.append(Effect(self._name, effect, now_s, *place, self._journal()))
        elif effect == "began":
            self._effects.append(Effect(self._name, effect, now_s))


class Agent:
    """One machine, and the agents that look after it one after another."""

    def __init__(
        self,
        place: Place,
        broker: Broker,
        mosquitto: Mosquitto,
        world: PacedClock,
        folder: Path,
        rng: np.random.Generator,
        tide_s: float,
    ) -> None:
        self.place, self.name = place, place.agent
        self._begin_s, self._tide_s = world.now_s(), tide_s
        self.effects: list[Effect] = []
        self.deaths: list[float] = []
        self.ends: list[str] = []  #: Why agents ended by themselves.
        self.confirmed: list[bytes] = []  #: What an edge agent was told is stored.
        self._broker, self._world, self._folder, self._rng = broker, world, folder, rng
        self._mosquitto = mosquitto
        self.disk = Disk(world, rng)
        #: Connections of all lives; held, or Python would end them.
        self.lives: list[object] = []
        self._lives, self._release = 0, ENTRY_VERSION
        self.full_until_s = 0.0
        self.process = Process(self.name, world)
        self.processes = [self.process]
        self._plug(self.process)
        self.service: AgentService | None = None
        self.supervisors: Supervisors | None = None
        self._owner: SimulatedOwner | None = None
        self.task: asyncio.Task[None] | None = None

    def _plug(self, process: Process) -> None:
        """Connect a life: an edge server over MQTT, others to Kafka."""
        self.link: MqttWire | Connection
        self.bus: Told | Connection
        if self.over_mqtt:
            self.link = MqttWire(self._mosquitto, process, self._rng, self.name)
            link = MqttLink(self.link.make, process.clock, self.name)
            self.bus = Told(link, self.confirmed)
        else:
            self.bus = self.link = Connection(self._broker, process, self._rng)

    @property
    def over_mqtt(self) -> bool:
        """Whether it is an edge server's."""
        return self.place.specs[0].pool_kind == "edge"

    @property
    def hindered(self) -> bool:
        """Whether something is in its way."""
        now_s, link = self._world.now_s(), self.link
        late = now_s < max(self.process.paused_until_s, self.full_until_s)
        chances = (link.slow, link.lost_answers, link.deadly)
        return (
            late
            or self.disk.fails
            or link.cut
            or any(chances)
            or not self.up
            or self.process.leaving
        )

    @property
    def lends(self) -> bool:
        """Whether its GPUs have an owner who needs them at times."""
        return self.place.specs[0].pool_kind != "training"

    def needed_since_s(self, now_s: float) -> float:
        """Say since when the owner needs its GPUs; inf if it does not, by the machine's clock."""
        after_s = (now_s - self._begin_s) % (2 * self._tide_s) - self._tide_s
        return now_s - after_s if after_s > 0 else float("inf")

    @property
    def lent(self) -> list[str]:
        """The nodes that its owner has lent and not got back."""
        nodes = {} if self._owner is None else self._owner._nodes
        return [name for name, node in nodes.items() if node.phase == "lent"]

    @property
    def idle(self) -> bool:
        """Whether it runs, has nothing left to say, and its machine runs nobody's work."""
        held = () if self.supervisors is None else self.supervisors.running()
        return self.up and self.service is not None and not (self.service.spool_length or len(held))

    @property
    def up(self) -> bool:
        """Whether an agent runs."""
        return self.service is not None and self.process.alive

    @property
    def file(self) -> Path:
        """The state file of the present life."""
        return self._folder / f"{self.name}-{self._lives}.db"

    def start(self) -> None:
        """Begin a life with the file as the last one left it."""
        before = self.file
        self._lives += 1
        for end in ("", "-wal"):
            # The dead hold their file locked until the world ends: a copy is what the disk has.
            source = Path(f"{before}{end}")
            if source.exists():
                shutil.copyfile(source, f"{self.file}{end}")
        process = self.process = Process(self.name, self._world)
        self.processes.append(process)
        process.clock.begin()
        process.died = lambda _: self._ceased()
        self._plug(process)
        self.lives.append((self.link, self.bus))
        self.service = None
        self.task = asyncio.create_task(self._run(process), name=f"{self.name} {self._lives}")

    async def _run(self, process: Process) -> None:
        RELEASE.set(self._release)
        try:
            with patch("sqlite3.connect", self.disk.connect):
                service = build(
                    self.name,
                    self.place.specs,
                    self.place.options,
                    self.bus,
                    process.clock,
                    self.file,
                    self._machine,
                )
        except StoreError as error:
            self._ended(process, f"{error}")
            return
        self.service, bus = service, self.bus
        if self._world.now_s() < self.full_until_s:
            self._fill()
        try:
            await service.run()
            reason = "in good order"
        except StoreError as error:
            reason = f"{error}"
        except Exception as error:  # noqa: BLE001  a seed that finds a bug must be named
            bug = {"message": f"{self.name} ended by a bug", "exception": error}
            asyncio.get_running_loop().call_exception_handler(bug)
            reason = f"{error!r}"
        await bus.close()
        self._ended(process, reason)

    def _ended(self, process: Process, reason: str) -> None:
        if process.alive:
            self.ends.append(reason)
            process.kill()
            self._ceased()

    def _ceased(self) -> None:
        self.deaths.append(self._world.now_s())

    def _machine(self, specs: Sequence[NodeSpec], now_s: float) -> Machine:
        physics = Physics(rate_noise=0.0, failures_per_gpu_hour=0.0)
        gpus, begin_s = sum(spec.gpu_count for spec in specs), self._world.now_s()

        def demand(at_s: float) -> float:
            return gpus * float(self.needed_since_s(at_s) <= at_s)

        machine = simulated_machine(
            specs,
            min(now_s, begin_s),
            demand=demand if self.lends else None,
            physics=physics,
        )
        if self.supervisors is None:
            assert isinstance(machine.executor, SimulatedExecutor)
            ever = self._broker.ever
            witness = Witness(self.name, self._world, self.effects, lambda: len(ever[JOURNAL.name]))
            self.supervisors = Supervisors(machine.executor, witness, self._world)
        assert machine.owner is None or isinstance(machine.owner, SimulatedOwner)
        self._owner = machine.owner
        meter = SimulatedMeter(specs, self.supervisors.workers)
        return Machine(self.supervisors, meter, machine.owner)

    def look(self) -> None:
        """Let supervisors do what they do by themselves."""
        if self.supervisors is not None:
            self.supervisors.look(self.process.clock.now_s(), alone=not self.process.alive)

    # --- what befalls it ---

    def crash(self) -> None:
        """End at once."""
        if self.process.alive:
            self.process.kill()
            self._ceased()

    def upgrade(self) -> None:
        """End; who starts again is the next release."""
        self._release = NEWEST
        self.crash()

    def move(self) -> None:
        """End; who starts again has its nodes in another pool, or in the first one again."""
        pool = self.place.specs[0].pool
        other = pool.removeprefix(SPARE) if pool.startswith(SPARE) else SPARE + pool
        specs = tuple(replace(spec, pool=other) for spec in self.place.specs)
        self.place = replace(self.place, specs=specs)
        self.crash()

    def leave(self, farewell: str | None) -> None:
        """End in good order, for a while or for good."""
        if self.up and self.service is not None:
            if farewell is not None:
                self._lose_power()  # its nodes go, and all that is on them
            self.process.leaving = True
            self.stopping = asyncio.create_task(self.service.stop(farewell))
            if isinstance(self.bus, Told):
                self.hurrying = asyncio.create_task(self._hurry(self.bus, self.process))

    async def _hurry(self, bus: Told, process: Process) -> None:
        """Let publish what can be at this moment: time stands still for who drains."""
        while process.alive:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            bus.hurry()

    def fill(self, seconds: float) -> None:
        """Let the disk be full for so long."""
        self.full_until_s = self._world.now_s() + seconds
        if self.up:
            self._fill()

    def _fill(self) -> None:
        store = getattr(self.service, "_store", None)
        if store is not None:
            with contextlib.suppress(sqlite3.Error):
                store._connection.execute("PRAGMA max_page_count = 1")

    def fail_store(self, fails: bool) -> None:
        """Let most checkpoints fail from now on, or none."""
        if self.supervisors is not None:
            workers = self.supervisors.workers
            share = 0.8 if fails else 0.0
            workers._physics = replace(workers._physics, checkpoint_failure_share=share)

    def hasten(self) -> None:
        """Let its workers be faster from now on, so that what is left ends sooner."""
        if self.supervisors is not None:
            workers, now_s = self.supervisors.workers, self.process.clock.now_s()
            workers._speeds = {node: HASTE * speed for node, speed in workers._speeds.items()}
            for gang in workers._gangs.values():
                gang.pause(now_s, now_s)
                gang.rate *= HASTE
            workers._look_ahead()

    def fail_worker(self, error: str = "chance") -> None:
        """Let a worker die."""
        if self.up and self.service is not None and self.supervisors is not None:
            gangs = sorted(self.service.core.gangs)
            if gangs:
                self.supervisors.workers.fail(gangs[0], error, self.service._clock.now_s())

    def tear(self) -> None:
        """Lose power: what was not synced is gone, and half a write is at the end of the file."""
        self.crash()
        self._lose_power()
        self.disk.lose_power(Path(f"{self.file}-wal"))

    def _lose_power(self) -> None:
        if self.supervisors is not None:
            self.supervisors.lose_power(self.process.clock.now_s())
