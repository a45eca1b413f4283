"""What waits for the bus: which goes first when there is no room, and what never goes."""

from pathlib import Path

from bus.contract import Message
from runtime.addresses import addressed
from runtime.spool import DropPriority, Spool, SpooledMessage, SpoolLimit
from runtime.store import AgentStore
from schemas.codec import encode, event
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CommandAcknowledged,
    EventData,
    InferenceLoad,
    JobProgressed,
    NodeBorn,
    NodeMeasured,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from tests.builders import load, node_born, progressed
from tests.desk import measured


def put(row: int, data: EventData) -> SpooledMessage:
    envelope = event(data, source="/agents/a", sequence=row, bootid=0, time_s=1.0)
    topic, key, loss = addressed(data, "default")
    return SpooledMessage.of(row, Message(topic, key, encode(envelope)), loss)


def committed(step: int, job: str = "j") -> CheckpointCommitted:
    return CheckpointCommitted(job=job, epoch=1, step=step, uri="u", size_mib=1, cost_s=1.0)


def rows(spool: Spool) -> list[int]:
    return [waiting.row for waiting in spool.next(1_000_000)]


def test_what_goes_first_goes_first() -> None:
    words: list[EventData] = [
        committed(10),
        progressed(11),
        CommandAcknowledged(command="c", outcome="done"),
        progressed(12),
        measured("n0"),
        committed(20),
        CheckpointFailed(job="j", epoch=1, error="e"),
        progressed(13, "other"),
        progressed(14),
        measured("n0"),
    ]
    spool = Spool(SpoolLimit(messages=len(words)))
    for row, data in enumerate(words):
        spool.add(put(row, data))
    stop = WorkerStopped(job="j", epoch=1, node="n", gpus=[0], reason="preempted", step=20)
    gone = []
    before = set(range(len(words)))
    for row in range(10, 16):
        spool.add(put(row, stop))
        gone += sorted(before - set(rows(spool)))
        before &= set(rows(spool))
    assert gone == [4, 9, 1, 3, 0], "telemetry, older progress, the older checkpoint; no more"
    assert spool.dropped == 5
    assert len(spool) == 11, "what must not be dropped may exceed the limit"


def test_what_was_published_supersedes_nothing() -> None:
    spool = Spool(SpoolLimit(messages=2))
    spool.add(put(0, progressed(1)))
    spool.sent(0)
    spool.add(put(1, progressed(2)))
    spool.add(put(2, committed(1)))
    spool.add(put(3, committed(2)))
    assert rows(spool) == [1, 3]


def test_each_kind_of_word_has_its_place() -> None:
    worker = {"job": "j", "epoch": 1, "node": "n", "gpus": [0], "step": 0}
    expected: dict[type[EventData], DropPriority] = {
        NodeMeasured: DropPriority.TELEMETRY,
        InferenceLoad: DropPriority.TELEMETRY,
        JobProgressed: DropPriority.PROGRESS,
        CheckpointCommitted: DropPriority.STANDING,
        CheckpointFailed: DropPriority.STANDING,
        NodeBorn: DropPriority.STANDING,
    }
    words: list[EventData] = [
        measured("n0"),
        load(),
        progressed(1),
        committed(1),
        CheckpointFailed(job="j", epoch=1, error="e"),
        node_born("n0"),
        CommandAcknowledged(command="c", outcome="done"),
        WorkerStarted.model_validate(worker),
        WorkerStopped.model_validate({**worker, "reason": "preempted"}),
        WorkerFailed.model_validate({**worker, "error": "e"}),
    ]
    for data in words:
        assert addressed(data, "c")[2] == expected.get(type(data), DropPriority.NEVER), data


def test_after_a_restart_the_same_goes_first(tmp_path: Path) -> None:
    once: list[EventData] = [progressed(1), committed(1), node_born("n0")]
    words = [*once, progressed(2), committed(2), node_born("n0")]
    store = AgentStore.open(tmp_path / "a.db")
    store.write({}, [put(store.next_row(), data) for data in words], [])
    store.close()
    store = AgentStore.open(tmp_path / "a.db")
    assert rows(Spool(SpoolLimit(messages=3), store.load_spool())) == [3, 4, 5]
    store.close()


def test_the_file_is_bounded_whatever_passes_through(tmp_path: Path) -> None:
    store, limit = AgentStore.open(tmp_path / "a.db"), 64 * 1024
    spool = Spool(SpoolLimit(1_000_000, limit))
    sizes, passed = [], 0
    for turn in range(8000):
        data = progressed(turn) if turn % 60 == 0 else measured("n0")
        waiting = put(store.next_row(), data)
        store.write({}, [waiting], spool.take_freed())
        spool.add(waiting)
        passed += waiting.size_bytes
        assert spool.size_bytes <= limit
        if passed > limit:
            sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert passed > 30 * limit
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    (size,) = store._connection.execute("PRAGMA page_size").fetchone()
    assert pages * size < 3 * limit, "freed pages are used again"
    assert max(sizes) < 3 * limit + 5 * 1024 * 1024, "and the log beside it begins anew"
    assert sizes[-1] < 1.05 * sizes[len(sizes) // 2]
    store.close()
