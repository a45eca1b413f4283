"""All roles as processes over real Kafka and Mosquitto."""

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bus.clock import SystemClock
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from bus.signing import Signer
from scheduler.core.canonical import state_hash
from scheduler.journal import Recovered, recover
from schemas.journal import decode_entry
from schemas.parse import Rejected
from schemas.topics import COMMANDS, JOURNAL
from services.metrics import METRICS
from tests.brokers import Brokers
from tests.integration.processes import Fleet, Service, job, ready, submit, until
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.slow]
CELLS = ("default", "west", "east")


def open_cell(bootstrap: str, namespace: str, cell: str = "default") -> KafkaBus:
    options = KafkaOptions(bootstrap, namespace=namespace, cells=CELLS, replication=1)
    return KafkaBus.open(options, SystemClock(), cell)


def make_key(folder: Path) -> tuple[Path, str]:
    """A private key in a file, and the public one as agents are given it."""
    file = folder / "key.pem"
    key = Ed25519PrivateKey.generate()
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file, Signer.from_file("k1", file).public()


def completed(service: Service, cell: str = "default") -> float:
    return service.metrics().get("tidegate_jobs", {}).get((cell, "completed"), 0)


async def test_jobs_run_in_the_cloud_and_at_the_edge(
    broker_fleet: Fleet, kafka_bootstrap: str, namespace: str
) -> None:
    fleet = broker_fleet
    file, public = make_key(fleet.folder)
    trusted = {
        "agent__runs": "simulated",
        "agent__trusted_keys__k1": public,
        "agent__effects_file": "effects.jsonl",
    }
    bridge = fleet.start("bridge")
    scheduler = fleet.start("scheduler", scheduler__signing_key_file=file)
    await ready(bridge, scheduler)
    cloud = fleet.start(
        "cloud-agent",
        agent__name="train",
        agent__pool="train",
        agent__pool_kind="training",
        agent__nodes="n0",
        agent__gpus_per_node=1,
        **trusted,
    )
    edge = fleet.start(
        "edge-agent",
        agent__name="edge-1",
        agent__simulated__drain_s=0.1,
        **{**trusted, "agent__effects_file": "edge.jsonl"},
    )
    await ready(cloud, edge)
    bus = open_cell(kafka_bootstrap, namespace)
    await submit(bus, job("big", steps=2000))
    await until(lambda: "start" in (fleet.folder / "effects.jsonl").read_text(), "big runs")
    await submit(bus, job("small"))
    await until(lambda: completed(scheduler) == 1, "small is done on the lent edge server")
    effects = [
        json.loads(line)["effect"] for line in (fleet.folder / "edge.jsonl").read_text().split()
    ]
    assert effects[:4] == ["began", "drain", "lent", "start"]
    commands = [record async for record in bus.read(COMMANDS.name)]
    assert {record.headers["kid"] for record in commands} == {"k1"}
    figures = bridge.metrics()
    assert figures["tidegate_bridge_forwarded_total"]["up",] > 3
    assert figures["tidegate_bridge_forwarded_total"]["down",] >= 1
    assert figures["tidegate_link_up"][()] == edge.metrics()["tidegate_link_up"][()] == 1
    for service, role in ((bridge, "bridge"), (edge, "edge-agent")):
        text = service.get("/metrics")[1]
        page = {line.split()[2] for line in text.splitlines() if "HELP tidegate_" in line}
        assert page == {name for name, what in METRICS.items() if role in what.roles}
    assert [one.stop() for one in (edge, cloud, scheduler, bridge)] == [0, 0, 0, 0]
    await bus.close()


async def journal_of(bus: KafkaBus) -> Recovered:
    """Read the whole journal: numbers without gap or repetition, each following the last."""
    numbers = []
    async for record in bus.read(JOURNAL.name):
        entry = decode_entry(record.value or b"")
        assert not isinstance(entry, Rejected)
        numbers.append(entry.number)
    assert numbers == list(range(len(numbers)))
    found = await recover(bus, bus.cell)
    assert found.state.number == len(numbers)
    return found


