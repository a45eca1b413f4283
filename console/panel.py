"""How the answer of `why` looks: one panel, readable at 80 columns."""

from collections.abc import Mapping
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from console.bars import progress
from explain.answer import Answer
from explain.history import Line
from explain.metrics import in_words
from explain.moments import day_clock, duration
from explain.progress import ending, length_line, percent, share_done, speeds_of
from explain.shares import counted, few
from explain.spans import because, ended, longest, missed, missed_because
from explain.story import Event, Given, Reclaim
from explain.wait_end import end_of, wait_end_of
from explain.wording import WORTH, Tone, Wording, done, joined, lost_title, tells_worth
from explain.work import UNIT
from scheduler.core.state import Job, Lender
from scheduler.core.transitions import HOLDING, TERMINAL, JobState

TONES: Mapping[Tone, str] = {"good": "green", "bad": "red", "change": "yellow", "quiet": "dim"}
MARKS: Mapping[Tone, str] = {"good": "●", "bad": "■", "change": "◆", "quiet": "○"}
STATE_TONES = {
    "queued": "yellow",
    "running": "green",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
    "refused": "red",
}
#: Lines of history shown; the middle of a longer one is left out.
LINES_MOST = 16
#: Sizes shown with how fast it is at each; all are in `--json`.
SIZES_MOST = 12


def plain_panel(answer: Answer, width: int) -> str:
    """Lay the answer out as plain text, so many columns wide."""
    console = Console(
        file=StringIO(), width=width, color_system=None, emoji=False, highlight=False,
        force_terminal=False, legacy_windows=False,
    )  # fmt: skip
    with console.capture() as captured:
        console.print(panel(answer))
    return captured.get()


def panel(answer: Answer) -> RenderableType:
    """Lay the answer out."""
    wording = Wording(answer.reading.origin_s, answer.work)
    parts: list[RenderableType] = [*_head(answer, wording)]
    given = answer.given
    if answer.failure:
        # Why it once had GPUs is no answer to why it failed.
        parts += [*_section("Why"), Text(f"Failed for good: {answer.failure.rstrip('.')}.")]
    elif given is not None and answer.state not in ("completed", "cancelled"):
        parts += _because(answer, given, wording)
    if answer.asked:
        parts += _section("What people asked for")
        parts += [Text(f"▸ {_capital(said)}.") for said in answer.asked]
    parts += _speeds(answer)
    if answer.output is not None:
        who, folder = answer.output
        where = f"tidegate logs {answer.story.job} prints it: {folder}, below "
        where += f"agent.workers.folder of {joined(who)}."
        parts += [*_section("Where its output is"), Text(where)]
    if (stored := answer.story.checkpoint) is not None:
        where = f"tidegate fetch {answer.story.job} copies its files here: step {stored.step:,}, "
        where += f"{stored.size_mib} MiB, in {stored.uri}."
        parts += [*_section("Its newest checkpoint"), Text(where)]
    if answer.outputs is not None:
        parts += [*_section("Its outputs"), Text(f"{_capital(str(answer.outputs))}.")]
    if missed(answer):
        parts += [*_section("Why it missed its deadline"), *_missed(answer, wording)]
    parts += _section("History")
    parts.append(_history(answer, wording))
    title = Text.assemble(("why ", "dim"), (answer.story.job, "bold"))
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=Text(f"{answer.reading.as_of()}, from the journal", "dim"),
        subtitle_align="right",
        border_style="cyan",
        padding=(1, 2),
    )


def _section(title: str) -> list[RenderableType]:
    return [Text(), Text(title, "bold cyan")]


