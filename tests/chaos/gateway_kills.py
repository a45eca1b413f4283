"""Two gateways over real Kafka are killed at random moments while several people ask.

    python -m tests.chaos.gateway_kills --requests 1000 --seed 1 --json out.json

Each person asks one thing after another, and asks again with the same key until she has an
answer. At the end the journal is read. Ends with 0 if each request is in it once and each answer
was true, 1 if not (the folder of the run is kept then), 2 if it was called wrongly. Kafka is that
of TIDEGATE_KAFKA_BOOTSTRAP, or one of its own.
"""

import asyncio
import contextlib
import itertools
import os
import random
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from bus.clock import SystemClock
from bus.kafka import KafkaBus
from bus.options import KAFKA_VARIABLE, KafkaOptions
from schemas.topics import JOURNAL
from tests.brokers import Brokers, fresh_namespace
from tests.builders import submitted
from tests.chaos.running import parser_of, run_in_folder
from tests.integration.conftest import AGENTS
from tests.integration.gateways import Gateways, configured
from tests.integration.processes import TRAIN, Fleet
from tests.patience import PATIENCE_S, wait_until

ASKERS = 4
#: From one gateway's start until a gateway is killed, on average.
ALIVE_S = 1.0
#: How long one answer may take. Over it, who asks goes to the other gateway.
ANSWER_S = 30.0
#: Within so long each is told; a slow machine needs many tries while gateways live for a second.
TOLD_S = 5 * PATIENCE_S
#: Between an answer and the next question, so that few questions take as long as some kills.
PAUSE_S = 0.25
#: Else each question would read those of the system, which took a sixth of the processor's time.
_CERTIFICATES = ssl.create_default_context()


@dataclass(slots=True)
class Asked:
    """What a person asked for, and what she was told."""

    verb: str
    told: dict[str, Any] = field(default_factory=dict)  #: Empty until she has an answer.
    tries: int = 0