async def test_a_leader_that_sleeps_is_replaced_and_fenced(
    broker_fleet: Fleet, kafka_bootstrap: str, namespace: str
) -> None:
    fleet = broker_fleet
    one = fleet.start("scheduler", scheduler__name="one")
    await until(lambda: len(one.readiness()["leads"]) == 3, "one leads all cells")
    two = fleet.start("scheduler", scheduler__name="two")
    await until(lambda: two.readiness()["leads"], "two leads a cell")
    await until(lambda: len(one.readiness()["leads"]) == 2, "one keeps the others")
    (cell,) = two.readiness()["leads"]
    others = [name for name in CELLS if name != cell]
    buses = {name: open_cell(kafka_bootstrap, namespace, name) for name in CELLS}
    for name, bus in buses.items():
        await submit(bus, job(f"{name}-1"), cell=name)
    jobs = dict.fromkeys(others, one) | {cell: two}
    for name, leader in jobs.items():
        await until(partial(knows, leader, name, 1), f"{name} knows its job")

    one.signal(signal.SIGSTOP)
    for name in others:
        await submit(buses[name], job(f"{name}-2"), cell=name)
    await until(lambda: len(two.readiness()["leads"]) == 3, "two leads all cells")
    for name in others:
        await until(partial(knows, two, name, 2), f"two decides for {name}")
    one.signal(signal.SIGCONT)
    await until(
        lambda: (
            any("fenced" in line["event"] for line in one.lines())
            or set(one.readiness()["leads"]).isdisjoint(two.readiness()["leads"])
        ),
        "the one that slept gives way",
    )
    await until(
        lambda: sorted(one.readiness()["leads"] + two.readiness()["leads"]) == sorted(CELLS),
        "each cell has one leader",
    )
    for name in CELLS:
        await submit(buses[name], job(f"{name}-3"), cell=name)
    await until(
        lambda: sum(queued(each, name) for each in (one, two) for name in CELLS) == 8,
        "all jobs are known once",
    )
    assert [one.stop(), two.stop()] == [0, 0]
    for name, bus in buses.items():
        found = await journal_of(bus)
        assert len(found.state.jobs) == (2 if name == cell else 3)
        assert found.state.leader.epoch >= 1
        assert state_hash(found.state)
        await bus.close()


def queued(service: Service, cell: str) -> float:
    return service.metrics().get("tidegate_jobs", {}).get((cell, "queued"), 0)


def reasons_name(service: Service, what: str) -> bool:
    return any(what in reason for reason in service.readiness()["reasons"])


def knows(service: Service, cell: str, jobs: int) -> bool:
    return queued(service, cell) == jobs


async def test_no_secret_is_said_when_the_broker_refuses_it(broker_fleet: Fleet) -> None:
    fleet = broker_fleet
    login = 'sasl = "PLAIN"\nusername = "somebody"\npassword = "hush"\n[mqtt]'
    fleet.config = fleet.config.replace("[mqtt]", login, 1) + '[log]\nlevel = "debug"\n'
    scheduler = fleet.start("scheduler")
    await until(lambda: len(scheduler.readiness()["reasons"]) == 2, "it says what is wrong")
    assert scheduler.get("/readyz")[0] == 503
    said = scheduler.get("/readyz")[1] + scheduler.get("/metrics")[1]
    assert scheduler.stop() == 0
    assert "hush" not in said + scheduler.log.read_text()


async def test_services_outlive_the_brokers(
    tmp_path: Path, fleets: Callable[[Path, str], Fleet], own_brokers: Brokers
) -> None:
    kafka, mqtt = own_brokers.kafka_bootstrap, own_brokers.mqtt_url
    fleet = fleets(
        tmp_path, f'[kafka]\nbootstrap = "{kafka}"\nreplication = 1\n[mqtt]\nurl = "{mqtt}"\n'
    )
    bridge, scheduler = fleet.start("bridge"), fleet.start("scheduler")
    await ready(bridge, scheduler)
    edge = fleet.start("edge-agent", agent__name="edge-1", agent__runs="simulated")
    await ready(edge)
    cloud = fleet.start(
        "cloud-agent",
        agent__name="train",
        agent__pool="train",
        agent__pool_kind="training",
        agent__nodes="n0",
        agent__gpus_per_node=1,
        agent__runs="simulated",
        agent__schedule__telemetry_every_s=60,  # it has nothing to say when Kafka goes
    )
    await ready(cloud)
    own_brokers.kill("kafka")
    for service in (bridge, cloud):
        named = partial(reasons_name, service, f"Kafka at {kafka}")
        await until(named, "its reasons name Kafka")
    for service in (bridge, scheduler, cloud):
        await until(service.is_unready, "it says that Kafka is away")
        assert service.get("/healthz")[0] == 200, "there is nothing that a restart would mend"
    assert edge.is_ready(), "it works on"
    own_brokers.up("kafka")
    await ready(bridge, scheduler, cloud)
    own_brokers.kill("kafka")
    own_brokers.kill("mosquitto")
    await until(edge.is_unready, "its link is down")
    services = (edge, scheduler, bridge, cloud)
    for service in services:
        service.signal(signal.SIGTERM)
    assert [one.process.wait(PATIENCE_S) for one in services] == [0, 0, 0, 0]
    assert all(len(one.lines()) < 60 for one in services), "nobody floods the log"
    said = [line for one in services for line in one.lines()]
    assert not [line for line in said if line["logger"].startswith("aiokafka")], "buried"
