"""Who may say what: agents of what they hold, tenants of their own jobs, nobody else anything."""

import asyncio

import pytest

from console.response import publish_and_hear
from schemas.codec import Rejected, decode_event
from schemas.commands import StartGang
from schemas.events import (
    CheckpointCommitted,
    CommandAcknowledged,
    EventData,
    GangHeld,
    JobCancelled,
    JobProgressed,
    JobSubmitted,
    LinkLost,
    NodeDied,
    WorkerStopped,
)
from schemas.programs import Program
from schemas.topics import EVENTS
from tests.builders import node_born, progressed, submitted
from tests.desk import Desk, measured


async def refused(desk: Desk) -> list[tuple[str, str]]:
    """Give the field and the reason of each dead letter so far."""
    letters = await desk.records(f"{EVENTS.name}.dlq")
    return [(one.headers["dlq_field"], one.headers["dlq_error"]) for one in letters]


def of(tenant: str, job: str = "train-1", *argv: str) -> JobSubmitted:
    program = Program(argv=list(argv)) if argv else None
    return submitted(job).model_copy(update={"tenant": tenant, "program": program})


STOPPED = WorkerStopped(job="j", epoch=1, node="n0", gpus=[0], reason="preempted", step=0)


@pytest.mark.parametrize(
    ("source", "said", "field"),
    [
        ("/agents/a", of("a"), "type"),
        ("/agents/a", JobCancelled(job="j"), "type"),
        ("/agents/a", LinkLost(agent="a", session=1), "type"),
        ("/links/a", node_born("n0", agent="a"), "type"),
        ("/tenants/t", node_born("n0"), "type"),
        ("/tenants/t", NodeDied(node="n0"), "type"),
        ("/tenants/t", measured(), "type"),
        ("/operators/o", CommandAcknowledged(command="c", outcome="done"), "type"),
        ("/operators/o", STOPPED, "type"),
        ("/tenants/bob", of("alice"), "data.tenant"),
        ("/tenants/bob/tool", of("alice"), "data.tenant"),
        ("/schedulers/default", of("alice"), "source"),
        ("/operators/o/more", of("alice"), "source"),
        ("/tenants/", of("alice"), "source"),
        ("anybody", of("alice"), "source"),
    ],
)
async def test_what_a_source_may_not_say(
    desk: Desk, source: str, said: EventData, field: str
) -> None:
    service = desk.start()
    message = desk.say(said, source)
    await desk.hears(message, desk.say(of("alice", "good"), "/tenants/alice/tool-7"))
    (letter,) = await desk.records(f"{message.topic}.dlq")
    assert (letter.headers["dlq_field"], letter.value) == (field, message.value)
    assert service.intake.counts["dead_letters"] == 1
    assert (list(service.engine.state.jobs), list(service.engine.state.nodes)) == (["good"], [])


async def test_an_operator_speaks_for_every_tenant(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(of("alice"), "/tenants/alice"))
    await desk.hears(
        desk.say(of("bob", "b"), "/operators/cli-1"),
        desk.say(JobCancelled(job="train-1"), "/operators/cli-2"),
    )
    jobs = service.engine.state.jobs
    assert {job.id: job.state.value for job in jobs.values()} == {
        "train-1": "cancelled",
        "b": "queued",
    }


async def test_an_id_is_its_tenants(desk: Desk) -> None:
    """Nothing vanishes: what is the same is taken once, what is not is refused with its reason."""
    service = desk.start()
    first = of("alice", "train-1", "a")
    await desk.hears(desk.say(first, "/tenants/alice"))
    await desk.hears(desk.say(first, "/tenants/alice/again"))
    assert await refused(desk) == []
    await desk.hears(
        desk.say(of("bob", "train-1", "b"), "/tenants/bob"),
        desk.say(of("alice", "train-1", "other"), "/tenants/alice"),
        desk.say(JobCancelled(job="train-1"), "/tenants/bob"),
    )
    assert await refused(desk) == [
        ("data.job", "train-1 is alice's"),
        ("data.job", "another job of this tenant has this id"),
        ("data.job", "train-1 is alice's, but /tenants/bob cancels it"),
    ]
    job = service.engine.state.jobs["train-1"]
    assert (job.tenant, job.program, job.state) == ("alice", {"argv": ["a"]}, "queued")
    assert service.engine.state.totals.submissions_refused == 2
    assert service.intake.counts["dead_letters"] == 3
    await desk.replayed(service)


