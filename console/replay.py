"""`tidegate replay`: decide a whole log again, and say whether everything came out the same."""

import gc
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import orjson
import typer

from bus.clock import SystemClock
from bus.logfile import ReadLog
from bus.reading import open_log
from console.kafka import resolved
from console.output import JsonPath, duration, emit_json, fail, out, plain, seconds_of
from console.telling import after, decision_lines, fields, line_document, told
from scheduler.compare import Comparison
from scheduler.core.record import decision_to_dict
from scheduler.core.stimuli import Decision
from scheduler.policies.registry import make_policy
from scheduler.replay import Difference, JournalReader, Result, Watch, verify
from scheduler.story import Line, Story
from schemas.journal import RawEntry
from schemas.topics import JOURNAL

#: Lines of a story shown on each side of a difference.
_STORY_SHOWN = 30


class _Stopped(Exception):
    """The user has seen enough."""


def replay(
    log: Annotated[str, typer.Argument(help="A log: SQLite, .jsonl, .jsonl.zst or kafka:.")],
    until: Annotated[
        str | None,
        typer.Option(help="Stop after this: seconds or 6h30m since the beginning, or a time."),
    ] = None,
    step: Annotated[bool, typer.Option("--step", help="Show every decision, one by one.")] = False,
    job: Annotated[str | None, typer.Option(help="Tell the story of this job.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="With --diff: the policy to compare with.")
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Ask --policy at each recorded moment; compare plans.")
    ] = False,
    cell: Annotated[str | None, typer.Option(help="Which cell, if the log holds several.")] = None,
    json_path: JsonPath = None,
) -> None:
    """Decide a recorded log again: the same decisions, or the first difference.

    Exit code 0: identical. 1: a decision differs. 2: the log or an option cannot be used.

    Example: tidegate replay run.db --until 6h30m
    """
    quiet = json_path == "-"
    if quiet and step:
        fail("--step prints decisions; give --json a file, not -.")
    comparison = _comparison(policy, diff)
    until_s, length_s = _moment(until)
    story = None if job is None else Story(job)
    stepper = _Stepper() if step else None

    def watch(entry: RawEntry, decision: Decision) -> None:
        if story is not None:
            story.take(entry)
        if stepper is not None:
            stepper.show(entry, decision)

    try:
        with open_log(resolved(log)) as opened:
            opened.verify()
            name = str(opened.path)
            watched = watch if step or job else None
            result, speed = _timed(opened, cell, until_s, length_s, comparison, watched)
            if not result.decisions:
                fail(f"--until: {until} is before the log begins; give a later moment.")
            if story is not None and not story.lines:
                fail(f"--job: {job} is nowhere in this log; `tidegate jobs` lists jobs.")
            sides = _sides(opened, result)
    except _Stopped:
        raise typer.Exit(0) from None
    document = _document(name, result, speed, sides)
    if comparison is not None:
        document["comparison"] = comparison.to_dict()
    if story is not None:
        document["story"] = [line_document(line, result.begin_s) for line in story.lines]
    if not quiet:
        _print(result, speed, story, sides, comparison)
    if json_path is not None:
        emit_json(document, json_path)
    if not result.identical:
        raise typer.Exit(1)


# --- options -----------------------------------------------------------------------------------


def _comparison(policy: str | None, diff: bool) -> Comparison | None:
    if diff != (policy is not None):
        fail("--policy and --diff go together: --policy NAME --diff.")
    if policy is None:
        return None
    try:
        return Comparison(make_policy, make_policy(policy))
    except ValueError as error:
        fail(f"--policy: {error}")


def _moment(text: str | None) -> tuple[float | None, float | None]:
    """Read `--until`: a moment in seconds since the Unix epoch, or seconds since the beginning."""
    if text is None:
        return None, None
    try:
        return None, seconds_of(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"--until: {text!r} is no moment; write seconds or 6h30m since the log's beginning, "
            "or a time such as 2026-01-05T06:30:00Z."
        )
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), None


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
            out().print(line, markup=False, soft_wrap=True)
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
    until_s: float | None,
    length_s: float | None,
    comparison: Comparison | None,
    watch: Watch | None,
) -> tuple[Result, float]:
    """Replay; give the result and the stimuli per second."""
    clock = SystemClock()
    began_s = clock.now_s()
    # A replay makes many small objects and hardly any cycles: looking for them costs a tenth.
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        result = verify(
            opened.records(JOURNAL.name),
            cell=cell,
            until_s=until_s,
            length_s=length_s,
            policies=make_policy if comparison is None else comparison.policy,
            watch=watch,
        )
    finally:
        gc.set_threshold(*thresholds)
    took_s = max(clock.now_s() - began_s, 1e-9)
    return result, result.decisions / took_s


#: The story of the job that a difference is about: as recorded, and as replayed.
Sides = tuple[list[Line], list[Line]]


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
    return (
        shared + story.told(number, at_s, stimulus, difference.recorded),
        shared + story.told(number, at_s, stimulus, difference.replayed),
    )


