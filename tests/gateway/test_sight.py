"""What a tenant learns of another: each endpoint, as each role, is searched for its secrets.

The table is made from the application's routes: one without a decision fails.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from bus.clock import SystemClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from gateway.app import PARTS
from gateway.sight import SHOWS, Shows
from gateway.subjects import Authority, Role, Sight, Subject
from gateway.views import JOB_FIELDS
from scheduler.core.engine import Engine
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Cause, Input, LeaderStarted, Stimulus, TimePassed
from scheduler.journal import write_entry
from scheduler.policies.registry import make_policy
from schemas.events import JobCancelled
from schemas.journal import NO_DIGEST
from schemas.programs import Program
from schemas.requests import HoldJob, SubmitJob
from schemas.topics import JOURNAL
from tests.builders import node_born, request_of, submitted
from tests.gateway.conftest import Served, Serving
from tests.gateway.working import during, working

START_S = 1_700_000_000.0
#: Of the other tenant: its programs' secrets, its jobs, itself, its models.
PROGRAM = ("hunter2-argv", "hunter2-env")
NAMES = (
    "zeta-secret-run",
    "zeta-waits",
    "zeta-asked",
    "zeta-corp",
    "zeta-model",
    "zoe",
    "zeta-secrets",
)


def job(name: str, tenant: str, gpus: int, word: str) -> Any:
    asked = submitted(name, gpus_min=gpus, gpus_max=gpus)
    program = Program(argv=["train", f"--password={word}-argv"], env={"KEY": f"{word}-env"})
    model = f"{tenant.partition('-')[0]}-model"
    return asked.model_copy(update={"tenant": tenant, "model": model, "program": program})


def told() -> list[tuple[str, Input]]:
    """Two tenants: one runs on all GPUs, and one waits for them."""
    asked = SubmitJob(spec=job("zeta-asked", "zeta-corp", 4, "hunter2"))
    return [
        ("/schedulers/a", LeaderStarted("test", 1, "fifo", {})),
        ("/agents/a", node_born("n0")),
        ("/tenants/zeta-corp", job("zeta-secret-run", "zeta-corp", 4, "hunter2")),
        ("/tenants/acme", job("acme-waits", "acme", 4, "acme")),
        ("/tenants/zeta-corp", job("zeta-waits", "zeta-corp", 4, "hunter2")),
        ("/schedulers/a", TimePassed()),
        ("/gateways/g", request_of(START_S + 50, asked, "r1")),
        (
            "/gateways/g",
            request_of(
                START_S + 60,
                HoldJob(job="zeta-asked"),
                "r2",
                role="tenant",
                tenant="zeta-corp",
                subject="zoe",
                reason="zeta-secrets are late",
            ),
        ),
        ("/tenants/zeta-corp", JobCancelled(job="zeta-waits", reason="zeta-corp has had enough")),
    ]


async def write_two_tenants(path: Path) -> int:
    """Write a log in which one of two tenants runs, and the other waits."""
    state = await write_told(path, told())
    assert set(state.jobs) >= {"zeta-secret-run", "acme-waits"}
    return state.number


async def write_told(path: Path, said: list[tuple[str, Input]]) -> ClusterState:
    """Write the log of an engine that is told something each ten seconds; give its state."""
    clock = SystemClock()
    bus = SqliteBus.open(path, clock)
    engine, digest = Engine(ClusterState(cell="default"), make_policy), NO_DIGEST
    for number, (source, data) in enumerate(said):
        stimulus = Stimulus(START_S + 10 * number, data, Cause(source, 0, number))
        decision = engine.handle(stimulus)
        value, digest = write_entry(engine.state, stimulus, decision, digest)
        await bus.publish(Message(JOURNAL.name, "default", value))
    await bus.close()
    return engine.state


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.db"
    asyncio.run(write_two_tenants(path))
    return path


class As:
    """An authority that knows one subject."""

    stranger = "nobody"

    def __init__(self, role: Role, sight: Sight, tenant: str | None = "acme") -> None:
        self.who = Subject("somebody", role, tenant, "token", sight, b"k" * 32)

    async def subject(self, *_: object) -> Subject:
        return self.who


#: By route, paths to ask; what names another's job is tried, too.
PATHS = {
    "overview": ["overview", "overview?entry=4"],
    "tide": ["tide"],
    "moments": ["moments", "moments?entry=4"],
    "rules": ["rules", "rules?entry=4"],
    "loans": ["loans"],
    "me": ["me"],
    "cells": ["cells"],
    "health": ["health"],
    "nodes": ["nodes", "nodes?text=n0", "nodes?entry=4"],
    "jobs": ["jobs", "jobs?sort=-tenant", "jobs?tenant=zeta-corp", "jobs?text=zeta",
             "jobs?fields=job,tenant,model,why_in_words", "jobs?entry=4",
             "jobs?fields=model", "jobs?fields=why_in_words,metrics,hold"],
    "job": ["jobs/acme-waits", "jobs/zeta-secret-run", "jobs/zeta-secret-ru"],
    "why": ["jobs/acme-waits/why", "jobs/zeta-secret-run/why", "jobs/acme-waits/why?entry=4",
            "jobs/acme-waits/why?text=80", "jobs/zeta-secret-run/why?text=80"],
    "forecast": ["jobs/acme-waits/forecast", "jobs/zeta-secret-run/forecast"],
    "fleet": ["fleet", "fleet?entry=4"],
    "agents": ["agents"],
    "leaders": ["leaders"],
    "verified": ["verified"],
    "branches": ["branches"],
    "branch": ["branches/b1"],
    "branch_log": ["branches/b1/log"],
    "story": ["jobs/acme-waits/story", "jobs/zeta-secret-run/story"],
    "stays": ["jobs/acme-waits/stays", "jobs/zeta-secret-run/stays"],
    "curves": ["jobs/acme-waits/curves", "jobs/zeta-secret-run/curves"],
    "output": ["jobs/acme-waits/output?reader=r", "jobs/zeta-secret-run/output?reader=r"],
    "decisions": ["decisions", "decisions?subject=zeta-waits", "decisions?subject=acme-waits"],
    "loan_history": ["loans/history", "loans/history?entry=4"],
    "reclaims": ["reclaims", "reclaims?node=n0"],
    "entry": [f"entries/{number}" for number in range(len(told()))],
    "perfetto": ["perfetto", f"perfetto?since={START_S + 30}&until={START_S + 60}"],
    "diff": ["diff?entry=1&vs=7", "diff?entry=3&vs=4"],
    "dead_letters": ["dead-letters"],
    "request": ["requests/r1", "requests/r2", "requests/r3"],
    "requests": ["requests", "requests?subject=zoe", "requests?verb=job.hold",
                 "requests?about=zeta-asked"],
}  # fmt: skip


def test_each_route_says_what_it_shows() -> None:
    found = {
        route.name for part in PARTS for route in part.router.routes if isinstance(route, APIRoute)
    }
    assert found == SHOWS.keys(), "say in gateway.sight.SHOWS what the route shows of tenants"
    no_reads = {"stream", "ask", "job_file", "begin_branch", "end_branch"}
    assert PATHS.keys() == found - no_reads, "ask it here"


@pytest.mark.parametrize("role", [Role.VIEWER, Role.TENANT])
@pytest.mark.parametrize("sight", [Sight.ALL_NAMES, Sight.OWN_NAMES])
@pytest.mark.parametrize("tenant", ["acme", None])
async def test_another_tenants_secrets_are_in_no_answer(
    two: Path, serving: Serving, role: Role, sight: Sight, tenant: str | None
) -> None:
    hidden = PROGRAM + (NAMES if sight is Sight.OWN_NAMES else ())
    async with serving(two, authority=_as(role, sight, tenant), at_once=0) as served:
        for name, paths in PATHS.items():
            for path in paths:
                answer = await served.raw(path)
                assert answer.status_code in (200, 202, 403, 404), answer.text
                refused = answer.status_code == 403
                if SHOWS[name] is Shows.RAW:
                    assert refused
                if SHOWS[name] is Shows.JOURNAL:
                    assert refused is (sight is Sight.OWN_NAMES)
                asked = path if answer.status_code == 404 else ""  # an error says what was asked
                said = answer.text + str(answer.headers)
                found = [one for one in hidden if one in said and one not in asked]
                assert not found, (path, found, answer.text)


def _as(role: Role, sight: Sight, tenant: str | None) -> Authority:
    return As(role, sight, tenant)


async def test_operators_see_everything(two: Path, serving: Serving) -> None:
    """So the search above finds what there is to find."""
    everything = _as(Role.OPERATOR, Sight.EVERYTHING, None)
    async with serving(two, authority=everything, at_once=0) as served:
        said = ""
        for paths in PATHS.values():
            for path in paths:
                said += (await served.raw(path)).text
        assert [one for one in (*PROGRAM, *NAMES) if one not in said] == []


async def test_a_tenant_sees_its_own_whole_and_who_is_ahead(two: Path, serving: Serving) -> None:
    async with serving(two, authority=_as(Role.TENANT, Sight.OWN_NAMES, "acme")) as served:
        rows = (await served.get("jobs"))["jobs"]
        mine = next(row for row in rows if row["job"] == "acme-waits")
        assert (mine["tenant"], mine["model"]) == ("acme", "acme-model")
        ahead = next(row for row in rows if row["state"] not in ("queued", "cancelled"))
        assert (ahead["job"][:5], ahead["tenant"][:8], ahead["model"]) == (
            "job-x", "tenant-x", "hidden")  # fmt: skip
        (node,) = (await served.get("nodes"))["nodes"]
        assert set(node["holders"]) | set(node["claims"]) >= {ahead["job"]}, "one name everywhere"
        why = await served.get("jobs/acme-waits/why")
        assert why["spec"]["program"]["argv"] == ["train", "--password=acme-argv"]
        text = (await served.get("jobs/acme-waits/why", text=80))["text"]
        assert text.startswith("acme-waits: QUEUED for ")
        assert why["because"]["rule"] in text
        assert "zeta" not in text
        assert (await served.get(f"jobs/{ahead['job']}"))["job"]["job"] == ahead["job"]
        assert len((await served.get("jobs", tenant=ahead["tenant"]))["jobs"]) > 0
        assert (await served.get("jobs", tenant="zeta-corp"))["jobs"] == []
        for path in ("why", "story"):
            said = (await served.get(f"jobs/{ahead['job']}/{path}", 403))["detail"]
            assert "another tenant's job" in said
            await _same(served, path)


async def test_a_field_alone_is_seen_as_it_is_in_the_whole_row(two: Path, serving: Serving) -> None:
    """Whoever asks for a field without those that say whose the job is sees no more of it."""
    async with serving(two, authority=_as(Role.TENANT, Sight.OWN_NAMES, "acme")) as served:
        whole = (await served.get("jobs"))["jobs"]
        assert {"acme-model", "hidden"} <= {row["model"] for row in whole}
        for name in JOB_FIELDS:
            rows = (await served.get("jobs", fields=name))["jobs"]
            assert rows == [{name: row[name]} for row in whole], name


async def _same(served: Served, path: str) -> None:
    """Another's job, by its name, is as if it were not there."""
    one = (await served.get(f"jobs/zeta-secret-run/{path}", 404))["detail"]
    other = (await served.get(f"jobs/xeta-secret-run/{path}", 404))["detail"]
    assert one == other.replace("xeta", "zeta")


