"""What came of a replay, for people and for programs."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from console.output import out, plain, tell
from explain.journal_lines import decision_lines, fields, line_document, told
from explain.moments import day_clock, duration
from explain.shares import counted
from scheduler.compare import Comparison
from scheduler.replay import Difference, Result
from scheduler.story import Line, Story

#: Lines of a story shown on each side of a difference.
_STORY_SHOWN = 30
#: The story of the job that a difference is about: as recorded, and as replayed.
Sides = tuple[list[Line], list[Line]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A replay of a log, and what was asked for besides."""

    log: str
    result: Result
    stimuli_per_s: float
    processes: int
    sides: Sides | None
    story: Story | None
    comparison: Comparison | None

    def document(self) -> dict[str, Any]:
        """Give it with JSON types only."""
        result, begin_s = self.result, self.result.begin_s
        document = {
            "log": self.log,
            "decisions": result.decisions,
            "identical": result.identical,
            "first_difference": _difference(result, self.sides),
            "state_hash": result.state_hash,
            "stimuli_per_s": round(self.stimuli_per_s, 1),
            "processes": self.processes,
        }
        if self.comparison is not None:
            document["comparison"] = self.comparison.to_dict()
        if self.story is not None:
            document["story"] = [line_document(line, begin_s) for line in self.story.lines]
        return document

    def show(self) -> None:
        """Print it."""
        show, result = out().print, self.result
        if self.story is not None:
            show(f"[bold]The story of {plain(self.story.subject)}[/bold]")
            for line in self.story.lines:
                text = told(line, result.begin_s, self.story.subject)
                tell(text)
            show()
        if self.comparison is not None:
            _print_comparison(self.comparison.to_dict(), result)
            show()
        if result.first_difference is not None:
            _print_difference(result.first_difference, result, self.sides)
        else:
            span = duration(result.end_s - result.begin_s)
            whose = "" if self.comparison is None else "The log itself, by its own policy: "
            count = counted(result.decisions, "decision")
            what = f"[bold green]Identical[/bold green]: {count} over {span}."
            show(whose + what)
        speed = f"{self.stimuli_per_s:,.0f} stimuli/s"
        if self.processes > 1:
            speed += f" in {self.processes} processes"
        show(f"State hash {result.state_hash}; {speed}.", soft_wrap=True)


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


def _print_difference(difference: Difference, result: Result, sides: Sides | None) -> None:
    show = out().print
    when = day_clock(difference.at_s, result.begin_s)
    show(f"[bold red]Different[/bold red]: decision {difference.number}, {when}, on")
    said = fields(difference.stimulus["data"], result.begin_s)
    tell(f"    {difference.stimulus['kind']} {said}".rstrip())
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
            tell(text)
        if lines:
            show(f"  The story of {difference.job}:", markup=False)
            left_out = len(lines) - _STORY_SHOWN
            if left_out > 0:
                show(f"  ({left_out} earlier lines: --job {difference.job})", markup=False)
            for line in lines[-_STORY_SHOWN:]:
                tell(told(line, result.begin_s, difference.job))
    show()


def _print_comparison(found: dict[str, Any], result: Result) -> None:
    show = out().print
    show(f"[bold]What {plain(found['policy'])} would have decided at each recorded moment[/bold]")
    show("(Plans for the same snapshots are compared; what would have come of them is not.)")
    show(f"{found['cycles']:,} cycles, {found['cycles_differing']:,} of them differ.")
    if found["first"] is not None:
        first = found["first"]
        show(f"First at {day_clock(first['at_s'], result.begin_s)}:")
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
    return f"{counted(place['gpus'], 'GPU')} in {place['pool']}"