# --- the answer --------------------------------------------------------------------------------


def _document(name: str, result: Result, speed: float, sides: Sides | None) -> dict[str, Any]:
    return {
        "log": name,
        "decisions": result.decisions,
        "identical": result.identical,
        "first_difference": _difference(result, sides),
        "state_hash": result.state_hash,
        "stimuli_per_s": round(speed, 1),
    }


def _difference(result: Result, sides: Sides | None) -> dict[str, Any] | None:
    difference = result.first_difference
    if difference is None:
        return None
    recorded, replayed = sides or ([], [])
    return {
        "number": difference.number,
        "at_s": difference.at_s,
        "after_s": difference.at_s - result.begin_s,
        "stimulus": difference.stimulus,
        "recorded": difference.recorded,
        "replayed": difference.replayed,
        "job": difference.job,
        "story": {
            "recorded": [line_document(line, result.begin_s) for line in recorded],
            "replayed": [line_document(line, result.begin_s) for line in replayed],
        },
    }


def _print(
    result: Result,
    speed: float,
    story: Story | None,
    sides: Sides | None,
    comparison: Comparison | None,
) -> None:
    show = out().print
    if story is not None:
        show(f"[bold]The story of {plain(story.subject)}[/bold]")
        for line in story.lines:
            show(told(line, result.begin_s, story.subject), markup=False, soft_wrap=True)
        show()
    if comparison is not None:
        _print_comparison(comparison.to_dict(), result)
        show()
    if result.first_difference is not None:
        _print_difference(result.first_difference, result, sides)
    else:
        span = duration(result.end_s - result.begin_s)
        show(f"[bold green]Identical[/bold green]: {result.decisions:,} decisions over {span}.")
    show(f"State hash {result.state_hash}; {speed:,.0f} stimuli/s.", soft_wrap=True)


def _print_difference(difference: Difference, result: Result, sides: Sides | None) -> None:
    show = out().print
    when = after(difference.at_s, result.begin_s)
    show(f"[bold red]Different[/bold red]: decision {difference.number}, {when}, on")
    said = fields(difference.stimulus["data"], result.begin_s)
    show(f"    {difference.stimulus['kind']} {said}".rstrip(), markup=False, soft_wrap=True)
    recorded, replayed = sides or ([], [])
    for name, lines, decision in (
        ("Recorded", recorded, difference.recorded),
        ("Replayed", replayed, difference.replayed),
    ):
        show(f"\n[bold]{name}[/bold]")
        written = decision_lines(
            difference.number, difference.at_s, difference.stimulus, decision, result.begin_s
        )
        for text in written if "error" in decision else written[1:]:
            show(text, markup=False, soft_wrap=True)
        if lines:
            show(f"  The story of {difference.job}:", markup=False)
            left_out = len(lines) - _STORY_SHOWN
            if left_out > 0:
                show(f"  ({left_out} earlier lines: --job {difference.job})", markup=False)
            for line in lines[-_STORY_SHOWN:]:
                show(told(line, result.begin_s, difference.job), markup=False, soft_wrap=True)
    show()


def _print_comparison(found: dict[str, Any], result: Result) -> None:
    show = out().print
    show(f"[bold]What {plain(found['policy'])} would have decided at each recorded moment[/bold]")
    show("(Plans for the same snapshots are compared; what would have come of them is not.)")
    show(f"{found['cycles']:,} cycles, {found['cycles_differing']:,} of them differ.")
    if found["first"] is not None:
        first = found["first"]
        show(f"First at {after(first['at_s'], result.begin_s)}:")
        for change in islice(first["jobs"], 10):
            show(
                f"    {change['job']}: recorded {_place(change['recorded'])}, "
                f"{found['policy']} {_place(change['other'])}",
                markup=False,
            )
        for change in islice(first["nodes"], 10):
            by = found["policy"] if change["by"] == "other" else "recorded"
            show(f"    {change['verb']} {change['node']}: only {by}", markup=False)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found["differences"].items())
    show(f"Differences over {found['jobs_differing']:,} jobs: {kinds}.")
    for entry in found["jobs"][:10]:
        tally = ", ".join(f"{kind} {count}" for kind, count in entry.items() if kind != "job")
        show(f"    {entry['job']}: {tally}", markup=False)
    for verb, name in (("lend", "Lent"), ("reclaim", "Reclaimed")):
        counts = found[verb]
        show(
            f"{name}: {counts['both']:,} by both, {counts['only_recorded']:,} only as recorded, "
            f"{counts['only_other']:,} only by {plain(found['policy'])}."
        )


def _place(place: dict[str, Any]) -> str:
    if not place["gpus"]:
        return "no GPUs"
    return f"{place['gpus']} GPU{'' if place['gpus'] == 1 else 's'} in {place['pool']}"
