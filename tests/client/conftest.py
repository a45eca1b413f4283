"""Clients of a gateway on a demo's log, which they reach without a socket."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.demo_log import _demo, log
from tests.gateway.conftest import PORT, TOKEN, Served, serving, tidegate
from tidegate_client import AsyncClient, Client

URL = f"http://127.0.0.1:{PORT}"
__all__ = ["_demo", "log", "serving", "tidegate"]


class Carried(httpx.BaseTransport):
    """Carries what a thread asks to the application in the loop."""

    def __init__(self, served: Served, loop: asyncio.AbstractEventLoop) -> None:
        self.inner, self.loop = httpx.ASGITransport(served.app), loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def ask() -> httpx.Response:
            answer = await self.inner.handle_async_request(request)
            body = await answer.aread()
            return httpx.Response(answer.status_code, headers=answer.headers, content=body)

        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result()


def waiting(served: Served) -> Client:
    """Give a client for a thread of its own."""
    carried = Carried(served, asyncio.get_running_loop())
    return Client(URL, TOKEN, transport=carried)


def running(served: Served) -> AsyncClient:
    return AsyncClient(URL, TOKEN, transport=httpx.ASGITransport(served.app))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No context or gateway of whoever runs the tests."""
    for name in ("TIDEGATE_CONTEXT", "TIDEGATE_TOKEN", "TIDEGATE_LOG", "TIDEGATE_CELL"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in (("XDG_CONFIG_HOME", "config"), ("XDG_RUNTIME_DIR", "runtime")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    return tmp_path


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it paused each time; nobody waits for it."""
    found: list[float] = []
    monkeypatch.setattr("tidegate_client.client.time.sleep", found.append)
    return found
