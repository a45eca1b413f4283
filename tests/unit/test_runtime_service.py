"""The agent service on the memory bus, in simulated time."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from bus.contract import Message
from cloud_agent.agent import CloudAgentConfig, build_agent as build_cloud_agent
from edge_agent.agent import EdgeAgentConfig, build_agent as build_edge_agent
from runtime.build import Options
from runtime.service import AgentService, Schedule
from runtime.simulated import Physics
from runtime.simulated_owner import simulated
from runtime.spool import SpoolLimit
from runtime.store import AgentStore
from schemas.commands import LendNode, Rebirth, RenewLease
from schemas.events import CommandAcknowledged, InferenceLoad
from schemas.topics import COMMANDS, TELEMETRY
from tests.gangs import start
from tests.heard import FlakyBus, Timed
from tests.patience import PATIENCE_S
from tests.post import ordered
from tests.whole.disks import Disk

START_S = 1_000_000.0 - 1_000_000.0 % 60
EXACT = Physics(rate_noise=0.0, failures_per_gpu_hour=0.0)


class World(Timed):
    """Agents in a folder, and what is said on their bus."""

    def __init__(self, folder: Path) -> None:
        super().__init__(START_S)
        self.folder = folder

    def cluster(self, **options: Any) -> AgentService:
        config = CloudAgentConfig(
            "a", "train", "training", ("n1", "n2"), 4, options=Options(**options)
        )
        make = simulated(physics=EXACT)
        return build_cloud_agent(config, self.bus, self.clock, self.folder / "a.db", make)

    async def trains(self, at_s: float, until_s: float, id: str | None = None) -> None:
        """Run the cluster's agent; a gang is ordered in between."""
        order = partial(self.order, "a", start(n1=[0]), id)
        await self.during(self.cluster(), (at_s, order), (until_s, nothing))

    def edge(self, demand: float = 0.0, **options: Any) -> AgentService:
        config = EdgeAgentConfig("e1", options=Options(**options))
        make = simulated(lambda _: demand, physics=EXACT)
        return build_edge_agent(config, self.bus, self.clock, self.folder / "e1.db", make)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def nothing() -> None:
    """Just let time pass until here."""


async def test_a_job_runs_from_command_to_completion(world: World) -> None:
    await world.trains(10.0, 1500.0)
    story = [
        (envelope.time_s - START_S, type(envelope.data).__name__)
        for envelope in await world.envelopes()
        if type(envelope.data).__name__ != "JobProgressed"
    ]
    (saved,) = [at for at, kind in story if kind == "CheckpointCommitted"]
    assert 600 < saved < 1000
    assert [(at, kind) for at, kind in story if kind != "CheckpointCommitted"] == [
        (0.0, "NodeBorn"),
        (0.0, "NodeBorn"),
        (10.0, "CommandAcknowledged"),
        (40.0, "WorkerStarted"),
        (1045.0, "WorkerStopped"),
    ]


async def test_sequences_are_contiguous_and_each_boot_begins_again(world: World) -> None:
    for boot in range(2):
        await world.during(world.cluster(), (130.0 * (boot + 1), nothing))
    envelopes = [*await world.envelopes(), *await world.envelopes(TELEMETRY.name)]
    boots = sorted({envelope.bootid for envelope in envelopes})
    assert len(boots) == 2
    for boot in boots:
        of_boot = [int(e.sequence) for e in envelopes if e.bootid == boot]
        assert sorted(of_boot) == list(range(len(of_boot)))
        assert len(of_boot) == 2 + 2 * 2
    assert {envelope.source for envelope in envelopes} == {"/agents/a"}


async def test_reports_are_aligned_to_the_period(world: World) -> None:
    await world.trains(45.0, 200.0)
    telemetry = await world.envelopes(TELEMETRY.name)
    assert [e.time_s - START_S for e in telemetry] == [60.0, 60.0, 120.0, 120.0, 180.0, 180.0]
    records = [record async for record in world.bus.read(TELEMETRY.name)]
    assert [record.key for record in records] == ["n1", "n2"] * 3
    progress = [e for e in await world.envelopes() if type(e.data).__name__ == "JobProgressed"]
    assert [(e.time_s - START_S, e.data.step) for e in progress] == [(120.0, 45), (180.0, 105)]


async def test_an_edge_node_is_lent_when_drained_and_reports_its_own_load(world: World) -> None:
    await world.during(
        world.edge(demand=0.25),
        (10.0, lambda: world.order("e1", LendNode(node="e1", loan="L1"))),
        (70.0, nothing),
    )
    (ack,) = [e for e in await world.envelopes() if isinstance(e.data, CommandAcknowledged)]
    assert ack.time_s - START_S == 30.0
    assert ack.causationid == "c1"
    (load,) = await world.said(InferenceLoad, TELEMETRY.name)
    assert (load.node, load.gpus_needed, load.gpus_serving) == ("e1", 1, 0)
    assert load.shortfall_gpu_s == pytest.approx(0.25 * 50)


