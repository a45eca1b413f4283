"""Stories and documents of jobs, from entries alone and from a bus; and which cell is meant."""

from typing import Any

import orjson
import pytest

from bus.clock import PacedClock
from bus.contract import Message
from console.panel import plain_panel
from explain.answer import Answer, Reading
from explain.documents import WhyDocument, why_document
from explain.ends import End, Ends, Kept
from explain.reading import WhichCell, read_bus, read_story
from explain.rows import jobs_table
from explain.story import Story
from explain.why_text import plain_why
from explain.wording import WORTH
from scheduler.core.stimuli import TimePassed
from scheduler.policies.interface import Figure, Reason, Target
from schemas.codec import cell_state, encode
from schemas.events import (
    CheckpointCommitted,
    JobSubmitted,
    NodeDied,
    OutputsKept,
    WorkerFailed,
    WorkerStopped,
)
from schemas.journal import CellState, JournalEntry, decode_entry
from schemas.requests import CancelJob, PauseCell, ResumeCell
from schemas.topics import CELLS, JOURNAL
from tests.builders import request_of
from tests.console.stories import START_S, Teller, job, node, running, sized, tell
from tests.memory_bus import MemoryBus

JOBS = ("grown", "victim", "mover", "done", "waiter", "dropped")


@pytest.fixture(scope="module")
def told() -> Teller:
    return tell()


def recorded(told: Teller) -> list[tuple[bytes, JournalEntry]]:
    found = []
    for _, message in told.messages:
        assert message.value is not None
        entry = decode_entry(message.value)
        assert isinstance(entry, JournalEntry)
        found.append((message.value, entry))
    return found


def story_of(told: Teller, job: str) -> Story:
    story = Story(job)
    for _, entry in recorded(told):
        story.take(entry)
    return story


def reading_of(told: Teller) -> Reading:
    return Reading("default", told.state, START_S, told.now_s, told.now_s)


async def on_a_bus(
    told: Teller, cells: tuple[str, ...] = ("default",), clock: PacedClock | None = None
) -> MemoryBus:
    bus = MemoryBus(clock or PacedClock(START_S, None))
    for cell in cells:
        for _, message in told.messages:
            await bus.publish(Message(JOURNAL.name, cell, message.value))
    return bus


def explained(reading: Reading, story: Story) -> WhyDocument:
    answer = Answer.of(reading, story)
    assert answer is not None
    return why_document(answer)


@pytest.mark.parametrize("job", JOBS)
def test_a_story_needs_only_the_entries_that_it_wants(told: Teller, job: str) -> None:
    whole, wanted = story_of(told, job), Story(job)
    for value, entry in recorded(told):
        if any(part in value for part in wanted.wanted):
            wanted.take(entry)
    assert wanted == whole
    assert whole.events


@pytest.mark.parametrize("job", JOBS)
async def test_what_is_read_from_a_bus_says_the_same_as_the_entries(told: Teller, job: str) -> None:
    bus = await on_a_bus(told)
    reading = await read_bus(bus)
    story = await read_story(bus, reading.cell, job, reading.state.number)
    found = explained(reading, story)
    assert found == explained(reading_of(told), story_of(told, job))
    assert found.job == job
    assert found.history
    assert orjson.loads(orjson.dumps(found)).keys() == set(WhyDocument.__slots__)


async def test_a_story_ends_before_the_state_that_it_stands_beside(told: Teller) -> None:
    bus = await on_a_bus(told)
    migrated = next(
        entry.number
        for _, entry in recorded(told)
        if any(kind == "JobMigrating" for kind, _ in entry.decision["facts"])
    )
    before = await read_story(bus, "default", "mover", migrated)
    after = await read_story(bus, "default", "mover", migrated + 1)
    assert before.last("JobMigrating") is None
    assert after.last("JobMigrating") is not None


def test_nobody_answers_for_a_job_that_neither_state_nor_journal_knows(told: Teller) -> None:
    assert Answer.of(reading_of(told), story_of(told, "nobody")) is None


