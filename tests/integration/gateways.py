"""Gateways of a fleet on Kafka, as processes, and a balancer before them."""

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from gateway.identities import new_token
from tests.integration.processes import Fleet
from tests.integration.test_signed_requests import make_key
from tests.patience import PATIENCE_S
from tests.process.gateway_process import Process

#: What the gateways' key may pass on.
VERBS = (
    "job.submit", "job.cancel", "job.hold", "job.release", "job.logs", "node.cordon",
    "node.uncordon", "node.drain", "quota.set",
)  # fmt: skip


def configured(folder: Path, kafka: str, robots: int = 1) -> tuple[str, list[str]]:
    """Give the configuration of a fleet that trusts the key `desk`, and the tokens of robots.

    Args:
        folder: Where keys go.
        kafka: The lines of `[kafka]`.
        robots: How many admins there are, `ci-0` and so on.
    """
    make_key(folder, "desk")
    made = [new_token() for _ in range(robots)]
    text = f"""
[kafka]
{kafka}
[scheduler.trusted_gateways.desk]
key = "{folder}/desk.pem"
may = {list(VERBS)}
"""
    for number, (_, digest) in enumerate(made):
        text += f"""
[[gateway.auth.robots]]
name = "ci-{number}"
role = "admin"
sha256 = "{digest}"
expires = 2099-01-01T00:00:00Z
"""
    return text, [token for token, _ in made]


class Gateways:
    """Gateways with one key and one configuration; `transport` asks each in its turn."""

    def __init__(self, fleet: Fleet, token: str) -> None:
        self.fleet, self.token = fleet, token
        self.running: list[Process] = []

    def start(self, port: int | None = None, index: str = "") -> Process:
        """Start one more; return when it answers.

        Args:
            port: Where it listens; default: a free one.
            index: The name of its index, which a gateway before it may have left; default: new.
        """
        runtime = self.fleet.folder / (index or f"gateway-{len(self.running)}")
        config = self.fleet.folder / "tidegate.toml"
        if not config.exists() or config.read_text() != self.fleet.config:
            config.write_text(self.fleet.config)
        arguments = ("--config", str(config), "--sign-key",
                     f"desk={self.fleet.folder}/desk-key.pem")  # fmt: skip
        found = Process("kafka:", runtime, *arguments, port=port)
        found.token = self.token
        self.running.append(found)
        found.ready()
        return found

    def transport(self, *processes: Process) -> httpx.BaseTransport:
        """Give what sends each request to the next of these."""
        return _Balancer([one.port for one in processes])

    def end(self) -> None:
        """Leave nothing behind."""
        for one in self.running:
            one.kill()


class _Balancer(httpx.BaseTransport):
    def __init__(self, ports: list[int]) -> None:
        self._ports = itertools.cycle(ports)
        self._to = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(port=next(self._ports))
        return self._to.handle_request(request)

    def close(self) -> None:
        self._to.close()


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds that is asked of a gateway; fail saying what does not."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(httpx.TransportError):
            if holds():
                return
        assert time.monotonic() < end_s, what
        time.sleep(0.1)
