"""Ask a gateway for branches, wait for them, and look at the processes that make them."""

import asyncio
import contextlib
from typing import Any

import psutil

from tests.gateway.conftest import Served

#: Longer than any test waits.
LONG: dict[str, Any] = {"hours": 168, "runs": 20}


async def asked(served: Served, status: int = 202, **body: Any) -> dict[str, Any]:
    answer = await served.client.post("/api/v1/branches", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    if status == 202:
        assert answer.headers["Location"] == f"/api/v1/branches/{found['branch']}"
    return found


async def ended(served: Served, name: str) -> dict[str, Any]:
    """Wait until a branch is done or has failed; give it."""
    while True:
        found: dict[str, Any] = await served.get(f"branches/{name}")
        if found["state"] in ("done", "failed"):
            return found
        await asyncio.sleep(0.1)


async def one_done(served: Served) -> str:
    """Have a short branch made; give its name."""
    name: str = (await asked(served, entry=served.feed.entries - 1, hours=0.1))["branch"]
    assert (await ended(served, name))["state"] == "done"
    return name


def children() -> list[psutil.Process]:
    """Give the processes that work for gateways of this one."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "gateway.process_main" in one.cmdline():
                found.append(one)
    return found