@pytest.mark.parametrize(
    ("held", "asked", "meant"),
    [((), "any", "any"), ((), None, "default"), (("a",), None, "a"), (("a", "b"), "b", "b")],
)
async def test_the_cell_that_is_meant(
    told: Teller, held: tuple[str, ...], asked: str | None, meant: str
) -> None:
    assert (await read_bus(await on_a_bus(told, held), asked)).cell == meant


@pytest.mark.parametrize(("held", "asked"), [(("a", "b"), None), (("a",), "b")])
async def test_a_cell_that_cannot_be_told_is_asked_for(
    told: Teller, held: tuple[str, ...], asked: str | None
) -> None:
    with pytest.raises(WhichCell) as raised:
        await read_bus(await on_a_bus(told, held), asked)
    assert (raised.value.cell, raised.value.held) == (asked, held)


def failing() -> list[JournalEntry]:
    """A job that failed, was started again, and failed for good; another that only started."""
    facts: list[tuple[str, dict[str, str]]] = [
        ("GangStopping", {"job": "bad", "reason": "failed", "detail": "first"}),
        ("GangStarting", {"job": "bad"}),
        ("GangStopping", {"job": "bad", "reason": "failed", "detail": "exit code 3"}),
        ("GangStopping", {"job": "bad", "reason": "failed", "detail": "its peers left"}),
        ("GangStarting", {"job": "other"}),
        ("JobFailed", {"job": "bad", "reason": "not_retriable"}),
    ]
    blank = recorded(tell())[0][1]
    return [blank.model_copy(update={"decision": {"facts": [fact]}}) for fact in facts]


def finished(*, epoch: int = 0, **over: Any) -> Teller:
    """Tell of one job that is done, and whose outputs were kept before it was."""
    told = running("done")
    at = told.state.jobs["done"].epoch + epoch
    fields = {"job": "done", "uri": "file:///o/done/outputs/1", "files": 2, "size_mib": 3}
    told.feed(OutputsKept.model_validate({**fields, "epoch": at, **over}))
    told.off("done", "completed", 1000)
    return told


def test_where_outputs_are_is_told_of_a_job_that_is_done() -> None:
    told = finished(left_out="x.csv: there is none")
    why = explained(reading_of(told), story_of(told, "done"))
    assert (why.state, why.outputs) == (
        "completed",
        Kept("file:///o/done/outputs/1", 2, 3, "x.csv: there is none"),
    )
    (line,) = [line for line in why.history if line.what == "outputs kept"]
    said = "2 files, 3 MiB, at file:///o/done/outputs/1; not kept: x.csv: there is none"
    assert line.detail == said
    answer = Answer.of(reading_of(told), story_of(told, "done"))
    assert answer is not None
    assert "outputs/1; not kept: x.csv" in plain_panel(answer, 200)


def stored(*commits: tuple[int, str]) -> Answer:
    """Tell of a job that runs, and whose checkpoints are stored in this order."""
    told = running("done")
    for step, uri in commits:
        fields = {"job": "done", "epoch": told.state.jobs["done"].epoch, "step": step, "uri": uri}
        told.feed(CheckpointCommitted.model_validate({**fields, "size_mib": 3, "cost_s": 1.0}))
    answer = Answer.of(reading_of(told), story_of(told, "done"))
    assert answer is not None
    return answer


def test_where_the_newest_checkpoint_of_a_job_is_is_told() -> None:
    answer = stored((20, "file:///c/done/1-20"), (30, "file:///c/done/1-30"), (25, "late"))
    why = why_document(answer)
    assert why.checkpoint is not None
    assert (why.checkpoint.step, why.checkpoint.uri) == (30, "file:///c/done/1-30")
    told = plain_why(orjson.loads(orjson.dumps(why)), 100)
    assert "step 30, 3 MiB, in file:///c/done/1-30" in told
    assert "fetch done copies its files here: step 30, 3 MiB" in plain_panel(answer, 200)


def test_a_simulated_checkpoint_is_nowhere() -> None:
    assert stored((20, "simulated:done/20")).story.checkpoint is None


def test_a_job_that_is_over_says_how_long_it_took_not_why_it_once_had_gpus() -> None:
    told = finished()
    said, *more = explained(reading_of(told), story_of(told, "done")).ended or ()
    assert more == []
    assert said.startswith("Completed at ")
    assert said.endswith(" after it was submitted.")


