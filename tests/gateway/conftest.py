"""A demo's log, and gateways on copies of it that tests ask without a socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp

from bus.clock import SystemClock
from bus.contract import Bus
from bus.sqlite import SqliteBus
from console.panel import plain_panel
from gateway.app import make_app
from gateway.branches import Branches
from gateway.cells import Cells
from gateway.feed import Feed
from gateway.identities import Identities
from gateway.limits import Limits
from gateway.log import ServedLog
from gateway.outbox import Outbox
from gateway.past import Past
from gateway.posting import Desk
from gateway.request_context import Gateway
from gateway.subjects import Authority, LocalToken, Role
from gateway.verifying import Verifying
from tests.console.conftest import Run
from tests.demo_log import _demo, log
from tests.gateway.issuing import BINDINGS, NOW_S, Issuer, identities
from tests.patience import PATIENCE_S

__all__ = ["_demo", "log"]
PORT = 8321
TOKEN = "the token of this test"


class Frozen(SystemClock):
    """Real time, unless a test says which it is."""

    at_s: float | None = None

    def now_s(self) -> float:
        return super().now_s() if self.at_s is None else self.at_s


class Served:
    """A gateway, and a client that it knows."""

    def __init__(self, gateway: Gateway, app: FastAPI, client: httpx.AsyncClient) -> None:
        self.gateway, self.app, self.client = gateway, app, client

    @property
    def feed(self) -> Feed:
        """Its only cell."""
        return self.gateway.cells.feed(None)

    def stranger(self, **headers: str) -> httpx.AsyncClient:
        """Give a client that it does not know."""
        return client_of(self.app, headers)

    async def get(self, path: str, status: int = 200, **parameters: Any) -> Any:
        """Ask, without regard to how often one may; give the JSON."""
        answer = await self.raw(path, **parameters)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def raw(self, path: str, **parameters: Any) -> httpx.Response:
        self.gateway.limits._reads.clear()
        headers = parameters.pop("headers", None)
        return await self.client.get(f"/api/v1/{path}", params=parameters or None, headers=headers)

    async def ask(
        self, args: Any = None, status: int = 200, wait_s: int = 30, **said: Any
    ) -> dict[str, Any]:
        """Ask for something, without regard to how often one may; give the JSON."""
        self.gateway.limits._writes.clear()
        headers = {"Prefer": f"wait={wait_s}", **said.pop("headers", {})}
        body = {"args": args, **said}
        answer = await self.client.post("/api/v1/requests", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def level(self, entries: int = 0) -> bool:
        """Whether it is ready, its index is whole, and it has so many entries at least."""
        cells = self.gateway.cells
        feed = next(iter(cells.feeds.values()), None)
        ready = feed is not None and feed.live is not None and not feed.building
        return ready and feed is not None and not cells.problem and feed.entries >= entries


Serving = Callable[..., AbstractAsyncContextManager[Served]]


def client_of(app: ASGIApp, headers: dict[str, str]) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(
        transport=transport, base_url=f"http://127.0.0.1:{PORT}", headers=headers
    )


@contextlib.asynccontextmanager
async def serve(
    path: Path,
    *,
    keep_index: bool = True,
    ready: bool = True,
    role: Role = Role.OPERATOR,
    outbox: Outbox | None = None,
    authority: Authority | None = None,
    at_once: int | None = None,
    log: ServedLog | None = None,
) -> AsyncIterator[Served]:
    """Serve a log as `tidegate serve` does, without a socket: a file, unless another is given."""
    clock = Frozen()
    if log is None:
        log = ServedLog(str(path), lambda: SqliteBus.open_readonly(path, clock), path, path.parent)
    cells = Cells(log, clock, keep_index=keep_index)
    known = authority or LocalToken(role, PORT, TOKEN)
    outbox = outbox or Outbox(
        lambda clock: SqliteBus.open(path, clock, durability="process_crash"), path
    )
    opening = partial(opened, path)
    gateway = Gateway(
        cells,
        Past(),
        Limits(clock),
        known,
        clock,
        "test",
        Branches(opening, at_once),
        Verifying(opening),
        Desk(outbox),
        plain_panel,
    )
    if at_once == 0:  # nothing would come
        gateway.branches.forecasts.patience_s = 0.0
    app = make_app(gateway)
    gateway.branches.forgotten = cells.drop
    following = asyncio.create_task(cells.run())
    async with client_of(app, {"Authorization": f"Bearer {TOKEN}"}) as client:
        served = Served(gateway, app, client)
        try:
            if ready:
                await served.until(served.level)
            yield served
        finally:
            gateway.closing.set()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            await gateway.branches.close()
            await gateway.verifying.close()
            await outbox.close()


def opened(path: Path, cell: str) -> Bus:
    """Open a log as the processes of a gateway do."""
    del cell
    return SqliteBus.open_readonly(path, SystemClock())


@pytest.fixture
def serving() -> Serving:
    return serve


@pytest.fixture
def tidegate(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def clock() -> Frozen:
    found = Frozen()
    found.at_s = NOW_S
    return found


@pytest.fixture
def issuer(clock: Frozen) -> Issuer:
    return Issuer(clock)


@pytest.fixture
def people(issuer: Issuer) -> Identities:
    return identities({"bindings": BINDINGS}, issuer)
