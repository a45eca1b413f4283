"""Services as real processes, asked over HTTP like anybody would."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bus.clock import SystemClock
from bus.contract import Bus, Message
from schemas.codec import encode, event
from schemas.events import EventData, JobSubmitted, RatePoint
from schemas.topics import EVENTS
from tests.builders import submitted
from tests.patience import PATIENCE_S, wait_until, whole_lines
from tests.ports import send

#: An agent of two nodes with two GPUs each, as variables.
TRAIN = {
    "agent__name": "train",
    "agent__runs": "simulated",
    "agent__pool": "train",
    "agent__pool_kind": "training",
    "agent__nodes": "n0,n1",
    "agent__gpus_per_node": 2,
}


@dataclass
class Service:
    """A process of ours."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in whole_lines(self.log)]

    @property
    def port(self) -> int:
        started = partial(self._said, "started")
        wait_until(lambda: started() or self.process.poll() is not None, "it says where it listens")
        assert self.process.poll() is None, self.log.read_text()
        return int(started()[0]["port"])

    def _said(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == what]

    def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def readiness(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/readyz")[1])
        return found

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def is_unready(self) -> bool:
        return not self.is_ready()

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """By name of the sample, by values of its labels."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return found

    def signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            send(self.process.pid, number)

    def stop(self) -> int:
        """End it as an operator would; give its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@dataclass
class Fleet:
    """Services with one configuration, in one folder."""

    folder: Path
    config: str
    services: list[Service] = field(default_factory=list)

    def start(self, verb: str, **keys: object) -> Service:
        """Start a service; `agent__name="x"` is `--set agent.name=x`."""
        file = self.folder / "tidegate.toml"
        file.write_text(self.config)
        command = [sys.executable, "-m", "console.main", verb, "--config", str(file)]
        for name, value in keys.items():
            command += ["--set", f"{name.replace('__', '.')}={value}"]
        log = self.folder / f"{verb}-{len(self.services)}.log"
        with log.open("wb") as err:
            process = subprocess.Popen(command, cwd=self.folder, stderr=err)
        service = Service(process, log)
        self.services.append(service)
        return service

    def end(self) -> None:
        """Leave nothing behind."""
        for service in self.services:
            if service.process.poll() is None:
                service.signal(signal.SIGCONT)
                service.process.kill()
            service.process.wait()


async def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds that must not be asked on the loop; fail saying what does not."""
    await asyncio.to_thread(wait_until, holds, what)


async def ready(*services: Service) -> None:
    """Wait until all are ready."""
    for service in services:
        await until(service.is_ready, f"ready: {service.log.name}")


_numbers = iter(range(1, 1_000_000))


def job(name: str, gpus: int = 1, steps: int = 50) -> JobSubmitted:
    """A job that starts at once and takes a step in a fiftieth of a second on one GPU."""
    told = {"rates": [RatePoint(gpus=gpus, samples_per_s=50.0)], "samples_per_step": 1.0}
    costs = {"start_cost_s": 0.1, "checkpoint_cost_s": 0.1}
    made = submitted(name, gpus_min=gpus, gpus_max=gpus, total_steps=steps)
    return made.model_copy(update={**told, **costs})


async def submit(bus: Bus, *events: EventData, cell: str = "default") -> None:
    """Say something as a tenant."""
    now_s = SystemClock().now_s()
    for data in events:
        envelope = event(
            data, source="/tenants/t", sequence=next(_numbers), bootid=1, time_s=now_s, cell=cell
        )
        await bus.publish(Message(EVENTS.name, cell, encode(envelope)))
