"""A replay in several processes: the stretches of a journal side by side, with the same answer.

One process reads the journal, checks its chain of digests, and folds the recorded facts, which
costs a small part of deciding again. So it knows the state at the end of each stretch: at each
snapshot of the log, which must hold that state, and after `LENGTH` entries at most. The others go
on from these states and decide. Each must come to the state that the next stretch begins from:
then together they have done what one process does that decides from the beginning.
"""

import contextlib
import gc
import hashlib
import multiprocessing
import signal
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait

import orjson

from bus.contract import Record, Unreadable
from scheduler.blame import blamed_on
from scheduler.core.canonical import state_hash, state_to_json
from scheduler.core.restore import state_from_dict
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader, fold
from scheduler.replay import Difference, Replay, Result, entries, nothing, stimuli
from scheduler.snapshots import Snapshots
from schemas.journal import RawEntry

#: The most entries of a stretch.
LENGTH = 5000


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Entries that follow each other, and the states before and after them, by their facts."""

    begins: bytes  #: The state, as `state_to_json` writes it.
    entries: list[RawEntry]  #: Once they are handed out, the first and the last.
    ends: str  #: The hash of the state; empty if there is trouble.
    trouble: Exception | None = None  #: What is wrong with the journal from the last entry on.


@dataclass(frozen=True, slots=True)
class _Decided:
    """What came of deciding a stretch again: the difference if there is one, and the state."""

    difference: Difference | None
    state_hash: str


def verify_aside(
    records: Iterable[Record],
    processes: int,
    *,
    cell: str | None = None,
    until_s: float | None = None,
    length_s: float | None = None,
    snapshots: Iterable[Record] = (),
) -> Result:
    """Replay the journal in several processes; the arguments are those of `replay.verify`.

    Args:
        records: The records of the journal, in order; only this process reads them.
        processes: How many others decide.
        cell: Which cell; None if there is only one.
        until_s: Replay no entry after this moment, in seconds since the Unix epoch.
        length_s: The same, if `until_s` is None, in seconds after the first entry.
        snapshots: The records of the snapshots; each must hold the state that is come to.

    Raises:
        Unreadable: the journal is missing, damaged, incomplete or of a newer version.
        ChildProcessError: one of the processes was killed.
    """
    reader = JournalReader(cell)
    found = entries(records, reader, until_s, length_s)
    cut = _cut(found, reader, Snapshots(snapshots))
    begun = list(islice(cut, 2))  # one alone is not worth a process
    result: Result | None = None
    with _started(processes if len(begun) > 1 else 0) as workers:
        for stretch, decided in _in_order(chain(begun, cut), workers):
            result = _joined(result, reader.cell or "", stretch, decided)
            if not result.identical:
                break
    return nothing(reader) if result is None else result


def _joined(before: Result | None, cell: str, stretch: _Stretch, decided: _Decided) -> Result:
    """Give the result up to the end of a stretch; all was identical before it."""
    difference = decided.difference
    if difference is None and stretch.trouble is not None:
        raise stretch.trouble
    last = stretch.entries[-1]
    number, end_s = last.number, last.at_s
    if difference is not None:
        number, end_s = difference.number, difference.at_s
    elif decided.state_hash != stretch.ends:
        raise Unreadable(
            f"journal entry {number}: the facts recorded up to it make another state than the "
            "same decisions do; replay with --jobs 1, and report this"
        )
    begin_s = stretch.entries[0].at_s if before is None else before.begin_s
    return Result(cell, number + 1, difference, decided.state_hash, begin_s, end_s)


def _cut(
    found: Iterable[RawEntry], reader: JournalReader, snapshots: Snapshots
) -> Iterator[_Stretch]:
    """Fold the entries, and cut them into stretches.

    What is wrong with the journal is handed on with the stretch before: what differs in it comes
    first.
    """
    state, held, ends = ClusterState(), list[RawEntry](), ""
    begins, trouble = state_to_json(state), None
    try:
        for entry in found:
            if not state.number:
                state.cell = reader.cell or ""
                begins = state_to_json(state)
            held.append(entry)
            fold(state, entry)
            if snapshots.check(state, entry.digest) or len(held) == LENGTH:
                after = state_to_json(state)
                yield _Stretch(begins, held, hashlib.sha256(after).hexdigest())
                begins, held = after, []
        if held:
            with blamed_on(held[-1].number):
                ends = state_hash(state)
    except Exception as error:  # noqa: BLE001 - raised in its turn
        trouble = error
    if held or trouble is not None:
        yield _Stretch(begins, held, ends, trouble)


# --- the processes -----------------------------------------------------------------------------


@contextlib.contextmanager
def _started(count: int) -> Iterator[list[Connection]]:
    """Start processes that decide; give the pipe to each. They end with the context."""
    spawn = multiprocessing.get_context("spawn")
    pairs = [spawn.Pipe() for _ in range(count)]
    workers = [spawn.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pairs]
    try:
        if count:
            resource_tracker.ensure_running()  # it unblocks what is blocked when it starts
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for worker, (_, theirs) in zip(workers, pairs, strict=True):
                worker.start()  # it never hears an interrupt: who started it ends it
                theirs.close()  # or nobody would notice that the worker is gone
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield [ours for ours, _ in pairs]
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise ChildProcessError(
            "a process that replayed a part of the log was killed, perhaps for want of memory; "
            "try --jobs 1"
        ) from error
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()
                worker.join()


def _in_order(
    stretches: Iterable[_Stretch], workers: Sequence[Connection]
) -> Iterator[tuple[_Stretch, _Decided]]:
    """Have each stretch decided by the next worker that is free, or here; give them in order."""
    idle, busy = list(workers), dict[Connection, int]()
    given, found = dict[int, _Stretch](), dict[int, _Decided | Exception]()
    turn = 0

    def collect() -> None:
        for pipe in wait(busy):
            assert isinstance(pipe, Connection)
            found[busy.pop(pipe)] = pipe.recv()
            idle.append(pipe)

    def ready() -> Iterator[tuple[_Stretch, _Decided]]:
        nonlocal turn
        while turn in found:
            decided = found.pop(turn)
            if isinstance(decided, Exception):
                raise decided
            yield given.pop(turn), decided
            turn += 1

    for number, stretch in enumerate(stretches):  # the next one is cut while the others decide
        if not workers:
            yield stretch, _decide(stretch.begins, stretch.entries)
            continue
        while not idle:
            collect()
        yield from ready()
        pipe, held = idle.pop(), stretch.entries
        pipe.send((stretch.begins, held))
        busy[pipe] = number
        given[number] = replace(stretch, begins=b"", entries=held[:1] + held[-1:])
    while busy:
        collect()
        yield from ready()


def _serve(pipe: Connection) -> None:
    """Be one of the processes."""
    gc.set_threshold(200_000, 20, 100)  # many small objects, and hardly a cycle among them
    _answer(pipe)


def _answer(pipe: Connection) -> None:
    """Decide stretches until nobody asks any more."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            begins, found = pipe.recv()
            answer: _Decided | Exception
            try:
                answer = _decide(begins, found)
            except Exception as error:  # noqa: BLE001 - raised where the answers are put in order
                error.add_note(traceback.format_exc())
                answer = error
            pipe.send(answer)


def _decide(begins: bytes, found: Iterable[RawEntry]) -> _Decided:
    replay = Replay(state_from_dict(orjson.loads(begins)))
    for entry, stimulus in stimuli(found):
        difference = replay.decide(entry, stimulus)
        if difference is not None:
            return _Decided(difference, state_hash(replay.engine.state))
    return _Decided(None, state_hash(replay.engine.state))
