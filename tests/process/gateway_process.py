"""`tidegate serve` as a process, for tests that ask it."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.patience import PATIENCE_S
from tests.ports import free_port

_numbers = itertools.count()


class Process:
    """A gateway of its own."""

    def __init__(
        self, log: Path | str, runtime: Path, *arguments: str, port: int | None = None
    ) -> None:
        runtime.mkdir(exist_ok=True)
        self.runtime = runtime / "tidegate"
        self.port = port or free_port()
        self.said = runtime / f"said-{next(_numbers)}.log"
        # Into a file: a pipe that nobody reads is full one day, and holds up who writes.
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "console.main", "serve", str(log), "--no-browser",
                 "--port", str(self.port), *arguments],
                stdout=subprocess.PIPE, stderr=said, text=True,
                env=os.environ
                | {"XDG_RUNTIME_DIR": str(runtime), "XDG_CACHE_HOME": str(runtime / "cache")},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.token = parse_qs(urlsplit(self.address).query).get("token", [""])[0]
        self.url = f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=PATIENCE_S,
        )

    def ready(self) -> None:
        """Wait until it answers of its log."""
        deadline_s = time.monotonic() + PATIENCE_S
        with self.client() as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    health = client.get("/health").json()
                    if health["status"] == "ok" and not health["cells"][0]["index"]["building"]:
                        return
                assert self.process.poll() is None, self.said.read_text()[-3000:]
                assert time.monotonic() < deadline_s, self.said.read_text()[-3000:]
                time.sleep(0.1)

    def kill(self) -> None:
        """Be gone when this returns; it may be gone already."""
        self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, self.said.read_text()


@pytest.fixture
def gateway(log: Path, tmp_path: Path) -> Iterator[Process]:
    """Serve a copy of a demo's log."""
    found = Process(log, tmp_path / "run")
    found.ready()
    yield found
    found.kill()