def test_a_row_of_a_job_that_is_over_says_what_was_kept_of_it() -> None:
    told = finished(left_out="")
    done = told.state.jobs["done"]
    assert not Ends.tells_of(done), "it declares no outputs: the journal need not be read for it"
    done.program = {"argv": ["train"], "outputs": ["report.html"]}
    assert Ends.tells_of(done)
    ends = Ends({"done"})
    for _, entry in recorded(told):
        ends.take(entry)
    (row,) = jobs_table(reading_of(told), [done], ends.found).jobs
    assert row.outputs == Kept("file:///o/done/outputs/1", 2, 3, "")
    (bare,) = jobs_table(reading_of(told), [done], {}).jobs
    assert bare.outputs is None


@pytest.mark.parametrize("over", [{"epoch": 1}, {"epoch": -1}, {"job": "other"}])
def test_outputs_of_another_gang_are_no_outputs_of_the_job(over: dict[str, Any]) -> None:
    told = finished(**over)
    assert explained(reading_of(told), story_of(told, "done")).outputs is None


def test_a_job_without_outputs_says_nothing_of_them(told: Teller) -> None:
    assert explained(reading_of(told), story_of(told, "done")).outputs is None


def test_a_job_failed_by_what_its_last_gang_said_first() -> None:
    ends = Ends({"bad"})
    for entry in failing():
        ends.take(entry)
    assert ends.found == {"bad": End("cannot be run: exit code 3")}


def ordered() -> Teller:
    """A job with a program is told to start on all GPUs of its only node."""
    told = Teller()
    told.feed(node("n0", "training", "training"))
    program = {"argv": ["train"]}
    told.feed(JobSubmitted.model_validate({**job("ran").model_dump(), "program": program}))
    told.decides(
        sized("ran", "starts", "market.price", 0, 4),
        targets={"ran": Target("training", (("n0", 4),))},
    )
    return told


def where(told: Teller) -> str | None:
    output = explained(reading_of(told), story_of(told, "ran")).output
    return None if output is None else output.folder


@pytest.mark.parametrize("end", ["refused", "expired"])
def test_workers_that_never_began_have_no_logs(end: str) -> None:
    told = ordered()
    assert where(told) is None, "its agent has not answered yet"
    if end == "refused":
        told.acks("refused")
    else:
        told.now_s += 7200.0
        told.feed(TimePassed())
    (stopped,) = [one for one in story_of(told, "ran").events if one.kind == "GangStopping"]
    assert stopped.fields["detail"].startswith("StartGang ")
    assert where(told) is None


@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("kind", [WorkerFailed, WorkerStopped])
def test_workers_that_their_agent_could_not_start_have_no_logs(
    kind: type[WorkerFailed | WorkerStopped], ran: bool
) -> None:
    told = ordered()
    told.acks()
    assert where(told) is not None
    which = {"job": "ran", "epoch": told.state.jobs["ran"].epoch, "node": "n0"}
    how = {"error": "its code cannot be brought here", "reason": "preempted", "ran": ran}
    told.feed(kind.model_validate({**which, **how, "gpus": [0, 1, 2, 3], "step": 0}))
    assert told.state.jobs["ran"].allocation == {}
    assert (where(told) is not None) is ran


def test_workers_that_ran_until_a_reboot_have_logs_though_they_could_not_begin_again() -> None:
    told = ordered()
    told.up("ran")
    before = where(told)
    told.fail_worker("ran", ran=False)
    assert (where(told), before is not None) == (before, True)


def test_logs_are_those_of_the_newest_workers_that_began() -> None:
    told = ordered()
    told.up("ran")
    first = where(told)
    assert first is not None
    told.fail_worker("ran")
    told.stop_workers("ran", step=0)
    told.acks()
    told.now_s += 4000.0
    told.decides(targets={"ran": Target("training", (("n0", 4),))})
    assert told.state.jobs["ran"].epoch > 1
    told.acks("refused")
    assert where(told) == first
    told.now_s += 4000.0
    told.decides(targets={"ran": Target("training", (("n0", 4),))})
    told.acks()
    assert where(told) not in (None, first)
    told.fail_worker("ran", ran=False)
    assert where(told) == first


