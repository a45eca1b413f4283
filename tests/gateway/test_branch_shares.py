"""Branches are few: the robots of one tenant take neither all turns nor others' results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.branches import KEPT_MOST
from gateway.computation_queue import PER_SUBJECT_MAX, PER_TENANT_MAX
from gateway.subjects import Role, Sight
from tests.gateway.conftest import Served, serve
from tests.gateway.test_sight import As

BODY: dict[str, Any] = {"hours": 1.0, "runs": 1}


async def asked(served: Served, status: int = 202) -> str:
    served.gateway.limits._writes.clear()
    answer = await served.client.post("/api/v1/branches", json=BODY)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    if status != 202:
        return str(found["detail"])
    assert answer.headers["location"] == f"/api/v1/branches/{found['branch']}"
    return str(found["branch"])


def done(served: Served) -> None:
    """Let all that wait be done; their processes are another test's."""
    queue = served.gateway.branches._queue
    while queue._waiting:
        queue._waiting.pop().end("done")


async def test_one_tenant_takes_neither_all_turns_nor_others_results(log: Path) -> None:
    operator = As(Role.OPERATOR, Sight.EVERYTHING, None).who
    robot = As(Role.TENANT, Sight.ALL_NAMES, "acme").who
    authority = As(Role.OPERATOR, Sight.EVERYTHING, None)
    async with serve(log, authority=authority, at_once=0) as served:
        await served.until(served.level)
        theirs = [await asked(served) for _ in range(2)]
        done(served)
        for number in range(PER_TENANT_MAX):
            authority.who = replace(robot, name=f"robot:{number // (PER_SUBJECT_MAX - 1)}")
            await asked(served)
        authority.who = replace(robot, name="robot:another")
        said = await asked(served, 429)
        assert said.startswith("8 branches and forecasts of your tenant wait or run already")
        done(served)
        for number in range(KEPT_MOST + 5):
            authority.who = replace(robot, name=f"robot:{number}")
            await asked(served)
            done(served)
        authority.who = operator
        kept = [one["branch"] for one in (await served.get("branches"))["branches"]]
        assert len(kept) == KEPT_MOST
        assert set(theirs) < set(kept)
