"""Holds, sizes and pauses outlive the scheduler: a crash, a snapshot, a new leader."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus.contract import Message
from scheduler.core.facts import CellResumed, GangStarting
from scheduler.service import SchedulerService
from schemas.codec import encode, request
from schemas.commands import StartGang
from schemas.requests import HoldJob, PauseCell, ReleaseJob, Request, ResumeCell, ScaleJob, VerbData
from schemas.topics import REQUESTS
from tests.builders import node_born, submitted
from tests.desk import Desk, open_desk


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path) as desk:
        yield desk


def ask(desk: Desk, name: str, args: VerbData) -> Message:
    """The message of an operator's request."""
    now_s = desk.clock.now_s()
    said = Request(
        id=name, args=args, subject="ann", role="operator", asked_s=now_s, expires_s=now_s + 600.0
    )
    return Message(REQUESTS.name, "default", encode(request(said, source="/gateways/g")))


async def _again(desk: Desk, service: SchedulerService, *, snapshot: bool) -> SchedulerService:
    if snapshot:
        await service.snapshot()
    await desk.crash()
    service = desk.start(snapshot_entries=3)
    await desk.wait(1.0)
    return service


def started(desk: Desk) -> list[str]:
    found = [fact for _, decision in desk.seen for fact in decision.facts]
    return [fact.job for fact in found if isinstance(fact, GangStarting)]


@pytest.mark.parametrize("snapshot", [False, True])
async def test_what_stands_outlives_the_scheduler(desk: Desk, snapshot: bool) -> None:
    service = desk.start(snapshot_entries=3)
    end_s = desk.clock.now_s() + 100.0
    jobs = [submitted(name, gpus_min=1, gpus_max=4) for name in ("held", "sized", "plain")]
    await desk.hears(*(desk.say(job) for job in jobs))
    await desk.hears(
        ask(desk, "a", HoldJob(job="held")),
        ask(desk, "b", ScaleJob(job="sized", gpus=2)),
        ask(desk, "c", PauseCell(what="starts", until_s=end_s)),
    )
    await desk.hears(desk.say(node_born("n0", gpus=8)), wait_s=30.0)
    assert started(desk) == []
    before = service.engine.state.standing
    service = await _again(desk, service, snapshot=snapshot)
    standing = service.engine.state.standing
    assert (standing.holds, standing.sizes, standing.pauses) == (
        before.holds,
        before.sizes,
        before.pauses,
    )
    await desk.wait(30.0)
    assert started(desk) == []
    await desk.clock.run_until(end_s + 1.0)
    resumed = [fact for _, one in desk.seen for fact in one.facts if isinstance(fact, CellResumed)]
    assert [(fact.what, fact.by) for fact in resumed] == [("starts", "")]
    assert desk.seen[-1][0].at_s <= end_s + 1.0, "it ends at its time"
    assert sorted(started(desk)) == ["plain", "sized"]
    sizes = {
        order.data.job: sum(len(part.gpus) for part in order.data.placement)
        for order in await desk.commands(StartGang)
    }
    assert sizes == {"plain": 1, "sized": 2}
    await desk.hears(ask(desk, "d", ReleaseJob(job="held")), wait_s=10.0)
    assert "held" in started(desk)
    await desk.replayed(service)


async def test_a_pause_is_ended_by_whoever_leads_then(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(ask(desk, "a", PauseCell()))
    service = await _again(desk, service, snapshot=True)
    await desk.hears(ask(desk, "b", ResumeCell()))
    assert service.engine.state.standing.pauses == {}
    await desk.replayed(service)