@pytest.mark.parametrize(
    ("every_s", "said"), [(60.0, range(60, 1320, 60)), (600.0, [60, 240, 840])]
)
async def test_an_owners_load_is_said_soon_however_seldom_it_is_said(
    world: World, every_s: float, said: Sequence[int]
) -> None:
    await world.during(world.edge(schedule=Schedule(load_every_s=every_s)), (1300.0, nothing))
    loads = [
        one.time_s - START_S
        for one in await world.envelopes(TELEMETRY.name)
        if isinstance(one.data, InferenceLoad)
    ]
    assert loads == [*said]


async def test_other_agents_commands_are_not_heard(world: World) -> None:
    service = world.cluster()
    await world.during(service, (10.0, lambda: world.order("b", Rebirth())), (20.0, nothing))
    assert service.counters.commands == 0


async def test_a_restart_reports_lost_gangs_and_remembers_commands(world: World) -> None:
    await world.trains(10.0, 960.0)
    before = await world.envelopes()
    saved = [e.data.step for e in before if type(e.data).__name__ == "CheckpointCommitted"]
    await world.trains(970.0, 980.0, id="c1")
    after = (await world.envelopes())[len(before) :]
    kinds = [type(e.data).__name__ for e in after]
    assert kinds == ["NodeBorn", "NodeBorn", "WorkerFailed", "CommandAcknowledged"]
    assert after[2].data.step == saved[-1] > 0
    assert after[3].data.outcome == "done"


@pytest.mark.parametrize("seed", range(5))
async def test_a_loss_of_power_undoes_no_command(world: World, seed: int) -> None:
    """Else a copy of the command, which a new leader may send, starts the gang again."""
    disk, file = Disk(world.clock, np.random.default_rng(seed)), world.folder / "a.db"

    async def lose_power() -> None:
        for end in ("", "-wal"):  # when the agent ends in good order, all is synced
            shutil.copyfile(f"{file}{end}", f"{file}{end}.kept")
        disk.lose_power(Path(f"{file}-wal.kept"))

    with patch("sqlite3.connect", disk.connect):
        order = partial(world.order, "a", start(n1=[0]), "c1")
        await world.during(world.cluster(), (10.0, order), (20.0, lose_power))
    before = await world.envelopes()
    shutil.move(f"{file}.kept", file)
    shutil.move(f"{file}-wal.kept", f"{file}-wal")
    await world.trains(30.0, 100.0, id="c1")
    after = [type(e.data).__name__ for e in (await world.envelopes())[len(before) :]]
    assert after.count("WorkerFailed") == 1, "what it ran is gone, and it knows that"
    assert "WorkerStarted" not in after


async def test_offline_the_agent_works_on_until_its_lease_ends(world: World) -> None:
    async def lend() -> None:
        await world.order("e1", RenewLease(until_s=START_S + 400.0))
        await world.order("e1", LendNode(node="e1", loan="L1"))

    async def cut() -> None:
        world.bus.down = True

    async def mend() -> None:
        world.bus.down = False
        assert (await world.envelopes())[-1].time_s <= START_S + 70

    service = world.edge()
    await world.during(
        service,
        (0.0, lend),
        (30.0, lambda: world.order("e1", start(e1=[0]))),
        (70.0, cut),
        (900.0, mend),
        (910.0, nothing),
    )
    late = [e for e in await world.envelopes() if e.time_s > START_S + 70]
    stopped = late[-1]
    assert type(late[-2].data).__name__ == "CheckpointCommitted"
    assert type(stopped.data).__name__ == "WorkerStopped"
    assert (stopped.time_s - START_S, stopped.data.reason) == (405.0, "lease_ended")
    assert stopped.data.step > 0
    assert service.publish_failures > 10
    assert service.spool_length == 0


async def test_a_full_spool_loses_telemetry_only(world: World) -> None:
    async def cut() -> None:
        world.bus.down = True
        await super(FlakyBus, world.bus).publish(
            Message(COMMANDS.name, "a", renewal("c9", world.clock.now_s()))
        )

    async def mend() -> None:
        world.bus.down = False

    service = world.cluster(spool=SpoolLimit(messages=4))
    await world.during(service, (5.0, cut), (600.0, mend), (601.0, nothing), (610.0, nothing))
    assert service.telemetry_dropped == 2 * 10 - 3
    acks = [kind for kind in await world.kinds() if kind == "CommandAcknowledged"]
    assert len(acks) == 1
    assert len(await world.envelopes(TELEMETRY.name)) == 3


def renewal(id: str, now_s: float) -> bytes:
    return ordered(RenewLease(until_s=now_s + 1e6), 0, "a", now_s, id=id)