async def test_whoever_sees_not_all_sees_what_it_asked_for_itself(
    two: Path, serving: Serving
) -> None:
    foreign = _as(Role.TENANT, Sight.ALL_NAMES, "acme")
    async with serving(two, authority=foreign) as served:
        assert (await served.get("requests"))["acts"] == []
        unknown = (await served.get("requests/r3", 404))["detail"]
        assert (await served.get("requests/r2", 404))["detail"] == unknown.replace("r3", "r2")
        assert (await served.get("requests", 403, subject="zoe"))["parameter"] == "subject"
    async with serving(two, authority=_as(Role.TENANT, Sight.OWN_NAMES, "zeta-corp")) as served:
        assert (await served.get("requests/r2"))["subject"] == "zoe", "of its own tenant"


async def test_whether_a_job_is_there_is_not_told_by_refusals(two: Path, serving: Serving) -> None:
    async with serving(two, authority=_as(Role.TENANT, Sight.OWN_NAMES, "acme")) as served:
        said = []
        for name in ("zeta-secret-run", "xeta-secret-run"):
            body = {"args": {"verb": "job.cancel", "job": name}, "dry_run": True}
            answer = await served.client.post("/api/v1/requests", json=body)
            assert answer.status_code == 403
            said.append(answer.text.replace(name, "NAME"))
        assert said[0] == said[1]


