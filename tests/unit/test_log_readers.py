"""Who may read which log, how many at once, and what their agents are told; none of it decided."""

from scheduler.log_readers import READERS_EACH, READERS_MAX, READERS_TENANTS
from scheduler.service import SchedulerService
from schemas.commands import SendLog
from schemas.events import NodeBorn
from schemas.requests import ReadLog
from schemas.topics import COMMANDS
from tests.builders import node_born, submitted
from tests.desk import Desk
from tests.unit.test_requests import ask, done, letters, refusals


async def running(desk: Desk) -> SchedulerService:
    service = desk.start()
    born = node_born("n0")
    assert isinstance(born, NodeBorn)
    await desk.hears(desk.say(born), desk.say(submitted("j0", gpus_min=1)), wait_s=90.0)
    assert service.engine.state.jobs["j0"].agents == [born.agent]
    return service


def wanted(desk: Desk, reader: str = "r", job: str = "j0", **over: object) -> ReadLog:
    until_s = desk.clock.now_s() + 600.0
    fields = {"from_byte": -100, "max_bytes": 1000, "until_s": until_s, "follow": True, **over}
    return ReadLog.model_validate({"job": job, "reader": reader, **fields})


async def test_an_allowed_request_has_the_agent_send_it_for_a_minute(desk: Desk) -> None:
    service = await running(desk)
    asked_s = desk.clock.now_s()
    await desk.hears(ask(desk, wanted(desk, rank=2), role="tenant", tenant="t"))
    assert done(desk) == ["r1"]
    (said,) = await desk.commands(SendLog)
    job = service.engine.state.jobs["j0"]
    assert said.subject == job.agents[0]
    assert (said.data.job, said.data.epoch, said.data.rank) == ("j0", job.epoch, 2)
    assert (said.data.from_byte, said.data.max_bytes, said.data.reader) == (-100, 1000, "r")
    assert asked_s < said.data.until_s <= desk.clock.now_s() + 60.0
    (decided,) = [decision for stimulus, decision in desk.seen if stimulus.at_s >= asked_s]
    assert decided.commands == (), "it is said, not decided"
    await desk.replayed(service)


async def test_who_may_not_read_it_makes_no_agent_send_it(desk: Desk) -> None:
    await running(desk)
    before = len(await desk.records(COMMANDS.name))
    await desk.hears(
        ask(desk, wanted(desk), role="tenant", tenant="other"),
        ask(desk, wanted(desk), role="viewer"),
        ask(desk, wanted(desk, job="none")),
        desk.say(submitted("late", gpus_min=8, gpus_max=8)),
    )
    await desk.hears(ask(desk, wanted(desk, job="late")))
    assert refusals(desk) == [
        ("args.job", "j0 is another tenant's, not other's"),
        ("role", "is viewer, but job.logs is for tenant or operator or admin"),
        ("args.job", "there is no job none"),
        ("args.job", "late has not run yet, so there is no log of it"),
    ]
    assert await desk.commands(SendLog) == []
    assert before <= len(await desk.records(COMMANDS.name))


async def test_no_more_than_so_many_read_at_once_and_whoever_goes_on_may(desk: Desk) -> None:
    await running(desk)
    for number in range(READERS_MAX):
        who = f"p{number % 2}"
        await desk.hears(ask(desk, wanted(desk, f"r{number}"), subject=who), wait_s=0.1)
    await desk.hears(ask(desk, wanted(desk, "late")), ask(desk, wanted(desk, "r3"), subject="p1"))
    ((field, reason),) = await letters(desk)
    assert field == "data.args.reader"
    assert reason.startswith("16 logs are being read in this cell, as many as may be; try again")
    assert len(await desk.commands(SendLog)) == READERS_MAX + 1
    await desk.wait(61.0)
    await desk.hears(ask(desk, wanted(desk, "late")))
    assert (await desk.commands(SendLog))[-1].data.reader == "late"


async def test_who_may_not_read_learns_nothing_of_who_does(desk: Desk) -> None:
    await running(desk)
    for number in range(READERS_MAX):
        who = f"p{number % 2}"
        await desk.hears(ask(desk, wanted(desk, f"r{number}"), subject=who), wait_s=0.1)
    await desk.hears(
        ask(desk, wanted(desk, "late"), role="tenant", tenant="other"),
        ask(desk, wanted(desk, "late"), role="viewer"),
    )
    assert [field for field, _ in refusals(desk)] == ["args.job", "role"]
    assert await letters(desk) == []


async def test_one_person_does_not_take_all_readings(desk: Desk) -> None:
    await running(desk)
    for number in range(READERS_EACH):
        await desk.hears(ask(desk, wanted(desk, f"r{number}"), subject="greedy"), wait_s=0.1)
    await desk.hears(
        ask(desk, wanted(desk, "more"), subject="greedy"), ask(desk, wanted(desk, "r0"))
    )
    ((_, reason),) = await letters(desk)
    assert reason.startswith(f"{READERS_EACH} logs are being read by greedy")
    assert (await desk.commands(SendLog))[-1].data.reader == "r0", "another's of that name"


async def test_tenants_leave_room_for_one_another_and_for_operators(desk: Desk) -> None:
    """One has as many robots as it likes, each of which is a subject."""
    await running(desk)
    other = submitted("j1", gpus_min=1).model_copy(update={"tenant": "u"})
    await desk.hears(desk.say(node_born("n1")), desk.say(other, "/tenants/u"), wait_s=90.0)
    for number in range(READERS_EACH):
        asked = ask(desk, wanted(desk), subject=f"robot-{number}", role="tenant", tenant="t")
        await desk.hears(asked, wait_s=0.1)
    await desk.hears(ask(desk, wanted(desk), subject="robot", role="tenant", tenant="t"))
    for number in range(READERS_TENANTS - READERS_EACH + 1):
        reads = wanted(desk, job="j1")
        asked = ask(desk, reads, subject=f"robot-u{number}", role="tenant", tenant="u")
        await desk.hears(asked, wait_s=0.1)
    assert refusals(desk) == []
    said = [reason.partition(",")[0] for _, reason in await letters(desk)]
    assert said == ["8 logs are being read by t", "12 logs are being read by tenants in this cell"]
    await desk.hears(ask(desk, wanted(desk, "operators")))
    assert (await desk.commands(SendLog))[-1].data.reader == "operators"
