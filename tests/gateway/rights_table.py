"""Who may ask the gateway for what: the table of docs/gateway-rights.md, by asking each in turn.

    python -m tests.gateway.rights_table

writes the page. The log has two tenants; `acme` is the tenant who asks, `zeta-corp` is another.
"""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from gateway import openapi
from gateway.assignment import Assignment, ProcessLimits
from gateway.branch_runs import Journal, run_branch
from gateway.branches import KeptBranch
from gateway.computation_queue import Computation
from gateway.models_branches import BranchBody
from gateway.subjects import Role, Sight
from scheduler.core.rights import MAY
from tests.gateway.conftest import PORT, Served, client_of, opened, serve
from tests.gateway.test_sight import START_S, As, job, write_two_tenants

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway-rights.md"
_HEAD = """# Who may ask the gateway for what

Made by `python -m tests.gateway.rights_table`, which asks a gateway each question as each role; a
test asks again and compares. What the roles are, and how people come to have them, is in
[the gateway's page](gateway.md#who-asks). The scheduler decides once more what they may do.

- *yes*: it is answered. A request of people is asked as `dry_run`; whether it can be done now is
  another question.
- *hidden*: it is answered; what is another tenant's has a pseudonym there, or is not there.
- A number is the status of the refusal: 401, nobody knows who asks; 403, who asks may not; 404, as
  if it were not there.
- *its own* and *another's* say whose job is asked for, or looked for in the answer. The request of
  `GET requests/{request_id}` is another's in each column, and so is the branch of
  `branches/{branch_id}`.
"""


@dataclass(frozen=True, slots=True)
class _Column:
    """Who asks, about whose job."""

    title: str
    who: As | None  #: None: somebody without a token.
    job: str = "zeta-secret-run"
    tenant: str = "zeta-corp"
    others: bool = True


def _columns() -> list[_Column]:
    tenant = As(Role.TENANT, Sight.ALL_NAMES, "acme")
    shy = As(Role.TENANT, Sight.OWN_NAMES, "acme")
    return [
        _Column("nobody", None),
        _Column("viewer", As(Role.VIEWER, Sight.ALL_NAMES, None)),
        _Column("viewer, `visibility` own", As(Role.VIEWER, Sight.OWN_NAMES, None)),
        _Column("tenant: its own", tenant, "acme-waits", "acme", others=False),
        _Column("another's", tenant),
        _Column("tenant, `visibility` own: its own", shy, "acme-waits", "acme", others=False),
        _Column("another's", shy),
        _Column("operator", As(Role.OPERATOR, Sight.EVERYTHING, None)),
        _Column("admin", As(Role.ADMIN, Sight.EVERYTHING, None)),
    ]


#: Parameters of reads that cannot be asked without, and those of their paths.
_NEEDED = {"diff": "entry=1&vs=7", "jobs/{job}/output": "reader=r"}
_BODIES = {"job-file": {"text": "command: [a]"}}
_PATH = {"{number}": "2", "{request_id}": "r2", "{branch_id}": "b1"}


def _reads() -> list[str]:
    paths = openapi.make().openapi()["paths"]
    return [path.removeprefix("/api/v1/") for path, verbs in paths.items() if "get" in verbs]


def _verbs(column: _Column) -> dict[str, dict[str, Any]]:
    """Give by verb the arguments that are asked for about this column's job or tenant."""
    later_s = START_S + 4000.0
    of: dict[str, Mapping[str, object]] = {
        "node.": {"node": "n0"},
        "job.": {"job": column.job},
        "loans.": {"lender": "train"},
        "quota.": {"tenant": column.tenant},
        "node.drain": {"by_s": later_s},
        "node.accept": {"agent": "n0", "pool": "p", "pool_kind": "edge", "gpu_count": 1},
        "loans.recall": {"by_s": later_s},
        "job.priority": {"priority": 1},
        "job.scale": {"gpus": 4},
        "job.logs": {"reader": "r", "from_byte": 0, "max_bytes": 10, "until_s": later_s},
        "quota.set": {"gpus": 1},
        "policy.set": {"line": "fifo"},
    }
    found = {
        verb: {"verb": verb}
        | {k: v for begin, args in of.items() if verb.startswith(begin) for k, v in args.items()}
        for verb in MAY
    }
    spec = job("new", column.tenant, 1, "x").model_dump(mode="json", exclude_defaults=True)
    return found | {"job.submit": {"verb": "job.submit", "spec": spec}}