async def test_programs_are_their_tenants(two: Path, serving: Serving) -> None:
    async with serving(two, authority=_as(Role.TENANT, Sight.ALL_NAMES, "zeta-corp")) as served:
        entry = await served.get("entries/2")
        assert "hunter2-argv" in str(entry)
        assert (await served.get("entries/3"))["stimulus"]["data"]["program"] == "hidden"
        assert (await served.get("jobs/acme-waits/why"))["spec"]["program"] == "hidden"
        assert "hunter2-env" in str(await served.get("jobs/zeta-secret-run/why"))


async def test_whose_job_has_a_name_already_is_not_told(two: Path, serving: Serving) -> None:
    async with serving(two, authority=_as(Role.TENANT, Sight.OWN_NAMES, "acme")) as served:
        for tells in ({"dry_run": True}, {}):
            spec = {**submitted("zeta-waits").model_dump(), "tenant": "acme"}
            asked = {"verb": "job.submit", "spec": spec}
            answer = await served.client.post("/api/v1/requests", json={"args": asked, **tells})
            assert (answer.status_code, answer.json()["parameter"]) == (409, "args.spec.job")
            assert "zeta-corp" not in answer.text


async def test_whose_job_took_a_name_in_the_same_tick_is_not_told(
    tmp_path: Path, serving: Serving
) -> None:
    """Nobody has the name when the second asks: the scheduler refuses it, and says whose it is."""
    authority = As(Role.TENANT, Sight.OWN_NAMES, "zeta-corp")

    def wanted(tenant: str, name: str = "one-name", **over: Any) -> dict[str, Any]:
        spec = {**submitted(name).model_dump(), "tenant": tenant, **over}
        return {"verb": "job.submit", "spec": spec}

    async with working(tmp_path) as (desk, log), serving(log, authority=authority) as served:
        await desk.crash()
        await served.ask(wanted("zeta-corp"), 202, 0)
        authority.who = replace(authority.who, tenant="acme")
        key = {"Idempotency-Key": "second"}
        await served.ask(wanted("acme"), 202, 0, headers=key)
        desk.start(accept_unsigned=True)
        refused = await during(desk, served.ask(wanted("acme"), 409, headers=key))
        listed = (await served.get("requests"))["acts"][0]
        told = await served.get("requests/second")
        assert "args.spec.job: is taken; choose another name" in refused["detail"]
        assert told["refused_because"] == "is taken; choose another name"
        assert listed["refused_because"] == "job: is taken; choose another name"
        assert "zeta" not in str([refused, told])
        await during(desk, served.ask(wanted("acme", "mine")))
        refused = await during(desk, served.ask(wanted("acme", "mine", priority=7), 409))
        assert "another job of this tenant has this id" in refused["detail"]
