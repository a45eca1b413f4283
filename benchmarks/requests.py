"""How long a request of a person takes until the gateway has read it done in the journal.

    python -m benchmarks.requests --requests 200 --json out.json

Real processes: a scheduler, an agent with simulated GPUs and a gateway, once on an SQLite file and
once on Kafka (that of TIDEGATE_KAFKA_BOOTSTRAP, or one of its own, one copy). One person cordons a
node and takes it back, four times a second, and waits for each answer. A time is from before the
question to after the answer on one kept connection: the way over HTTP is in it twice, the request's
way over the bus, the scheduler's turn, its commit, and the way of the entry back to the gateway.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np

from benchmarks.figures import parser_of, write
from bus.options import KAFKA_VARIABLE
from tests.brokers import Brokers, fresh_namespace
from tests.integration.conftest import AGENTS
from tests.integration.gateways import Gateways, configured, until
from tests.integration.processes import TRAIN, Fleet
from tests.patience import wait_until
from tests.process.gateway_process import Process

#: Between questions: a person may ask for five changes a second.
PAUSE_S = 0.25


@contextlib.contextmanager
def _on_file(folder: Path) -> Iterator[Process]:
    fleet = Fleet(folder, f'bus = "sqlite:{folder}/bus.db"\n' + AGENTS)
    with _running(fleet):
        gateway = Process(folder / "bus.db", folder / "gateway")
        gateway.ready()
        yield gateway
        gateway.kill()


@contextlib.contextmanager
def _on_kafka(folder: Path, bootstrap: str) -> Iterator[Process]:
    text, (token,) = configured(
        folder,
        f'bootstrap = "{bootstrap}"\nreplication = 1\nnamespace = "{fresh_namespace()}"',
    )
    fleet = Fleet(folder, text + AGENTS)
    gateways = Gateways(fleet, token)
    with _running(fleet):
        yield gateways.start()
        gateways.end()


@contextlib.contextmanager
def _running(fleet: Fleet) -> Iterator[None]:
    try:
        for role in (fleet.start("scheduler"), fleet.start("cloud-agent", **TRAIN)):
            wait_until(role.is_ready, f"ready: {role.log.name}")
        yield
    finally:
        fleet.end()


def measure(gateway: Process, requests: int) -> list[float]:
    """Ask; give the seconds that each took."""
    times_s = []
    with gateway.client() as client:
        until(lambda: len(_nodes(client)) == 2, "the nodes joined")
        for number in range(requests):
            verb = "node.uncordon" if number % 2 else "node.cordon"
            began_s = time.perf_counter()
            answer = client.post(
                "/requests",
                json={"args": {"verb": verb, "node": "n1"}},
                headers={"Prefer": "wait=30"},
                timeout=60.0,
            )
            times_s.append(time.perf_counter() - began_s)
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"request {number}: {answer.status_code} {answer.text}")
            time.sleep(PAUSE_S)
    return times_s


def _nodes(client: httpx.Client) -> list[object]:
    answer = client.get("/nodes")
    return answer.json()["nodes"] if answer.status_code == httpx.codes.OK else []


def run(requests: int) -> dict[str, float]:
    """Measure both buses."""
    figures: dict[str, float] = {"requests_each": requests}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        at = {name: Path(folder) / name for name in ("file", "kafka")}
        for one in at.values():
            one.mkdir()
        with _on_file(at["file"]) as gateway:
            _told(figures, "sqlite", measure(gateway, requests))
        bootstrap = os.environ.get(KAFKA_VARIABLE)
        if not bootstrap:
            brokers = Brokers.start(at["kafka"] / "brokers", "kafka")
            stack.callback(brokers.down)
            bootstrap = brokers.kafka_bootstrap
        with _on_kafka(at["kafka"], bootstrap) as gateway:
            _told(figures, "kafka", measure(gateway, requests))
    return figures


def _told(figures: dict[str, float], bus: str, times_s: list[float]) -> None:
    for percent in (50, 99):
        figures[f"{bus}_p{percent}_ms"] = round(1000 * float(np.percentile(times_s, percent)), 1)


def main() -> int:
    parser = parser_of("requests", __doc__)
    parser.add_argument("--requests", type=int, default=200, help="for each bus; default: 200")
    options = parser.parse_args()
    figures = run(options.requests)
    write(options.json or "-", **figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