async def test_what_could_not_be_published_waits_for_the_next_boot(world: World) -> None:
    world.bus.down = True
    await world.during(world.cluster(), (70.0, nothing))
    world.bus.down = False
    await world.during(world.cluster(), (80.0, nothing))
    said = await world.envelopes()
    boots = sorted({e.bootid for e in said})
    order = [(boots.index(e.bootid), int(e.sequence)) for e in said]
    assert order == [(0, 0), (0, 1), (1, 0), (1, 1)]
    store = AgentStore.open(world.folder / "a.db")
    assert store.load_spool() == []
    store.close()


async def test_a_last_word_is_said_only_if_asked(world: World) -> None:
    task = asyncio.create_task((service := world.cluster()).run())
    await world.clock.run_until(START_S + 10)
    await service.stop(died="decommissioned")
    await task
    assert (await world.kinds())[-2:] == ["NodeDied", "NodeDied"]


async def test_cancelling_drains_too(world: World) -> None:
    task = asyncio.create_task(world.cluster().run())
    await world.clock.run_until(START_S + 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.kinds() == ["NodeBorn", "NodeBorn"]
    AgentStore.open(world.folder / "a.db").close()


async def test_time_goes_on_after_an_agent_stopped(world: World) -> None:
    await world.during(world.cluster(), (10.0, nothing))
    await asyncio.wait_for(world.clock.run_until(START_S + 1000), PATIENCE_S)
    assert world.clock.now_s() == START_S + 1000


async def test_the_agent_ends_when_its_bus_is_closed(world: World) -> None:
    task = asyncio.create_task(world.cluster().run())
    await world.clock.run_until(START_S + 10)
    await world.bus.close()
    await world.clock.run_until(START_S + 61)
    await asyncio.wait_for(task, PATIENCE_S)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: CloudAgentConfig("a", "p", "edge", ("n",), 4), "pool_kind"),
        (lambda: CloudAgentConfig("a", "p", "training", (), 4), "nodes"),
        (lambda: CloudAgentConfig("a", "p", "training", ("n", "n"), 4), "nodes"),
        (lambda: CloudAgentConfig("a b", "p", "training", ("n",), 4), "agent"),
        (lambda: CloudAgentConfig("a", "p", "training", ("n",), 0), "gpu_count"),
        (lambda: EdgeAgentConfig("e", speed_factor=0.0), "speed_factor"),
        (lambda: Schedule(load_every_s=0.0), "load_every_s"),
    ],
)
def test_configurations_out_of_range_name_the_field(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()


def test_lendable_nodes_need_an_owner(world: World) -> None:
    config = CloudAgentConfig("a", "serve", "inference", ("n1",), 4)
    with pytest.raises(ValueError, match="owner: nodes of an inference or edge pool need one"):
        build_cloud_agent(config, world.bus, world.clock, ":memory:", simulated())


async def test_an_older_start_begins_nothing_while_a_newer_one_is_there(world: World) -> None:
    """Both read the same orders; two gangs of one epoch would write the same checkpoints."""
    agent = world.cluster()
    own = agent.bootid
    running: list[bool] = []

    async def renew(boot: int) -> None:
        await world.order("a", RenewLease(until_s=START_S + 900.0, boot=boot))

    async def count() -> None:
        running.append(bool(agent.core.gangs))

    await world.during(
        agent,
        (10.0, partial(renew, own)),
        (20.0, partial(renew, own + 1)),
        (30.0, partial(world.order, "a", start(n1=[0]))),
        (35.0, partial(world.order, "a", LendNode(node="n1", loan="loan-1"))),
        (60.0, count),
        (70.0, partial(renew, own)),
        (80.0, partial(world.order, "a", start(n1=[0]))),
        (120.0, count),
    )
    assert (running, agent.counters.refused["newer_start"]) == ([False, True], 2)


async def test_an_older_start_is_told_that_a_newer_one_speaks_and_gets_no_lease(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    agent = world.cluster()
    own, now_s = agent.bootid, START_S

    async def renew(boot: int | None, until_s: float) -> None:
        await world.order("a", RenewLease(until_s=now_s + until_s, boot=boot))

    async def seen(until_s: float, newer_boot: int | None) -> None:
        assert (agent.core.lease_until_s, agent.newer_boot) == (until_s, newer_boot)

    await world.during(
        agent,
        (10.0, partial(renew, own, 900.0)),
        (20.0, partial(renew, own - 1, 1200.0)),
        (30.0, partial(renew, own + 1, 1500.0)),
        (40.0, lambda: seen(now_s + 900.0, own + 1)),
        (50.0, partial(renew, own, 1800.0)),
        (60.0, lambda: seen(now_s + 1800.0, None)),
    )
    assert "a newer start of a is running" in caplog.text
    acks = [e.data for e in await world.envelopes() if isinstance(e.data, CommandAcknowledged)]
    assert [ack.outcome for ack in acks] == ["done", "done"]
