"""`tidegate doctor` at a real Kafka, for a cluster's agent."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from bus.clock import SystemClock
from bus.contract import Message
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from console.main import main
from schemas.codec import cell_state, encode
from schemas.journal import CellState
from schemas.topics import CELLS

pytestmark = pytest.mark.broker


def doctor(folder: Path, bootstrap: str, namespace: str) -> tuple[int, list[dict[str, Any]]]:
    """Give the exit code, and what is found of the bus and of clocks on the other side."""
    answer = folder / "answer.json"
    flags = [f"kafka.bootstrap={bootstrap}", f"kafka.namespace={namespace}", "agent.name=train"]
    flags += ["kafka.replication=1"]
    flags += ["agent.nodes=n1", "agent.gpus_per_node=8", f"agent.state_file={folder}/train.db"]
    flags += ["agent.runs=simulated"]
    code = main(["doctor", *(f"--set={flag}" for flag in flags), "--json", str(answer)])
    found = json.loads(answer.read_text())["findings"]
    heard = [one for one in found if "scheduler" in one["found"]]
    return code, [*(one for one in found if one["check"] == "bus"), *heard]


async def say(bootstrap: str, namespace: str, at_s: float) -> None:
    """Say that a scheduler leads, as of then."""
    bus = KafkaBus.open(KafkaOptions(bootstrap, namespace=namespace, replication=1), SystemClock())
    word = CellState(online=True, leader="s", leader_epoch=1, at_s=at_s)
    written = encode(cell_state(word, cell="default"))
    await bus.publish(Message(CELLS.name, "default", written))
    await bus.close()


def test_a_cluster_that_answers_and_a_scheduler_that_is_heard(
    kafka_bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    code, found = doctor(tmp_path, kafka_bootstrap, namespace)
    assert code == 0, found
    assert [one["verdict"] for one in found] == ["ok", "ok"]
    assert "Kafka has the topics of cell default" in found[1]["found"]
    now_s = SystemClock().now_s()
    asyncio.run(say(kafka_bootstrap, namespace, now_s))
    code, found = doctor(tmp_path, kafka_bootstrap, namespace)
    assert (code, found[-1]["check"], found[-1]["verdict"]) == (0, "clock", "ok")
    asyncio.run(say(kafka_bootstrap, namespace, now_s + 3600))
    code, found = doctor(tmp_path, kafka_bootstrap, namespace)
    assert code == 1
    assert "behind the scheduler's last word" in found[-1]["found"]
    assert "timedatectl" in found[-1]["fix"]


def test_one_server_of_two_that_does_not_answer_is_named(
    kafka_bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    host = kafka_bootstrap.partition(",")[0]
    code, found = doctor(tmp_path, f"127.0.0.1:1,{host}", namespace)
    assert code == 1
    assert found[0]["found"] == "nothing listens at 127.0.0.1:1"
    assert "correct the port in kafka.bootstrap" in found[0]["fix"]
    assert found[1]["verdict"] == "ok"


async def alter(bootstrap: str, topic: str, settings: dict[str, str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])
    finally:
        await admin.close()


def test_a_topic_that_loses_what_it_should_keep_is_named_with_what_mends_it(
    kafka_bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    asyncio.run(say(kafka_bootstrap, namespace, SystemClock().now_s()))
    journal, events, cells = (
        f"{namespace}.tidegate.{name}.v1" for name in ("journal", "events", "cells")
    )
    for topic, settings in (
        (journal, {"cleanup.policy": "compact", "max.message.bytes": "1000"}),
        (events, {"retention.ms": "3600000", "message.timestamp.type": "LogAppendTime"}),
        # Of a compacted one the default of an age deletes nothing; more room than needed is good.
        (cells, {"cleanup.policy": "compact", "max.message.bytes": "99999999"}),
    ):
        asyncio.run(alter(kafka_bootstrap, topic, settings))
    code, found = doctor(tmp_path, kafka_bootstrap, namespace)
    of_topics = {one["found"].split()[1]: one for one in found if one["found"].startswith("topic")}
    assert (code, {*of_topics}) == (1, {journal, events})
    assert {one["verdict"] for one in of_topics.values()} == {"problem"}
    lost = of_topics[journal]
    assert "cleanup.policy is compact, not delete" in lost["found"]
    assert "max.message.bytes is 1000, not " in lost["found"]
    assert f"--entity-name {journal} --add-config cleanup.policy=delete," in lost["fix"]
    assert "retention.ms is 3600000, not 1209600000" in of_topics[events]["found"]
    assert "message.timestamp.type" not in of_topics[events]["found"]
    # One that ends by age, and bears its writers' clocks, may be kept for ever by a wrong one.
    asyncio.run(alter(kafka_bootstrap, events, {"retention.ms": "9999999999"}))
    _, found = doctor(tmp_path, kafka_bootstrap, namespace)
    (safe,) = (one for one in found if one["found"].startswith(f"topic {events}"))
    assert safe["verdict"] == "warning"
    assert "message.timestamp.type is CreateTime, not LogAppendTime" in safe["found"]
