"""Taken once, and taken at all: after crashes, forgeries, lost offsets and floods of sources."""

import pytest

from scheduler import dedupe
from schemas.commands import StartGang
from schemas.events import CommandAcknowledged, WorkerStarted, WorkerStopped
from schemas.topics import EVENTS
from tests.builders import START_S, node_born, submitted
from tests.desk import Desk, measured
from tests.memory_bus import MemoryBus

pytestmark = pytest.mark.slow

BOOT = int(START_S // 60)


async def test_an_agent_is_heard_after_a_crash_however_much_it_had_said(desk: Desk) -> None:
    service = desk.start()
    agent = "/agents/agent-train"
    await desk.hears(desk.say(node_born("n0")))
    # Telemetry is not in the journal: a restart knows nothing of it.
    for number in range(1, 1_000_101):
        service.intake.dedupe.take(agent, 0, number, desk.clock.now_s())
    desk.sequence[agent] = 1_000_101
    await desk.hears(desk.say(measured()))
    await desk.crash()
    service = desk.start(name="b")
    await desk.hears(desk.say(measured()), desk.say(node_born("n0", gpus=2)))
    assert service.intake.counts["dead_letters"] == 0
    assert service.engine.state.nodes["n0"].gpu_count == 2


async def test_no_forged_birth_silences_an_agent(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0"), bootid=BOOT))
    forged = desk.say(node_born("n0"), bootid=2**31 - 1, sequence=10**15)
    honest = [desk.say(measured(), bootid=BOOT, sequence=1 + number) for number in range(20)]
    await desk.hears(forged, *honest)
    assert service.intake.telemetry.folded == 20
    await desk.wait(dedupe.BELIEVED_S + 1.0)
    await desk.hears(desk.say(node_born("n0", gpus=2), bootid=BOOT, sequence=30))
    assert service.engine.state.nodes["n0"].gpu_count == 2, "believed while the other is silent"
    await desk.hears(desk.say(node_born("n0"), bootid=2**31 - 2, sequence=0))
    await desk.crash()
    service = desk.start(name="b")
    await desk.wait(dedupe.BELIEVED_S + 1.0)
    await desk.hears(desk.say(node_born("n0", gpus=3), bootid=BOOT + 1, sequence=0))
    node = service.engine.state.nodes["n0"]
    assert (node.gpu_count, node.bootid) == (3, BOOT + 1), "also by the next leader"


@pytest.mark.parametrize("few", [100, 10])
async def test_lost_offsets_run_no_job_again(
    desk: Desk, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedupe, "SOURCES_MAX", few)
    service = desk.start()
    node, job = node_born("n0"), submitted("paid", gpus_max=1)
    await desk.hears(desk.say(node), desk.say(job, "/operators/cli-0"), wait_s=30.0)
    state = service.engine.state
    for name in list(state.commands):
        await desk.hears(desk.say(CommandAcknowledged(command=name, outcome="done")))
    up = WorkerStarted(job="paid", epoch=state.jobs["paid"].epoch, node="n0", gpus=[0], step=0)
    end = WorkerStopped(**up.model_dump() | {"reason": "completed", "step": 1000})
    await desk.hears(desk.say(up), desk.say(end))
    assert state.jobs["paid"].state == "completed"
    for number in range(30):
        await desk.hears(desk.say(submitted(f"j{number}"), f"/operators/cli-{number + 1}"))
    await desk.wait(2.1 * 86_400.0)
    await desk.hears(desk.say(node))
    assert "paid" not in state.jobs, "it is forgotten"
    await desk.crash()
    assert isinstance(desk.bus, MemoryBus)
    desk.bus._committed.clear()
    service = desk.start(name="b")
    await desk.wait(60.0)
    assert "paid" not in service.engine.state.jobs
    counts = service.intake.counts
    assert counts["events"] >= 36
    assert counts["duplicates"] + counts["forgotten"] == counts["events"]
    letters = await desk.records(f"{EVENTS.name}.dlq")
    assert {letter.headers["dlq_field"] for letter in letters} <= {"time"}
    assert len(letters) == counts["forgotten"] == (0 if few == 100 else 21)


@pytest.mark.parametrize("ends", ["", "crashes", "stops"])
async def test_a_birth_that_comes_late_ends_no_gang(desk: Desk, ends: str) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0"), sequence=0))
    late = desk.say(node_born("n0"), sequence=1)  # it stays in a bridge that hangs
    await desk.hears(desk.say(submitted("j0", gpus_min=4, gpus_max=4)), wait_s=70.0)
    job = service.engine.state.jobs["j0"]
    (start,) = await desk.commands(StartGang)
    up = WorkerStarted(job="j0", epoch=job.epoch, node="n0", gpus=[0, 1, 2, 3], step=0)
    done = CommandAcknowledged(command=start.id, outcome="done")
    await desk.hears(desk.say(done, sequence=2), desk.say(up, sequence=3))
    if ends:  # the next one does not remember what it has heard of the agent
        if ends == "stops":
            service.stop()
            await desk.wait(1.0)
        await desk.crash()
        service = desk.start(name="b")
        await desk.wait(1.0)
    await desk.hears(late, wait_s=300.0)
    job = service.engine.state.jobs["j0"]
    assert (job.state, list(job.allocation)) == ("running", ["n0"])
    assert service.intake.counts["births_overtaken"] == 1
    assert len(await desk.commands(StartGang)) == 1


@pytest.mark.parametrize("crashes", [False, True])
async def test_telemetry_overtakes_no_birth(desk: Desk, crashes: bool) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0"), sequence=0))
    if crashes:
        await desk.crash()
        service = desk.start(name="b")
    await desk.hears(desk.say(measured(), sequence=2))  # its topic is read before the other
    await desk.hears(desk.say(node_born("n0", gpus=2), sequence=1))
    assert service.engine.state.nodes["n0"].gpu_count == 2
    assert service.intake.counts["births_overtaken"] == 0


async def test_a_word_of_an_earlier_start_alone_keeps_no_snapshot_from_being_written(
    desk: Desk,
) -> None:
    service = desk.start()
    await desk.hears(desk.say(measured(), bootid=1, sequence=5))
    await desk.hears(desk.say(node_born("n0"), bootid=0, sequence=3))
    assert service.intake.dedupe.boot("/agents/agent-train") == 1
    await service.snapshot()
    await desk.crash()
    await desk.hears(desk.say(node_born("n0", gpus=2), bootid=1, sequence=0))
    service = desk.start(name="b")
    await desk.wait(1.0)
    assert service.engine.state.nodes["n0"].gpu_count == 2


async def test_what_the_journal_does_not_keep_is_no_gap_after_a_crash(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")))
    for _ in range(20):
        await desk.hears(desk.say(measured()))
    await desk.hears(desk.say(submitted("j")), desk.say(node_born("n1")))
    assert service.intake.counts["gaps"] == 0
    await desk.crash()
    service = desk.start(name="b")
    await desk.hears(desk.say(measured()))
    assert service.intake.counts["gaps"] == 0
    desk.say(measured())  # lost on its way
    await desk.hears(desk.say(measured()))
    assert service.intake.counts["gaps"] == 1