def test_worth_and_price_are_said_to_have_no_unit() -> None:
    told = ordered()
    given = (Figure("worth_per_gpu", 0.4), Figure("price_per_gpu", 0.2))
    told.feed(job("outbid"))
    told.decides(Reason("outbid", "waits", "market.outbid", given, ("ran",)))
    told.decides(Reason("ran", "keeps", "fifo.order"))
    for name, says in (("outbid", True), ("ran", False)):
        answer = Answer.of(reading_of(told), story_of(told, name))
        assert answer is not None
        document = orjson.loads(orjson.dumps(why_document(answer)))
        for text in (plain_panel(answer, 400), plain_why(document, 400)):
            assert (WORTH in text) is says


def test_who_may_not_cancel_a_job_is_not_told_as_who_did() -> None:
    told = Teller()
    told.feed(node("n0", "training", "training"))
    told.feed(job("a"))
    starts = Target("training", (("n0", 1),))
    told.decides(sized("a", "starts", "market.price", 0, 1), targets={"a": starts})
    told.up("a")
    for name, tenant, reason in (("ann", "t", "enough"), ("mallory", "other", "mine now")):
        who = {"subject": name, "role": "tenant", "tenant": tenant, "reason": reason}
        told.feed(request_of(told.now_s, CancelJob(job="a"), name, **who))
    told.off("a", "cancelled", 100)
    lines = explained(reading_of(told), story_of(told, "a")).history
    assert [(one.what, one.detail) for one in lines if "cancel" in one.what] == [
        ("asked to cancel", "by ann: enough"),
        ("cancelled", ""),
    ]


async def test_a_scheduler_that_leads_another_cell_is_not_heard_of_this_one(told: Teller) -> None:
    clock = PacedClock(START_S, None)
    bus = await on_a_bus(told, clock=clock)
    word = CellState(online=True, leader="other", leader_epoch=1, at_s=told.now_s)
    alone = await read_bus(bus, "default")
    await clock.run_until(told.now_s + 3600.0)
    await bus.publish(Message(CELLS.name, "other", encode(cell_state(word, cell="other"))))
    assert (await read_bus(bus, "default")).heard_s == alone.heard_s


@pytest.mark.parametrize(
    ("job", "title", "who"),
    [
        ("waiter", "who has what it wants", "grown, mover"),
        ("victim", "ahead of it", "waiter"),
        ("mover", "lost to", "serving"),
    ],
)
def test_who_may_see_a_part_is_told_as_what_others_were_ahead(
    told: Teller, job: str, title: str, who: str
) -> None:
    answer = Answer.of(reading_of(told), story_of(told, job))
    assert answer is not None
    document = orjson.loads(orjson.dumps(why_document(answer)))
    assert f"  {title}: {who}\n" in plain_why(document, 400)
    assert title.capitalize() in plain_panel(answer, 400)


def test_a_job_that_has_left_a_node_that_goes_back_is_not_told_to_be_on_it(told: Teller) -> None:
    mover = told.state.jobs["mover"]
    (row,) = jobs_table(reading_of(told), [mover], {}).jobs
    assert (row.state, row.why_in_short) == ("running", "its node went back")


def test_a_job_waits_for_nodes_while_none_is_there_whatever_was_the_reason_before() -> None:
    told = Teller()
    told.feed(job("a"))

    def said() -> tuple[str, str]:
        reading = reading_of(told)
        row = jobs_table(reading, [told.state.jobs["a"]], {}).jobs[0]
        answer = Answer.of(reading, story_of(told, "a"))
        assert answer is not None
        given = answer.given
        return "" if given is None else given.reason.rule, row.why_in_short

    assert said() == ("gang.no_node", "no node is in contact")
    told.feed(request_of(told.now_s, PauseCell(what="starts"), "r1"))
    assert said()[0] != "gang.no_node"
    told.feed(request_of(told.now_s, ResumeCell(what="starts"), "r2"))
    told.feed(node("n0", "train", "training"))
    told.decides(Reason("a", "waits", "gang.capacity"))
    assert said() == ("gang.capacity", "too few GPUs free")
    told.feed(NodeDied(node="n0", reason="power"))
    assert said() == ("gang.no_node", "no node is in contact")