class Pair:
    """Two gateways; one that is killed starts again, with the index that it left."""

    def __init__(self, gateways: Gateways, seed: int) -> None:
        self._gateways = gateways
        self._running = [gateways.start(index=f"index-{number}") for number in range(2)]
        self.urls = [one.url for one in self._running]
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._kill, args=(number, random.Random(f"{seed}-{number}")))
            for number in range(2)
        ]
        self.kills = 0
        self.problems: list[str] = []

    def begin(self) -> None:
        """Kill from now on."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Kill no more; both run when this returns."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _kill(self, number: int, chance: random.Random) -> None:
        while not self._over.wait(chance.expovariate(1.0 / ALIVE_S)):
            killed = self._running[number]
            killed.kill()
            self.kills += 1
            try:
                self._running[number] = self._gateways.start(killed.port, f"index-{number}")
            except AssertionError as error:
                self.problems.append(f"gateway {number} did not start again: {error}")
                return


class Asker:
    """A person who asks one thing after another, each until she knows what came of it."""

    def __init__(self, name: int, token: str, urls: Sequence[str], count: int) -> None:
        self._headers = {"Authorization": f"Bearer {token}"}
        self._urls = itertools.cycle(urls if name % 2 == 0 else urls[::-1])
        self._url = next(self._urls)
        self.asked = {
            f"{name}-{number}": Asked(verb) for number, verb in enumerate(_verbs(name, count))
        }
        self._args = dict(zip(self.asked, _arguments(name, count), strict=True))
        self.problems: list[str] = []
        self.lost = 0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for key in self.asked:
            end_s = time.monotonic() + TOLD_S
            while not self.asked[key].told:
                if time.monotonic() > end_s:
                    self.problems.append(f"request {key}: no answer in {TOLD_S:.0f} s")
                    return
                self._ask(key)
            time.sleep(PAUSE_S)

    def _ask(self, key: str) -> None:
        asked = self.asked[key]
        asked.tries += 1
        headers = {**self._headers, "Idempotency-Key": key, "Prefer": "wait=20"}
        try:
            answer = httpx.post(
                f"{self._url}/api/v1/requests",
                json={"args": self._args[key]},
                headers=headers,
                timeout=ANSWER_S,
                verify=_CERTIFICATES,
            )
        except httpx.TransportError:
            self.lost += 1
            self._url = next(self._urls)
            time.sleep(0.2)
            return
        if answer.status_code in (200, 409):
            asked.told = {"status": answer.status_code, **answer.json()}
        elif answer.status_code in (202, 429, 503):
            time.sleep(float(answer.headers.get("Retry-After", 0.2)))
        else:
            self.problems.append(f"request {key}: {answer.status_code} {answer.text[:300]}")
            asked.told = {"status": answer.status_code}


def _arguments(name: int, count: int) -> list[dict[str, Any]]:
    """Give what one person asks for: a fourth of it is refused."""
    found: list[dict[str, Any]] = []
    for number in range(count):
        job = f"job-{name}-{number - number % 4}"
        spec = submitted(job).model_dump(mode="json", exclude_defaults=True)
        cycle: list[dict[str, Any]] = [
            {"verb": "job.submit", "spec": spec},
            {"verb": "node.cordon", "node": "n1"},
            {"verb": "node.uncordon", "node": "n9"},  # there is none
            {"verb": "job.cancel", "job": job},
        ]
        found.append(cycle[number % 4])
    return found


def _verbs(name: int, count: int) -> list[str]:
    return [str(one["verb"]) for one in _arguments(name, count)]


async def settle(kafka: KafkaOptions, asked: dict[str, Asked]) -> tuple[dict[str, int], list[str]]:
    """Hold the answers against the journal; give figures, and what is wrong."""
    bus = KafkaBus.open(kafka, SystemClock())
    entries: dict[str, list[tuple[int, bool]]] = {key: [] for key in asked}
    try:
        async for record in bus.read(JOURNAL.name):
            entry = orjson.loads(record.value or b"")["data"]
            if entry["stimulus"]["kind"] == "Requested":
                key = entry["stimulus"]["data"]["request"]["id"]
                facts = [kind for kind, _ in entry["decision"]["facts"]]
                entries.setdefault(key, []).append((entry["number"], "RequestDone" in facts))
    finally:
        await bus.close()
    wrong = []
    for key, found in entries.items():
        if key not in asked:
            wrong.append(f"request {key} is in the journal, and nobody asked for it")
        elif len(found) != 1:
            wrong.append(f"request {key} is in the journal {len(found)} times")
        elif told := asked[key].told:
            ((number, done),) = found
            said = (told["status"], told.get("entry"))
            if said != (200 if done else 409, number):
                wrong.append(f"request {key}: told {said}, the journal has {found}")
    figures = {
        "done": sum(done for found in entries.values() for _, done in found),
        "refused": sum(not done for found in entries.values() for _, done in found),
    }
    return figures, wrong


async def run(requests: int, seed: int, kafka: KafkaOptions, folder: Path) -> dict[str, Any]:
    """Ask and kill; give the figures, with `problems` among them."""
    text, tokens = configured(
        folder,
        f'bootstrap = "{kafka.bootstrap}"\nreplication = 1\nnamespace = "{kafka.namespace}"',
        robots=ASKERS,
    )
    fleet = Fleet(folder, text + AGENTS)
    gateways = Gateways(fleet, tokens[0])
    began_s = time.monotonic()
    try:
        roles = [fleet.start("scheduler"), fleet.start("cloud-agent", **TRAIN)]
        for role in roles:
            wait_until(role.is_ready, f"ready: {role.log.name}")
        pair = Pair(gateways, seed)
        askers = [
            Asker(name, token, pair.urls, requests // ASKERS) for name, token in enumerate(tokens)
        ]
        pair.begin()
        for asker in askers:
            asker.thread.start()
        await asyncio.to_thread(_join, askers)
        pair.end()
    finally:
        gateways.end()
        fleet.end()
    asked = {key: one for asker in askers for key, one in asker.asked.items()}
    figures, wrong = await settle(kafka, asked)
    return {
        "seed": seed,
        "minutes": round((time.monotonic() - began_s) / 60.0, 1),
        "requests": len(asked),
        **figures,
        "gateways_killed": pair.kills,
        "answers_lost": sum(asker.lost for asker in askers),
        "asked_again": sum(one.tries > 1 for one in asked.values()),
        "problems": [*pair.problems, *(said for one in askers for said in one.problems), *wrong],
    }


def _join(askers: Sequence[Asker]) -> None:
    for asker in askers:
        asker.thread.join()


def show(figures: dict[str, Any]) -> str:
    """Write the figures as lines."""
    lines = [f"{name:24}{value}" for name, value in figures.items() if name != "problems"]
    return "\n".join([*lines, *(f"PROBLEM: {text}" for text in figures["problems"])])


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("gateway_kills", __doc__)
    parser.add_argument("--requests", type=int, default=1000, help="in all; default: 1000")
    options = parser.parse_args(arguments)
    if options.requests < ASKERS:
        parser.error(f"--requests: at least {ASKERS}, one for each who asks")

    async def work(folder: Path) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            bootstrap = os.environ.get(KAFKA_VARIABLE)
            if not bootstrap:
                brokers = Brokers.start(folder / "brokers", "kafka")
                stack.callback(brokers.down)
                bootstrap = brokers.kafka_bootstrap
            kafka = KafkaOptions(bootstrap, namespace=fresh_namespace(), replication=1)
            return await run(options.requests, options.seed, kafka, folder)

    return run_in_folder("gateway-kills", options, work, show)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