async def test_an_agent_speaks_of_gangs_that_it_holds(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(
        desk.say(node_born("n0", gpus=8)),
        desk.say(node_born("x0", agent="other", pool="edge", kind="edge"), "/agents/other"),
        desk.say(of("t", "j", "a"), "/tenants/t"),
        wait_s=61.0,
    )
    (start,) = await desk.commands(StartGang)
    job = service.engine.state.jobs["j"]
    assert job.agents == ["agent-train"]
    forged: list[EventData] = [
        JobProgressed.model_validate(
            {**progressed(900, "j", job.epoch).model_dump(), "checkpoint_step": 900}
        ),
        CheckpointCommitted(job="j", epoch=job.epoch, step=900, uri="u", size_mib=1, cost_s=1.0),
        STOPPED.model_copy(update={"epoch": job.epoch, "node": "x0", "step": 900}),
        CommandAcknowledged(command=start.id, outcome="refused"),
    ]
    await desk.hears(*(desk.say(one, "/agents/other") for one in forged))
    fields = [field for field, _ in await refused(desk)]
    assert fields == ["data.job", "data.job", "data.job", "data.command"]
    assert (job.state, job.step, job.checkpoint_step) == ("starting", 0, 0)
    await desk.hears(desk.say(forged[1]))
    assert job.checkpoint_step == 900, "who holds it is believed"
    assert len(await refused(desk)) == 4
    await desk.replayed(service)


async def test_who_says_in_a_birth_that_it_holds_a_gang_speaks_no_more_of_it(desk: Desk) -> None:
    service = desk.start()
    other = node_born("x0", agent="other", pool="edge", kind="edge")
    await desk.hears(
        desk.say(node_born("n0")),
        desk.say(other, "/agents/other"),
        desk.say(of("t", "j"), "/tenants/t"),
        wait_s=61.0,
    )
    job = service.engine.state.jobs["j"]
    held = [GangHeld(job="j", epoch=job.epoch, gpus=[0], step=0)]
    forged = STOPPED.model_copy(update={"epoch": job.epoch, "node": "x0", "step": 900})
    await desk.hears(
        desk.say(other.model_copy(update={"held": held}), "/agents/other"),
        desk.say(forged, "/agents/other"),
    )
    assert [field for field, _ in await refused(desk)] == ["data.job"]
    assert (job.state, job.checkpoint_step) == ("starting", 0)
    await desk.replayed(service)


async def test_what_was_saved_by_who_held_it_last_counts(desk: Desk) -> None:
    """Its node died, the job waits, and the agent's last word of the checkpoint comes after."""
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")), desk.say(of("t", "j")), wait_s=61.0)
    job = service.engine.state.jobs["j"]
    assert job.allocation
    await desk.hears(desk.say(NodeDied(node="n0")))
    saved = CheckpointCommitted(job="j", epoch=job.epoch, step=7, uri="u", size_mib=1, cost_s=1.0)
    assert (job.state, job.allocation, job.checkpoint_step) == ("queued", {}, 0)
    await desk.hears(desk.say(saved.model_copy(update={"step": 9}), "/agents/other"))
    assert [field for field, _ in await refused(desk)] == ["data.job"]
    await desk.hears(desk.say(saved))
    assert job.checkpoint_step == 7


async def test_who_submits_is_told(desk: Desk) -> None:
    desk.start()
    await desk.hears(desk.say(of("alice"), "/tenants/alice"))

    async def answer(said: EventData, source: str) -> str:
        message = desk.say(said, source)
        envelope = decode_event(message.value or b"")
        assert not isinstance(envelope, Rejected)
        asked = asyncio.create_task(publish_and_hear(desk.bus, message, envelope.source, 5.0))
        while not asked.done():
            await desk.wait(1.0)
            await asyncio.sleep(0.01)
        return asked.result()

    assert await answer(of("bob"), "/operators/cli-1") == "job: train-1 is alice's"
    assert await answer(of("alice"), "/operators/cli-2") == ""
    wrong = await answer(JobCancelled(job="train-1"), "/tenants/bob")
    assert wrong == "job: train-1 is alice's, but /tenants/bob cancels it"


async def test_a_program_that_would_begin_in_a_folder_of_no_machine_is_refused(desk: Desk) -> None:
    """It would be tried on machine after machine, whoever has submitted it."""
    service = desk.start()
    for job, workdir in (("rel", "src"), ("whole", "/srv/src"), ("fresh", None)):
        program = Program(argv=["train"], workdir=workdir)
        said = of("t", job).model_copy(update={"program": program})
        await desk.hears(desk.say(said, "/tenants/t"))
    ((field, why),) = await refused(desk)
    assert field == "data.program.workdir"
    assert why.startswith("'src' is relative, and must be a whole path of the agent's machine")
    assert sorted(service.engine.state.jobs) == ["fresh", "whole"]
