"""`tidegate replay`: decide a whole log again, and say whether everything came out the same."""

import gc
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import orjson
import typer

from bus.clock import SystemClock
from bus.logfile import ReadLog
from console.kafka import cells_read, opened_log, resolved, told_of_cell
from console.moment import When, moment_or_length
from console.output import JsonPath, emit_json, fail, out, say, tell
from console.replayed import Answer, Sides
from explain.journal_lines import decision_lines
from scheduler.blame import blamed_on
from scheduler.compare import Comparison
from scheduler.core.record import decision_to_dict
from scheduler.core.stimuli import Decision
from scheduler.journal import JournalReader
from scheduler.policies.registry import make_policy
from scheduler.replay import Result, Watch, verify
from scheduler.story import Story
from scheduler.stretches import LENGTH, verify_aside
from schemas.journal import RawEntry
from schemas.topics import JOURNAL, SNAPSHOTS


class _Stopped(Exception):
    """The user has seen enough."""


def replay(
    log: Annotated[str, typer.Argument(help="A log: SQLite, .jsonl, .jsonl.zst or kafka:.")],
    until: Annotated[
        str | None,
        typer.Option(
            help="Stop after this: seconds or 6h30m since the beginning, a time, d0 06:30."
        ),
    ] = None,
    step: Annotated[bool, typer.Option("--step", help="Show every decision, one by one.")] = False,
    job: Annotated[str | None, typer.Option(help="Tell the story of this job.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="With --diff: the policy to compare with.")
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Ask --policy at each recorded moment; compare plans.")
    ] = False,
    cell: Annotated[
        str | None,
        typer.Option(
            help="Only this cell; if not given, each of the log, one after the other. With --step, "
            "--job or --diff it is always one, over Kafka the first."
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=0,
            max=256,
            help="Processes that decide, each a stretch of the log; 0: one for each core that has "
            "enough to do. Each takes a second to start, so a short log gains little. With --step, "
            "--job or --diff it is always one.",
        ),
    ] = 0,
    json_path: JsonPath = None,
) -> None:
    """Decide a recorded log again: the same decisions, or the first difference.

    The snapshots in the log must hold the states that the decisions come to.

    Exit code 0: identical. 1: a decision differs. 2: the log or an option cannot be used.

    Example: tidegate replay run.db --until 6h30m
    """
    quiet = json_path == "-"
    if quiet and step:
        fail("--step prints decisions; give --json a file, not -.")
    comparison = _comparison(policy, diff)
    end = moment_or_length("--until", until)
    story = None if job is None else Story(job)
    stepper = _Stepper() if step else None

    def watch(entry: RawEntry, decision: Decision) -> None:
        if story is not None:
            with blamed_on(entry.number):
                story.take(entry)
        if stepper is not None:
            stepper.show(entry, decision)

    try:
        log = resolved(log)
        watched = watch if step or job else None
        alone = watched is not None or comparison is not None
        answers: list[Answer] = []
        unreadable: list[str | None] = []
        places = [cell] if alone else cells_read(log, cell)
        for place in places:
            told = told_of_cell(place if len(places) > 1 else None, unreadable)
            with told, opened_log(log, place) as opened:
                if place != cell and JOURNAL.name not in opened.head.topics:
                    say(f"Cell {place} has no journal: nothing was decided there.")
                    continue
                opened.verify()
                name = str(opened.path)
                used = 1 if alone else jobs or _cores(opened)
                for one in [place] if alone or place is not None else _cells(opened):
                    result, speed = _timed(opened, one, end, comparison, watched, used)
                    _check(comparison)
                    if not result.decisions:
                        continue  # a cell that began later
                    if story is not None and not story.lines:
                        fail(f"--job: {job} is nowhere in this log; `tidegate jobs` lists jobs.")
                    sides = _sides(opened, result)
                    answers.append(Answer(name, result, speed, used, sides, story, comparison))
    except _Stopped:
        raise typer.Exit(0) from None
    if not answers and unreadable:
        raise typer.Exit(2)
    if not answers and until is None:
        fail(f"{log} has no journal: nothing was decided, nothing to replay.")
    if not answers:
        fail(f"--until: {until} is before the log begins; give a later moment.")
    several = len(answers) + len(unreadable) > 1
    _tell(answers, json_path, quiet=quiet, several=several)
    if unreadable:
        raise typer.Exit(2)
    if not all(answer.result.identical for answer in answers):
        raise typer.Exit(1)


def _cells(opened: ReadLog) -> list[str | None]:
    """List the cells of a log, in the order in which they begin; [None] where there is none."""
    return list(dict.fromkeys(record.key for record in opened.records(JOURNAL.name))) or [None]


def _tell(answers: Sequence[Answer], json_path: str | None, *, quiet: bool, several: bool) -> None:
    if not quiet:
        for answer in answers:
            if several:
                out().print(f"Cell {answer.result.cell}:", style="bold")
            answer.show()
    if json_path is not None:
        if not several:
            emit_json(answers[0].document(), json_path)
            return
        cells = [{"cell": one.result.cell, **one.document()} for one in answers]
        emit_json({"cells": cells}, json_path)


# --- options -----------------------------------------------------------------------------------


def _comparison(policy: str | None, diff: bool) -> Comparison | None:
    if diff != (policy is not None):
        fail("--policy and --diff go together: --policy NAME --diff.")
    if policy is None:
        return None
    try:
        return Comparison(make_policy, policy)
    except ValueError as error:
        fail(f"--policy: {error}")


def _check(comparison: Comparison | None) -> None:
    """End if the policy that the log is compared with could not decide."""
    if comparison is None or comparison.error is None:
        return
    error = comparison.error
    if isinstance(error, ModuleNotFoundError):  # some import when first asked
        fail(f"--policy: {comparison.line} needs {error.name}; install `tidegate[sim]`.")
    fail(
        f"--policy: {comparison.line} cannot decide: {type(error).__name__}: {error}; "
        "choose another, or other options."
    )


# --- the work ----------------------------------------------------------------------------------


class _Stepper:
    """Prints decisions one by one; asks before each next one if somebody is there to answer."""

    def __init__(self) -> None:
        self._begin_s: float | None = None
        self._asks = sys.stdin.isatty() and sys.stdout.isatty()

    def show(self, entry: RawEntry, decision: Decision) -> None:
        """Print a decision."""
        if self._begin_s is None:
            self._begin_s = entry.at_s
        written = orjson.loads(orjson.dumps(decision_to_dict(decision)))
        stimulus = orjson.loads(entry.stimulus)
        for line in decision_lines(entry.number, entry.at_s, stimulus, written, self._begin_s):
            tell(line)
        if self._asks:
            try:
                answer = input("Enter: next   q: stop > ")
            except EOFError:
                raise _Stopped from None
            if answer.strip().lower() == "q":
                raise _Stopped


def _timed(
    opened: ReadLog,
    cell: str | None,
    end: When,
    comparison: Comparison | None,
    watch: Watch | None,
    jobs: int,
) -> tuple[Result, float]:
    """Replay; give the result and the stimuli per second."""
    journal, snapshots = opened.records(JOURNAL.name), opened.records(SNAPSHOTS.name)
    clock = SystemClock()
    began_s = clock.now_s()
    # A replay makes many small objects and hardly any cycles: looking for them costs a tenth.
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    until_s = end.at_s
    if end.clock_s is not None:
        until_s = end.since(_begin_s(opened, cell), 0.0)
    limits: dict[str, Any] = {"cell": cell, "until_s": until_s, "length_s": end.length_s}
    try:
        if jobs > 1:
            result = verify_aside(journal, jobs, snapshots=snapshots, **limits)
        else:
            policies = make_policy if comparison is None else comparison.policy
            result = verify(journal, policies=policies, watch=watch, snapshots=snapshots, **limits)
    finally:
        gc.set_threshold(*thresholds)
    took_s = max(clock.now_s() - began_s, 1e-9)
    return result, result.decisions / took_s


def _begin_s(opened: ReadLog, cell: str | None) -> float:
    """Give when the journal of a cell begins; of one that has none, any moment will do."""
    reader = JournalReader(cell)
    for record in opened.records(JOURNAL.name):
        if (entry := reader.read(record)) is not None:
            return entry.at_s
    return 0.0


def _cores(opened: ReadLog) -> int:
    """Give the number of cores that we may use, but no more than the log has work for."""
    able = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if able else os.cpu_count() or 1
    return min(cores, 1 + opened.head.topics.get(JOURNAL.name, 0) // LENGTH)


def _sides(opened: ReadLog, result: Result) -> Sides | None:
    difference = result.first_difference
    if difference is None or difference.job is None:
        return None
    reader, story = JournalReader(result.cell), Story(difference.job)
    for record in opened.records(JOURNAL.name):
        entry = reader.read(record)
        if entry is None:
            continue
        if entry.number >= difference.number:
            break
        story.take(entry)
    shared = story.lines
    number, at_s, stimulus = difference.number, difference.at_s, difference.stimulus
    with blamed_on(number):
        return (
            shared + story.told(number, at_s, stimulus, difference.recorded),
            shared + story.told(number, at_s, stimulus, difference.replayed),
        )
