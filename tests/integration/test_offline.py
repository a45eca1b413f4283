"""Edge servers that nobody hears: real workers, real brokers, and a broker that is killed."""

import asyncio
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from runtime.durable import write_json
from runtime.executors.folder import read_json
from runtime.executors.processes import workers_of
from scheduler.core.state import ClusterState
from scheduler.journal import recover
from schemas.codec import Rejected, decode_event
from schemas.events import JobSubmitted, RatePoint, WorkerStarted, WorkerStopped
from schemas.journal import decode_entry
from schemas.programs import Program
from schemas.topics import EVENTS, JOURNAL
from tests.brokers import Brokers, fresh_namespace
from tests.integration.processes import Fleet, Service, ready, submit
from tests.patience import PATIENCE_S, wait_until, whole_lines
from tests.workers import kill_all, same_weights, straight_weights

pytestmark = [pytest.mark.broker, pytest.mark.slow]
TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train_numpy.py"
STEPS = 800
#: Runs the script that is named, in which every sleep takes as long as a file says.
PACED = """
import runpy, sys, time
from pathlib import Path
pace, sleep = Path(sys.argv[1]), time.sleep
time.sleep = lambda _: sleep(float(pace.read_text()))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CONFIG = """
[http]
port = 0
[kafka]
bootstrap = "{kafka}"
replication = 1
namespace = "{namespace}"
[mqtt]
url = "{mqtt}"
namespace = "{namespace}"
[scheduler]
births = "any"
policy = "tide:loans.cool_down_s=1"
[scheduler.settings]
cycle_s = 1
cycle_gap_s = 0.1
silence_s = 4
lease_s = 20
lease_margin_s = 5
command_ttl_s = 10
resend_s = 5
backoff_s = 1
{settings}
[agent]
name = "{agent}"
gpus = 2
gpu_type = "cpu"
runs = "processes"
owner = "none"
[agent.schedule]
telemetry_every_s = 1
load_every_s = 1
progress_every_s = 1
retry_s = 1
[agent.simulated]
drain_s = 0.1
[agent.workers]
isolation = "none"
folder = "{folder}/machine"
checkpoints = "file://{folder}/store"
"""


@dataclass
class Site:
    """A scheduler with its bridge, and one edge server behind a broker that may be killed."""

    folder: Path
    brokers: Brokers
    fleet: Fleet
    agent: str
    bus: KafkaBus

    @property
    def loss(self) -> Path:
        return self.folder / "loss"

    def steps(self) -> list[int]:
        return [int(line.split()[1]) for line in whole_lines(self.loss)]

    def pace(self, step_s: float) -> None:
        draft = self.folder / "pace.draft"
        draft.write_text(str(step_s))
        draft.replace(self.folder / "pace")

    def pids(self) -> set[int]:
        return {worker.identity.pid for worker in workers_of(self.agent)}

    def runs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "machine" / "runs" / "train").iterdir())

    async def state(self) -> ClusterState:
        return (await recover(self.bus, "default")).state

    async def until_state(self, holds: Callable[[ClusterState], object], what: str) -> None:
        async def found() -> object:
            return holds(await self.state())

        await until(found, what)

    async def trains_on(self, count: int = 20) -> None:
        """Wait until so many more steps are done."""
        reached = len(self.steps())
        await asyncio.to_thread(wait_until, lambda: len(self.steps()) >= reached + count, "trains")

    async def begin(self) -> Service:
        """Start it all, and a job; give the agent when the job trains."""
        self.pace(0.15)
        central = [self.fleet.start(role) for role in ("bridge", "scheduler")]
        await ready(*central)
        edge = self.fleet.start("edge-agent")
        await ready(edge)
        told = ["--steps", STEPS, "--work-s", 1, "--save-every", 25]
        told += ["--loss", self.loss, "--out", self.folder / "weights.npz"]
        argv = [sys.executable, "-c", PACED, self.folder / "pace", TRAIN, *told]
        job = JobSubmitted(
            job="train",
            tenant="t",
            model="m",
            gpus_min=2,
            gpus_max=2,
            total_steps=STEPS,
            samples_per_step=256.0,
            rates=[RatePoint(gpus=2, samples_per_s=2000.0)],
            start_cost_s=1.0,
            program=Program(argv=[str(part) for part in argv]),
        )
        await submit(self.bus, job)
        await self.trains_on(30)
        await self.until_state(lambda s: s.jobs["train"].state == "running", "it runs")
        return edge

    async def ends(self) -> None:
        """Let the job come to its end, and compare what it learned with an undisturbed run."""
        self.pace(0.0)
        await self.until_state(lambda s: s.jobs["train"].state == "completed", "it is complete")
        straight = await asyncio.to_thread(straight_weights, self.folder, STEPS)
        assert same_weights(straight, self.folder / "weights.npz")

    async def said(self) -> list[Any]:
        decoded = [decode_event(r.value or b"") async for r in self.bus.read(EVENTS.name)]
        assert not [one for one in decoded if isinstance(one, Rejected)]
        return [one for one in decoded if getattr(one, "source", "") == f"/agents/{self.agent}"]

    async def facts(self, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
        entries = [decode_entry(r.value or b"") async for r in self.bus.read(JOURNAL.name)]
        facts = [fact for one in entries for fact in getattr(one, "decision", {})["facts"]]
        return [(name, fields) for name, fields in facts if name in kinds]


async def until(holds: Callable[[], Awaitable[object]], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < deadline_s, what
        await asyncio.sleep(0.2)


@pytest.fixture
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, own_brokers: Brokers
) -> AsyncIterator[Site]:
    own_brokers.up()
    namespace, agent = fresh_namespace(), f"edge-{secrets.token_hex(4)}"
    config = CONFIG.format(
        kafka=own_brokers.kafka_bootstrap,
        mqtt=own_brokers.mqtt_url,
        namespace=namespace,
        agent=agent,
        folder=tmp_path,
        settings=request.param,
    )
    options = KafkaOptions(own_brokers.kafka_bootstrap, namespace=namespace, replication=1)
    made = Site(
        tmp_path,
        own_brokers,
        Fleet(tmp_path, config),
        agent,
        KafkaBus.open(options, SystemClock(), "default"),
    )
    try:
        yield made
    finally:
        made.fleet.end()
        kill_all(made.agent)
        await made.bus.close()


@pytest.mark.parametrize("site", ["edge_lease_s = 3600"], indirect=True)
async def test_offline_within_its_lease_a_server_works_on_through_restarts_and_reboots(
    site: Site,
) -> None:
    edge = await site.begin()
    epoch, pids = (await site.state()).jobs["train"].epoch, site.pids()
    assert len(pids) == 3, "a supervisor and two workers"

    cut_s = time.time()
    site.brokers.kill("mosquitto")
    await site.until_state(lambda s: s.nodes[site.agent].state == "unknown", "it is not heard")
    await site.trains_on()

    edge.process.kill()
    edge.process.wait()
    edge = site.fleet.start("edge-agent")
    await asyncio.to_thread(wait_until, lambda: any(edge.lines()), "it begins")
    await site.trains_on()
    assert site.pids() == pids, "the next agent goes on with the same processes"

    edge.process.kill()
    edge.process.wait()
    kill_all(site.agent)
    run = site.folder / "machine" / "runs" / "train" / str(epoch)
    supervisor = read_json(run / "shim.json")
    assert supervisor is not None
    write_json(run / "shim.json", {**supervisor, "boot": "an earlier one"})
    reached = site.steps()
    edge = site.fleet.start("edge-agent")
    await site.trains_on()
    assert site.runs() == [str(epoch), f"{epoch}.1"], "under its epoch"
    first = site.steps()[len(reached)]
    assert reached[-1] - 50 < first <= reached[-1] + 1, "from its newest checkpoint"
    again = site.pids()
    found = await site.state()
    assert (found.nodes[site.agent].state, found.jobs["train"].epoch) == ("unknown", epoch)

    back_s = time.time()
    site.brokers.up("mosquitto")
    await site.until_state(lambda s: s.nodes[site.agent].state == "alive", "it is heard")
    await ready(edge)
    await site.until_state(lambda s: s.jobs["train"].step > first + 20, "its progress is known")
    assert site.pids() == again, "nothing was built anew"
    await site.ends()

    expected = [*range(1, reached[-1] + 1), *range(first, STEPS + 1)]
    assert site.steps() == expected, "no step is missing, none repeated beyond the checkpoint"
    events = await site.said()
    away = Counter(event.id for event in events if cut_s < event.time_s < back_s)
    assert max(away.values()) == 1, "all of it is told once"
    # What was sent just before the broker died may come twice, but as one event.
    starts = {e.id: e.data.step for e in events if isinstance(e.data, WorkerStarted)}
    assert len(starts) == 2, "the start, and the resume"
    assert await site.facts("GangStarting", "JobQueued", "NodeLost") == [
        ("GangStarting", (await site.facts("GangStarting"))[0][1])
    ], "the scheduler gave the job one allocation, and never took it for lost"
    held = (await site.state()).jobs["train"]
    assert (held.failures, held.preemptions, held.epoch) == (0, 0, epoch)


@pytest.mark.parametrize("site", [""], indirect=True)
async def test_past_its_lease_a_server_has_saved_and_left_and_the_job_goes_on_once(
    site: Site,
) -> None:
    edge = await site.begin()
    epoch = (await site.state()).jobs["train"].epoch
    site.brokers.kill("mosquitto")
    await asyncio.to_thread(wait_until, lambda: not site.pids(), "it leaves when its lease ends")
    left_s, reached = time.time(), site.steps()
    await site.until_state(lambda s: s.nodes[site.agent].state == "dead", "and is given up later")
    lost = (await site.state()).now_s
    assert left_s < lost, "first it left, then its GPUs were anybody's"

    site.brokers.up("mosquitto")
    await ready(edge)
    await site.until_state(
        lambda s: (
            s.jobs["train"].epoch > epoch and s.jobs["train"].state in ("running", "completed")
        ),
        "it goes on under another epoch",
    )
    await site.ends()
    events = await site.said()
    (left,) = [e for e in events if getattr(e.data, "reason", "") == "lease_ended"]
    assert isinstance(left.data, WorkerStopped)
    assert (left.data.epoch, left.data.step) == (epoch, reached[-1])
    steps = site.steps()
    first = steps[len(reached)]
    assert first <= reached[-1] + 1, "not a step is missing"
    assert steps == [*range(1, reached[-1] + 1), *range(first, STEPS + 1)]
    sent = Counter(event.id for event in events if event.time_s < left_s)
    # One may be under way when the broker goes, and is sent again: delivery is at least once.
    assert sum(sent.values()) <= len(sent) + 1
