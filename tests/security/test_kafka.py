"""A Kafka with users and rules: each role can do its work, and no other's."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.contract import BusError, Message
from bus.kafka import KafkaBus
from bus.kafka_topics import unfit_settings
from bus.options import KafkaOptions, Tls
from schemas.topics import (
    ALL_TOPICS,
    CELLS,
    COMMANDS,
    EVENTS,
    JOURNAL,
    REQUESTS,
    SNAPSHOTS,
    TELEMETRY,
    Topic,
)
from tests.brokers import JARS, JAVA, need_brokers
from tests.integration.conftest import AGENTS
from tests.integration.gateways import Gateways, configured, until as holds
from tests.integration.processes import TRAIN, Fleet
from tests.patience import PATIENCE_S, wait_until
from tests.ports import answers, free_port
from tests.security.secure_broker import COMPOSE, certs, until
from tidegate_client import Client, Job

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: `tenants` is a user of earlier releases, who has no rights left.
USERS = ("admin", "scheduler", "bridge", "agents", "tenants", "gateways", "auditors")
TOPICS = (COMMANDS, JOURNAL, SNAPSHOTS, CELLS, EVENTS, TELEMETRY, REQUESTS)
WRITTEN_BY: dict[str, tuple[Topic, ...]] = {
    "scheduler": TOPICS,
    "bridge": (EVENTS, TELEMETRY),
    "agents": (EVENTS, TELEMETRY),
    "tenants": (),
    "gateways": (REQUESTS,),
    "auditors": (),
}
ACL_TOOL = "org.apache.kafka.tools.AclCommand"
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaOptions]:
    """A broker with the settings of secure.properties, and the rules of secure-acls."""
    need_brokers()
    if not (JARS / ".complete").exists():
        pytest.skip("NOT TESTED here: Kafka's jars are not there (compose/brokers fetch)")
    folder = tmp_path_factory.mktemp("kafka")
    assert certs(folder / "certs", "make").returncode == 0
    port, controller = free_port(), free_port()
    text = "".join(
        (COMPOSE / "kafka" / name).read_text()
        for name in ("broker.properties", "secure.properties")
    )
    assert text.count(":9094") == 2
    assert text.count("127.0.0.1:9093") == 2
    text = text.replace("0.0.0.0:9094", f"127.0.0.1:{port}").replace(
        "kafka:9094", f"localhost:{port}"
    )
    text = text.replace("127.0.0.1:9093", f"127.0.0.1:{controller}")
    login = f'{LOGIN} username="admin" password="pw-admin";'
    text += f"log.dirs={folder}/data\n"
    text += f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={login}\n"
    (folder / "kafka.properties").write_text(text)
    (folder / "admin.properties").write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.jaas.config={login}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={folder}/certs/ca.pem\n"
    )
    scram = [
        part
        for name in USERS
        for part in ("--add-scram", f"SCRAM-SHA-512=[name={name},password=pw-{name}]")
    ]
    format_ = [*JAVA, "kafka.tools.StorageTool", "format", "-t", "dGlkZWdhdGUtc2VjdXJlLTE"]
    done = subprocess.run(
        [*format_, "-c", "kafka.properties", *scram], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with (folder / "log").open("wb") as log:
        broker = subprocess.Popen(
            [*JAVA, "kafka.Kafka", "kafka.properties"], cwd=folder, stdout=log, stderr=log
        )
    try:
        assert until(lambda: answers(port) or broker.poll() is not None, 2 * PATIENCE_S)
        assert broker.poll() is None, (folder / "log").read_text()[-3000:]
        tool = folder / "acls"
        tool.write_text(f'#!/bin/sh\nexec {shlex.join([*JAVA, ACL_TOOL])} "$@"\n')
        tool.chmod(0o700)
        at = ["--bootstrap-server", f"localhost:{port}", "--command-config", "admin.properties"]
        right = ["--allow-principal", "User:tenants", "--operation", "Write"]
        given = [str(tool), *at, "--add", "--force", *right, "--topic", EVENTS.name]
        done = subprocess.run(given, cwd=folder, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        done = subprocess.run(
            [COMPOSE / "kafka" / "secure-acls", f"localhost:{port}", folder / "admin.properties"],
            env={**os.environ, "KAFKA_ACLS": str(tool)},
            cwd=folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield KafkaOptions(
            f"localhost:{port}",
            replication=1,
            tls=Tls(str(folder / "certs" / "ca.pem")),
            sasl="SCRAM-SHA-512",
            username="scheduler",
            password="pw-scheduler",
        )
    finally:
        broker.terminate()
        broker.wait(PATIENCE_S)


def bus_of(kafka: KafkaOptions, user: str) -> KafkaBus:
    return KafkaBus.open(replace(kafka, username=user, password=f"pw-{user}"), SystemClock())


async def test_each_role_writes_what_is_its_own_and_nothing_else(kafka: KafkaOptions) -> None:
    for user, own in WRITTEN_BY.items():
        bus = bus_of(kafka, user)
        for topic in TOPICS:
            if topic in own:
                await bus.publish(Message(topic.name, "k", user.encode()))
            else:
                with pytest.raises(BusError):
                    await bus.publish(Message(topic.name, "k", b"harm"))
        await bus.close()
    bus = bus_of(kafka, "auditors")
    for topic in TOPICS:
        stored = [record.value async for record in bus.read(topic.name)]
        assert b"harm" not in stored
        assert len(stored) == sum(topic in own for own in WRITTEN_BY.values())
    await bus.close()


async def test_only_the_scheduler_can_take_its_place(kafka: KafkaOptions) -> None:
    scheduler, agents = bus_of(kafka, "scheduler"), bus_of(kafka, "agents")
    producer = await scheduler.producer("scheduler-default")
    with pytest.raises(BusError):
        await agents.producer("scheduler-default")
    async with producer.transaction() as transaction:  # it was not fenced
        # Under a key that is no cell: a scheduler leads a cell on this broker further down.
        transaction.send(Message(JOURNAL.name, "k", b"entry"))
    for bus in (scheduler, agents):
        await bus.close()


async def test_agents_read_commands_and_not_the_record(kafka: KafkaOptions) -> None:
    scheduler, agents = bus_of(kafka, "scheduler"), bus_of(kafka, "agents")
    consumer = await agents.consumer("agent-a", [COMMANDS.name])
    await scheduler.publish(Message(COMMANDS.name, "a", b"order"))
    heard = []
    while b"order" not in heard:
        heard += [record.value for record in await consumer.poll(10, 5.0)]
    await consumer.commit()
    await consumer.close()
    with pytest.raises(BusError):
        _ = [record async for record in agents.read(JOURNAL.name)]
    for bus in (scheduler, agents):
        await bus.close()


async def test_who_may_not_see_how_topics_are_set_is_told_so(kafka: KafkaOptions) -> None:
    scheduler = bus_of(kafka, "scheduler")
    await scheduler.publish(Message(COMMANDS.name, "k", b"order"))  # so that topics are there
    await scheduler.close()
    assert await unfit_settings(kafka, ALL_TOPICS) == []
    agents = replace(kafka, username="agents", password="pw-agents")
    assert await unfit_settings(agents, ALL_TOPICS) is None


def test_a_gateway_of_a_secured_log_answers_and_asks(
    tmp_path: Path, kafka: KafkaOptions, request: pytest.FixtureRequest
) -> None:
    assert kafka.tls is not None
    text, (token,) = configured(
        tmp_path,
        f'bootstrap = "{kafka.bootstrap}"\nreplication = 1\nsasl = "{kafka.sasl}"\n'
        f'ca_file = "{kafka.tls.ca_file}"\nusername = "gateways"\npassword = "pw-gateways"',
    )
    fleet = Fleet(tmp_path, text + AGENTS)
    request.addfinalizer(fleet.end)
    users = {"scheduler": "scheduler", "cloud-agent": "agents"}
    for verb, user in users.items():
        login = {"kafka__username": user, "kafka__password": f"pw-{user}"}
        role = fleet.start(verb, **login, **(TRAIN if verb == "cloud-agent" else {}))
        wait_until(role.is_ready, f"ready: {role.log.name}")
    gateways = Gateways(fleet, token)
    request.addfinalizer(gateways.end)
    with Client(gateways.start().url, token) as client:
        holds(lambda: len(list(client.nodes())) == 2, "they joined")
        job = client.jobs.submit(Job(id="mine", steps=100_000, rates={1: 50.0}))
        job.wait("running", timeout=PATIENCE_S)
        done = client.cordon("n1", reason="the fan is loud", wait=PATIENCE_S)
        assert (done.result, client.at(entry=done.entry).overview().entry) == ("done", done.entry)


async def test_nobody_enters_without_the_password(kafka: KafkaOptions) -> None:
    bus = KafkaBus.open(replace(kafka, password="wrong"), SystemClock())
    with pytest.raises(BusError):
        await bus.publish(Message(EVENTS.name, "k", b"x"))
    await bus.close()