def _said(answer: httpx.Response, column: _Column, *, names: bool) -> str:
    if answer.status_code in (200, 202, 409):
        hidden = names and column.others and "zeta-" not in answer.text
        return "hidden" if hidden else "yes"
    assert answer.status_code in (401, 403, 404), answer.text
    return str(answer.status_code)


async def _stream(app: FastAPI, headers: Mapping[str, str]) -> str:
    """Give what a stream begins with; it would last."""
    begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": "/api/v1/stream", "raw_path": b"/api/v1/stream",
        "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
        "headers": [(b"host", f"127.0.0.1:{PORT}".encode()),
                    *((k.lower().encode(), v.encode()) for k, v in headers.items())],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        await begun
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            begun.set_result(message["status"])

    running = asyncio.create_task(app(scope, receive, send))
    status = await begun
    running.cancel()
    await asyncio.wait([running])
    return "yes" if status == 200 else str(status)


def keep_branch(served: Served) -> None:
    """Have the gateway know a branch of an operator's, which waits."""
    branches, feed = served.gateway.branches, served.feed
    journal = Journal(partial(opened, Path()), feed.cell, feed.origin_s)
    work = Computation("boss", Assignment(run_branch, (), ProcessLimits()))
    branches._kept["b1"] = KeptBranch(
        "b1", feed, 0, 7, "boss", BranchBody(entry=7), 0.0, journal, work, Path(), replays=True
    )


async def _asked(served: Served, client: httpx.AsyncClient, column: _Column) -> dict[str, str]:
    found = {}
    keep_branch(served)
    for path in _reads():
        served.gateway.limits._reads.clear()
        row = f"`GET {path}`"
        if path == "stream":
            found[row] = await _stream(served.app, dict(client.headers))
            continue
        asked = path.replace("{job}", column.job)
        for part, value in _PATH.items():
            asked = asked.replace(part, value)
        if path in _NEEDED:
            asked += "?" + _NEEDED[path]
        answer = await client.get(f"/api/v1/{asked}")
        found[row] = _said(answer, column, names=path in _NAMING)
    for method, path in (("POST", "job-file"), ("POST", "branches"),
                         ("DELETE", "branches/{branch_id}")):  # fmt: skip
        served.gateway.limits._writes.clear()
        asked = path.replace("{branch_id}", "b1")
        answer = await client.request(method, f"/api/v1/{asked}", json=_BODIES.get(path, {}))
        found[f"`{method} {path}`"] = _said(answer, column, names=False)
    for verb, args in _verbs(column).items():
        served.gateway.limits._writes.clear()
        body = {"args": args, "dry_run": True}
        answer = await client.post("/api/v1/requests", json=body)
        found[f"`{verb}`"] = _said(answer, column, names=False)
    return found


#: Reads whose answer names jobs or tenants to who sees everything.
_NAMING = {"jobs", "jobs/{job}", "jobs/{job}/why", "jobs/{job}/story", "nodes", "decisions",
           "diff", "entries/{number}", "requests", "requests/{request_id}", "fleet"}  # fmt: skip


async def page(log: Path) -> str:
    """Ask everything, and write the page."""
    columns, found = _columns(), []
    for column in columns:
        if column.who is None:
            async with serve(log, at_once=0) as served:
                found.append(await _asked(served, client_of(served.app, {}), column))
        else:
            async with serve(log, authority=column.who, at_once=0) as served:
                found.append(await _asked(served, served.client, column))
    text = _HEAD
    for title, verbs in (
        ("Reads and branches", False),
        ("Requests of people, by `POST requests`", True),
    ):
        text += f"\n## {title}\n\n| | " + " | ".join(one.title for one in columns) + " |\n"
        text += "|---|" + "---|" * len(columns) + "\n"
        for row in found[0]:
            if row.startswith(("`GET", "`POST", "`DELETE")) is not verbs:
                text += f"| {row} | " + " | ".join(said[row] for said in found) + " |\n"
    return text


async def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "two.db"
        await write_two_tenants(log)
        PAGE.write_text(await page(log), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
