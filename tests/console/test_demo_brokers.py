"""`tidegate demo --bus kafka`: the same day on real brokers, read and replayed from there."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.contract import Message
from bus.kafka import KafkaBus
from bus.mqtt_client import MqttClient
from bus.options import KafkaOptions, mqtt_options
from bus.wire import Incoming
from console.main import main
from schemas.topics import JOURNAL
from tests.brokers import Brokers
from tests.console.conftest import Run
from tests.patience import PATIENCE_S, until, wait_until

ROOT = Path(__file__).resolve().parents[2]
HALF_HOUR = ("--hours", "0.5", "--seconds", "5", "--seed", "7", "--no-live")
SHORT = ("demo", "--bus", "kafka", "--hours", "0.1", "--seconds", "0", "--no-live")

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def brokers(own_brokers: Brokers) -> Iterator[Brokers]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGATE_KAFKA_BOOTSTRAP", own_brokers.kafka_bootstrap)
        patch.setenv("TIDEGATE_MQTT_URL", own_brokers.mqtt_url)
        yield own_brokers


@pytest.fixture(scope="module")
def ran(brokers: Brokers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a demo over both brokers came to."""
    path = tmp_path_factory.mktemp("ran") / "run.json"
    assert main(["demo", "--bus", "kafka", "--mqtt", *HALF_HOUR, "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_day_is_that_of_the_embedded_demo(
    tidegate: Run, tmp_path: Path, ran: dict[str, Any], brokers: Brokers
) -> None:
    assert ran.pop("log") == f"kafka://{brokers.kafka_bootstrap}/demo-1"
    assert (ran.pop("bus"), ran.pop("mqtt")) == ("kafka", True)
    embedded = tidegate.tells("demo", *HALF_HOUR, "--log", tmp_path / "run.db")
    assert ran.keys() == embedded.keys()
    for name in ("jobs_submitted", "deadlines_total", "invariant_violations", "dead_letters"):
        assert ran[name] == embedded[name]
    # What a message needs on its way may shift a decision, so that these need not be equal: of a
    # few loans, as of nine, two are more than a fifth.
    for name in ("jobs_completed", "loans_granted", "decisions", "commands", "loaned_gpu_s"):
        assert ran[name] == pytest.approx(embedded[name], rel=0.2, abs=3), name


def test_the_log_replays_the_same_from_everywhere(
    tidegate: Run, tmp_path: Path, ran: dict[str, Any], brokers: Brokers
) -> None:
    file, copy = tmp_path / "run.jsonl.zst", tmp_path / "copy.db"
    made = tidegate.does("journal", "export", "kafka:", file)
    assert "demo-1, the newest demo's" in made.err
    assert tidegate("journal", "import", file, "--log", copy).code == 0
    counts = set()
    for log in ("kafka:", "kafka:/demo-1", file, copy):
        processes = "2" if log == "kafka:" else "1"
        again = tidegate.tells("replay", log, "--jobs", processes)
        assert (again["identical"], again["state_hash"]) == (True, ran["state_hash"]), log
        assert again["decisions"] == ran["decisions"]
        counts.add(tidegate.tells("journal", "verify", log)["records"])
    assert len(counts) == 1
    # A restart from the copy folds from the snapshot, which names an offset of the journal.
    told = [tidegate("jobs", "--all", "--json", "-", "--log", log).out for log in ("kafka:", copy)]
    assert json.loads(told[0])["jobs"] == json.loads(told[1])["jobs"]


def test_the_verbs_work_on_it(
    tidegate: Run, ran: dict[str, Any], brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_LOG", "kafka:/demo-1")
    jobs = tidegate.tells("jobs", "--all")["jobs"]
    assert len(jobs) == ran["jobs_submitted"]
    for words in (("nodes",), ("loans",), ("why", "job-0003"), ("journal", "stats")):
        answer = tidegate.does(*words)
        assert answer.out
    sent = tidegate("submit", "--job", "mine", "--steps", "10", "--rate", "1=5")
    assert (sent.code, sent.out) == (0, "mine\n")
    assert "No scheduler runs" in sent.err
    assert f"Submitted to kafka://{brokers.kafka_bootstrap}/demo-1." in sent.err
    running = next(job["job"] for job in jobs if job["end_s"] is None)
    assert tidegate("cancel", running).code == 0
    newest = tidegate("journal", "tail", "-n", "2", "--topic", "events").out.splitlines()
    assert "job.submitted.v1" in newest[0]
    assert f"job={running}" in newest[1]
    # They bear the time of the log, not of this machine.
    assert newest[0].startswith("2026-01-05 00:30")


async def test_nothing_is_left_on_mqtt(ran: dict[str, Any], brokers: Brokers) -> None:
    heard: list[Incoming] = []
    connected = asyncio.Event()
    client = MqttClient(
        mqtt_options(f"{brokers.mqtt_url}/demo-1"),
        "looking",
        subscriptions=["#"],
        hear=heard.append,
        opened=lambda _: connected.set(),
        clock=SystemClock(),
    )
    client.start()
    await until(connected.is_set)
    await asyncio.sleep(0.3)
    await client.close()
    assert heard == []


def test_of_older_demos_the_newest_is_kept(tidegate: Run, ran: dict[str, Any]) -> None:
    second = tidegate.does(*SHORT)
    assert "the last one is kept as kafka:/demo-1" in second.err
    assert "tidegate replay kafka://" in second.out
    assert tidegate("journal", "verify", "kafka:/demo-1").code == 0
    assert tidegate.tells(*SHORT, "--log", "kafka:/mine")["log"].endswith("/mine")
    assert tidegate(*SHORT).code == 0
    said = tidegate.refuses("jobs", "--log", "kafka:/demo-1")
    assert "no journal there; there are demo-2, demo-3, mine" in said
    assert "holds a log already" in tidegate.refuses(*SHORT, "--log", "kafka:/mine")


@pytest.mark.slow
def test_brokers_that_die_only_delay_it(brokers: Brokers, tmp_path: Path, tidegate: Run) -> None:
    command = (sys.executable, "-m", "console.main", "demo", "--bus", "kafka", "--mqtt")
    log, path = "kafka:/outages", tmp_path / "run.json"
    demo = subprocess.Popen(
        [*command, *HALF_HOUR, "--log", log, "--json", str(path)], cwd=ROOT, env=os.environ
    )
    try:
        wait_until(lambda: tidegate("journal", "stats", log).code == 0 or demo.poll() is not None)
        for name in ("mosquitto", "kafka"):
            assert demo.poll() is None
            brokers.kill(name)
            time.sleep(1.0)
            brokers.up(name)
        assert demo.wait(4 * PATIENCE_S) == 0
    finally:
        demo.kill()
        demo.wait()
    found = json.loads(path.read_text())
    assert found["invariant_violations"] == found["dead_letters"] == 0
    assert found["jobs_completed"] > 40
    again = tidegate.tells("replay", found["log"])
    assert (again["identical"], again["state_hash"]) == (True, found["state_hash"])


def test_an_interrupted_demo_says_where_its_log_is(brokers: Brokers) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "console.main", "demo", "--bus", "kafka", "--hours", "20"],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("d0 "):
                break
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 0
    assert (
        "Stopped. A stopped Kafka demo cannot be resumed; what it recorded: tidegate replay kafka://"
        in rest
    )


async def _deploy(bootstrap: str) -> None:
    bus = KafkaBus.open(KafkaOptions(bootstrap, replication=1), SystemClock())
    await bus.publish(Message(JOURNAL.name, "default", b"{}"))
    await bus.close()


def test_a_deployment_goes_before_demos_and_it_is_said(brokers: Brokers, tidegate: Run) -> None:
    asyncio.run(_deploy(brokers.kafka_bootstrap))
    for verb in ("stats", "tail", "verify"):
        ran = tidegate.does("log", verb, "kafka:")
        assert ran.err == f"The log is kafka://{brokers.kafka_bootstrap}, the deployment's.\n"