def _table_of_moments(style: str = "") -> Table:
    """Begin a table of when, what, in this style, and more of it."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, style=style)
    table.add_column()
    return table


# --- what it is doing ----------------------------------------------------------------------------


def _head(answer: Answer, wording: Wording) -> list[RenderableType]:
    spec, job = answer.spec, answer.job
    said = Text()
    said.append(f" {answer.state.upper()} ", f"reverse {STATE_TONES.get(answer.state, 'cyan')}")
    said.append(" " + _doing(answer))
    parts: list[RenderableType] = [said]
    if spec:
        low, high = spec["gpus_min"], spec["gpus_max"]
        sizes = counted(low, "GPU") if low == high else f"{low} to {high} GPUs"
        asked = f"{spec['tenant']} · {spec['model']} · asks for {sizes}"
        if spec["priority"]:
            asked += f" · priority {spec['priority']}"
        if not spec["edge_allowed"]:
            asked += " · not at the edge"
        parts.append(Text(asked, "dim"))
    if job is not None and job.state not in TERMINAL:
        parts += [_progress(answer, job, wording), Text(length_line(job), "dim")]
    if job is not None and job.metrics:
        parts.append(Text(f"Reports {in_words(job.metrics)}.", "dim"))
    return parts


def _doing(answer: Answer) -> str:
    job = answer.job
    since = f"since {day_clock(answer.since_s, answer.reading.origin_s)}"
    for_s = f"for {duration(answer.now_s - answer.since_s)}"
    over = ended(answer)
    if job is None or over is not None:
        return over or ""
    where = f"{counted(job.size, 'GPU')} of {job.pool} ({', '.join(sorted(job.allocation))})"
    if job.state is JobState.QUEUED:
        if job.target is not None:
            count = sum(map(len, job.target.values()))
            held = f"{counted(count, 'GPU')} of {job.target_pool} ({', '.join(sorted(job.target))})"
            return f"{for_s}, {since}; {held} are held for it until all are free"
        return f"{for_s}, {since}"
    if job.state is JobState.MIGRATING:
        gpus = counted(sum(map(len, (job.target or {}).values())), "GPU")
        return f"{for_s}: off its GPUs, {gpus} of {job.target_pool} are held for it"
    if job.state in (JobState.CHECKPOINTING, JobState.STOPPING):
        saving = "saves its work and leaves" if job.state is JobState.CHECKPOINTING else "leaves"
        return f"{saving} {where}, {since} ({job.stop_reason or 'told to'})"
    return f"on {where}, {since} ({duration(answer.now_s - answer.since_s)})"


def _progress(answer: Answer, job: Job, wording: Wording) -> Text:
    text = progress(share_done(job, answer.now_s), 24)
    text.append(f" {percent(job, answer.now_s):>4}", "bold")
    if job.step:
        text.append(f" {wording.work.place(job.step)}", "dim")
        age_s = answer.now_s - job.step_at_s
        if job.state in HOLDING and age_s >= 1.0:
            text.append(f" was recorded {duration(age_s)} ago", "dim")
    for piece in ending(job, answer.now_s, wording.origin_s):
        text.append(piece.text, None if piece.tone is None else TONES[piece.tone])
    return text


# --- why -----------------------------------------------------------------------------------------


def _because(answer: Answer, given: Given, wording: Wording) -> list[RenderableType]:
    reason = given.reason
    verb = done(reason)
    when = day_clock(given.at_s, wording.origin_s)
    parts = _section("Why")
    said = Text.assemble((verb.capitalize(), "bold"), f": {wording.sentence(reason)}.")
    said.append(f"  {reason.rule}, {when}", "dim")
    parts.append(said)
    parts += [_reclaim(one, wording) for one in answer.reclaims(reason)]
    if answer.disobeyed and answer.loss is None:
        parts.append(Text(f"▸ {answer.disobeyed}"))
    if reason.figures:
        parts += [Text(), _figures(given, wording)]
    if tells_worth(figure.name for figure in reason.figures):
        parts += [Text(), Text(WORTH, "dim")]
    if answer.loss is not None:
        parts += [*_section("How it lost its GPUs"), *_loss(answer, answer.loss, wording)]
    if reason.lost_to:
        parts += _section(_capital(lost_title(reason.verb, reason.rule)))
        parts.append(_rivals(answer, given))
    if reason.needs:
        parts += _section("What would have to change")
        parts += [Text(f"▸ {_capital(wording.need(need))}") for need in reason.needs]
        if (end := wait_end_of(answer)) is not None:
            parts.append(Text(f"▸ {end.words(day_clock(end.at_s, wording.origin_s))}"))
    earlier = _earlier(answer, given, wording)
    if earlier is not None:
        parts += [*_section("Decided before"), earlier]
    return parts


def _loss(answer: Answer, loss: Event, wording: Wording) -> list[RenderableType]:
    when = day_clock(loss.at_s, wording.origin_s)
    said = Text()
    if loss.reason is not None:
        said.append(done(loss.reason).capitalize(), "bold")
        said.append(f": {wording.sentence(loss.reason)}.")
    else:
        said.append(f"{loss.fields['reason']}", "bold").append(f" at {when}.")
    if answer.disobeyed:
        said.append(f" {answer.disobeyed}")
    elif loss.fields.get("detail"):
        said.append(f" {loss.fields['detail']}.")
    if loss.reason is not None:
        said.append(f"  {loss.reason.rule}, {when}", "dim")
    return [said, *(_reclaim(one, wording) for one in loss.reclaims)]


def _reclaim(reclaim: Reclaim, wording: Wording) -> RenderableType:
    text = Text("↳ ", "yellow")
    due = day_clock(reclaim.due_s, wording.origin_s)
    text.append(f"{reclaim.node}", "bold")
    text.append(f" was called back at {day_clock(reclaim.at_s, wording.origin_s)}, due {due}")
    if reclaim.reason is not None:
        text.append(f": {wording.sentence(reclaim.reason)}")
        figures = [f for f in reclaim.reason.figures if f.value > 0]
        facts = {f.name: wording.value(f.name, f.value) for f in figures}
        if {"needed_gpus", "headroom_gpus"} <= facts.keys():
            now, room = facts["needed_gpus"], facts["headroom_gpus"]
            text.append(f" (needs {now} now, keeps {room} as headroom)", "dim")
        text.append(f"  {reclaim.reason.rule}", "dim")
    return Padding(text, (0, 0, 0, 2))


def _figures(given: Given, wording: Wording) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("figure used", min_width=24)
    table.add_column("value", justify="right", style="bold")
    table.add_column("how old it was", style="dim")
    for figure in given.reason.figures:
        # A policy of one's own names its figures and rules as it likes: brackets are no markup.
        table.add_row(*map(Text, wording.figure(figure, given.reason.rule)))
    return table


def _rivals(answer: Answer, given: Given) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    state = answer.reading.state
    for name in given.reason.lost_to:
        rival = state.jobs.get(name) or state.lenders.get(name)
        table.add_row(Text(name, "bold"), _rival(rival, answer))
    return table


def _rival(rival: Job | Lender | None, answer: Answer) -> str:
    if rival is None:
        return "no longer known"
    if isinstance(rival, Lender):
        needed = Wording(answer.reading.origin_s).value("gpus_needed", rival.gpus_needed)
        return f"the owner; needs {needed} by its last report"
    parts = [f"{rival.state.value} now"]
    if rival.size:
        gpus = counted(rival.size, "GPU")
        parts.append(f"{gpus} of {rival.pool} (smallest size {rival.gpus_min})")
    end_s = end_of(rival, answer.now_s)
    if end_s is not None:
        guess = " by a guess of its length" if rival.total_steps is None else ""
        parts.append(
            f"ends about {day_clock(end_s, answer.reading.origin_s)} as it runs now{guess}"
        )
    if rival.priority:
        parts.append(f"priority {rival.priority}")
    if rival.deadline_s is not None:
        parts.append(f"deadline {day_clock(rival.deadline_s, answer.reading.origin_s)}")
    return ", ".join(parts)


def _earlier(answer: Answer, given: Given, wording: Wording) -> RenderableType | None:
    shown = (given.reason, None if answer.loss is None else answer.loss.reason)
    before = [
        one
        for one in answer.story.reasons
        if one.at_s <= given.at_s and not any(one.reason is reason for reason in shown)
    ]
    distinct: list[Given] = []
    for one in reversed(before):
        last = (distinct[-1] if distinct else given).reason
        if (one.reason.rule, one.reason.verb) != (last.rule, last.verb):
            distinct.append(one)
    if not distinct:
        return None
    table = _table_of_moments()
    for one in distinct[:3]:
        told = done(one.reason), wording.sentence(one.reason)
        table.add_row(wording.second(one.at_s), *map(Text, told))
    return table


# --- how fast it is, and when it waited ----------------------------------------------------------


def _speeds(answer: Answer) -> list[RenderableType]:
    """Lay the curve out, unless nothing is known but what was declared."""
    job = answer.job
    known = None if job is None else speeds_of(job, answer.reading.state.nodes, answer.now_s)
    if job is None or known is None:
        return []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("GPUs", justify="right")
    simulated = answer.work.is_simulated
    if simulated:  # a unit is one sample
        table.add_column("units/s", justify="right", style="bold")
    else:
        table.add_column("steps/s", justify="right", style="bold")
        table.add_column("samples/s", justify="right")
    table.add_column("known from")
    # A size at which nothing gets done is one that the job cannot have.
    points = [point for point in known.points if point.samples_per_s > 0.0]
    for point in points[:SIZES_MOST]:
        how = Text("modelled", "dim")
        if point.measured:
            age_s = point.age_s
            how = Text("measured" if age_s is None else f"measured {duration(age_s)} ago")
        here = f"▸ {point.gpus}" if point.gpus == job.size else str(point.gpus)
        steps = [] if simulated else [few(point.steps_per_s, 4)]
        table.add_row(here, *steps, few(point.samples_per_s, 4), how)
    empty = [""] if simulated else ["", ""]
    if len(points) > SIZES_MOST:
        table.add_row("…", *empty, Text(f"{len(points) - SIZES_MOST} more, see --json", "dim"))
    for pool, speed in sorted(known.affinity.items()):
        table.add_row("", *empty, Text(f"in {pool} {speed:.3g} times that, as measured there"))
    where = "on GPUs of speed 1" if known.pool is None else f"in {known.pool}"
    said = [Text(UNIT, "dim")] if simulated else []
    return [*_section(f"How fast it is {where}"), table, *said]


def _missed(answer: Answer, wording: Wording) -> list[RenderableType]:
    """Say where the time went that the job had until its deadline."""
    said = missed_because(answer)
    if said is None:
        return []
    table = _table_of_moments("yellow")
    for wait in longest(answer.story):
        when = day_clock(wait.begin_s, wording.origin_s)
        table.add_row(when, f"waited {duration(wait.length_s)}", Text(because(wait, wording)))
    return [Text(said), table] if table.row_count else [Text(said)]


# --- history -------------------------------------------------------------------------------------


def _history(answer: Answer, wording: Wording) -> Table:
    table = _table_of_moments()
    lines = list(answer.lines)
    left_out = len(lines) - LINES_MOST
    for index, line in enumerate(lines):
        if left_out > 0 and 5 <= index < 5 + left_out:
            if index == 5:
                table.add_row("…", "", Text(f"{left_out} more, see --json", "dim"))
            continue
        what = Text(f"{MARKS[line.tone]} {line.what}", TONES[line.tone])
        table.add_row(wording.second(line.at_s), what, _detail(line, wording))
    if answer.state not in ("completed", "failed", "cancelled", "refused"):
        table.add_row(
            wording.second(answer.now_s), Text(f"▸ {answer.state}", "bold"), Text("now", "dim")
        )
    return table


def _detail(line: Line, wording: Wording) -> Text:
    text = Text(line.detail)
    event = line.event
    if event.reclaims:
        nodes = joined([one.node for one in event.reclaims])
        due = day_clock(event.reclaims[0].due_s, wording.origin_s)
        owners = [*{o: None for r in event.reclaims if r.reason for o in r.reason.lost_to}]
        text.append(f"{'; ' if line.detail else ''}{nodes} goes back, due {due}", "yellow")
        if owners:
            text.append(f" ({joined(owners)} needs more)", "yellow")
    elif event.reason is not None and line.tone != "quiet":
        text.append(f"{': ' if line.detail else ''}{wording.sentence(event.reason)}", "dim")
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
