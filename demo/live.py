"""The live view: pools as bars, loans, jobs, the tide, and the last decisions in words."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bus.clock import Clock, SystemClock
from console.bars import bar, legend, progress, sparkline
from demo.watch import TONES, Watch
from explain.moments import day_clock, duration
from explain.phrases import SHORT
from explain.progress import percent, share_done
from explain.shares import counted
from explain.uses import USES, Use, uses_of_pool
from explain.wording import VERBS, Wording
from scheduler.core.lenders import lenders_in
from scheduler.core.state import ClusterState, Job, Node
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.core.transitions import TERMINAL, JobState, LoanState, NodeState
from scheduler.policies.interface import Reason

#: Rows of the legend, and the fewest that the last decisions need, with their frame.
_LEGEND_ROWS, _LAST_ROWS = 3, 5
_LEGEND = (USES[: len(USES) // 2], USES[len(USES) // 2 :])


class LiveView:
    """Remembers what passes while a run goes on, and draws it."""

    def __init__(
        self, title: str, start_s: float, end_s: float, clock: Clock | None = None
    ) -> None:
        """Watch a run from `start_s` to `end_s`; `clock` is real time, to tell the speed."""
        self._title = title
        self._voice = Wording(start_s)
        self._start_s, self._end_s = start_s, end_s
        self._watch = Watch(start_s, end_s, clock or SystemClock())

    def note(self, stimulus: Stimulus, decision: Decision) -> None:
        """Remember a decision; called for every one."""
        self._watch.note(stimulus, decision)

    # --- drawing ------------------------------------------------------------------------------

    def progress(self, state: ClusterState) -> Text:
        """Say in one line how far the run is, where nothing can be drawn."""
        totals = state.totals
        queued = sum(job.state is JobState.QUEUED for job in state.jobs.values())
        return Text(
            f"{day_clock(state.now_s, self._start_s)}  jobs {totals.jobs_completed} of "
            f"{totals.jobs_submitted} done, {queued} queued · "
            f"loans {totals.loans_granted}, {totals.loans_reclaimed} back · "
            f"migrations {totals.migrations} · preemptions {totals.preemptions}"
        )

    def render(self, state: ClusterState) -> RenderableType:
        """Draw the state; the result fits itself to the terminal."""
        self._watch.see(state)
        return _Screen(self, state)

    def screen(self, state: ClusterState, width: int, height: int) -> RenderableType:
        """Lay everything out in a terminal of this size."""
        height = max(height - 1, 16)
        layout = Layout()
        tide_rows = 5 if height < 34 else 6
        lenders = sum(pool.kind != "training" for pool in state.pools.values())
        least = len(state.pools) + lenders + 6
        # Where there is no room for the decisions, the legend goes first, then the tide.
        roomy = width // 2 - 4 >= max(legend(part).cell_len for part in _LEGEND)
        explained = roomy and height - 1 - least - tide_rows >= _LAST_ROWS
        if not explained:
            least -= _LEGEND_ROWS
        if height - 1 - least - tide_rows < _LAST_ROWS:
            tide_rows = 0
        pools = self._pools(state, width, explained=explained)
        top_rows = max(least, (height - tide_rows - 1) * 3 // 5)
        top_rows = max(min(top_rows, height - tide_rows - 1 - _LAST_ROWS), 4)
        layout.split_column(
            Layout(self._header(state, width), size=1),
            Layout(name="top", size=top_rows),
            *([Layout(self._tide(state, width, tide_rows), size=tide_rows)] if tide_rows else []),
            Layout(self._last(height - tide_rows - top_rows - 1), name="last"),
        )
        side = width // 2
        layout["top"].split_row(
            Layout(Panel(pools, title="pools", title_align="left", border_style="blue"), size=side),
            Layout(self._jobs(state, width - side, top_rows - 2), name="jobs"),
        )
        return _Fixed(layout, height)

    def _header(self, state: ClusterState, width: int) -> Table:
        row = Table.grid(expand=True)
        row.add_column(no_wrap=True)
        row.add_column(justify="center", no_wrap=True)
        row.add_column(justify="right", no_wrap=True)
        share = self._watch.share(state.now_s)
        pace = self._watch.speed()
        speed = "" if pace is None else f"×{pace:,.0f}"
        clock = Text(day_clock(state.now_s, self._start_s), "bold")
        clock.append(f"  {speed}  ", "dim")
        clock.append_text(progress(share, max(8, width // 6), "cyan"))
        title = Text(f" {self._title} ", "bold reverse cyan")
        counts = Text()
        for text in (
            f"{self._watch.decisions:,} decisions · {state.totals.commands:,} commands",
            f"{self._watch.decisions:,} decisions",
        ):
            if title.cell_len + clock.cell_len + len(text) + 2 <= width:
                counts = Text(text, "dim")
                break
        row.add_row(title, clock, counts)
        return row

    def _pools(self, state: ClusterState, width: int, *, explained: bool) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        names = max((len(name) for name in state.pools), default=4)
        table.add_column(no_wrap=True, style="bold", min_width=names)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right", style="dim")
        room = max(8, width // 2 - names - 14)
        for name, pool in state.pools.items():
            uses = uses_of_pool(state, name)
            total = sum(uses.values())
            idle = uses[Use.IDLE] + uses[Use.LENT]
            table.add_row(name, bar(uses, room), f"{total - idle}/{total}")
            if pool.kind != "training":
                need = sum(lender.gpus_needed for lender in lenders_in(state, name))
                nodes = [state.nodes[n] for n in pool.nodes]
                lent = sum(n.gpu_count for n in nodes if n.loan_state is not None)
                table.add_row("", Text(f"owners need {need:.3g}, {lent} on loan", "dim"), "")
        marks = [Text(), *map(legend, _LEGEND)] if explained else []
        return Group(table, *marks, self._loans(state))

    def _loans(self, state: ClusterState) -> Text:
        totals = state.totals
        lent = _in(state.nodes.values(), LoanState.LENT)
        back = _in(state.nodes.values(), LoanState.RECLAIMING, LoanState.RETURNING)
        silent = sum(node.state is NodeState.UNKNOWN for node in state.nodes.values())
        text = Text.assemble(("loans  ", "bold"))
        text.append(f"{len(lent)} lent", "yellow")
        text.append(f" · {len(back)} going back", "magenta")
        text.append(f" · {totals.loans_reclaimed}/{totals.loans_granted} returned", "dim")
        if totals.reclaims_late:
            text.append(f" · {totals.reclaims_late} late", "red")
        if silent:
            text.append(f" · {silent} silent", "red")
        for node in sorted(back, key=lambda n: (n.due_s or 0.0, n.id))[:3]:
            due = day_clock(node.due_s, self._start_s)
            text.append(f"\n  {node.id} back by {due}", "magenta")
        return text

    def _jobs(self, state: ClusterState, width: int, rows: int) -> Panel:
        live = [job for job in state.jobs.values() if job.state not in TERMINAL]
        waiting = sorted(
            (job for job in live if job.state is JobState.QUEUED),
            key=lambda job: (job.waiting_since_s, job.number),
        )
        active = sorted(
            (job for job in live if job.state is not JobState.QUEUED),
            key=lambda job: (-job.size, job.number),
        )
        queue_rows = min(len(waiting), max(1 if rows < 8 else 2, rows // 4))
        room = rows - queue_rows - 2
        if len(active) > room:
            room -= 1
        table = Table.grid(padding=(0, 1), expand=True)
        names = max((len(job.id) for job in active[:room]), default=4)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=3, min_width=min(names, 10))
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=2)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        for job in active[:room]:
            table.add_row(*self._job(job, state, 10 if width >= 44 else 3))
        parts: list[RenderableType] = [table]
        if len(active) > room:
            parts.append(Text(f"… and {len(active) - room} more", "dim"))
        parts.append(Text(f"queue  {len(waiting)} waiting", "bold yellow"))
        parts += [self._waiting(job, state, width - 4) for job in waiting[:queue_rows]]
        done = state.totals.jobs_completed
        title = f"jobs  {len(active)} on GPUs · {len(waiting)} queued · {done} done"
        return Panel(Group(*parts), title=title, title_align="left", border_style="green")

    def _job(self, job: Job, state: ClusterState, room: int) -> tuple[RenderableType, ...]:
        tone = "green" if job.state is JobState.RUNNING else "yellow"
        where = job.pool or job.target_pool or ""
        if job.state is not JobState.RUNNING:
            where = job.state.value
        mark = Text()
        if job.deadline_s is not None:
            left_s = job.deadline_s - state.now_s
            mark = Text("late", "red") if left_s < 0 else Text(_brief(left_s), "cyan")
        return (
            Text(job.id),
            Text(f"{job.size}", "bold"),
            Text(where, tone if job.state is not JobState.RUNNING else "dim"),
            progress(share_done(job, state.now_s), room, tone).append(
                f" {percent(job, state.now_s):>4}"
            ),
            mark,
        )

    def _waiting(self, job: Job, state: ClusterState, width: int) -> Text:
        waited = duration(state.now_s - job.waiting_since_s)
        text = Text.assemble((f"{job.id} needs {counted(job.gpus_min, 'GPU')}, {waited}", "yellow"))
        if job.why is not None:
            rule, lost = str(job.why["rule"]), job.why["lost_to"]
            behind = f"; {', '.join(lost)} first" if lost else ""
            text.append(f": {SHORT.get(rule, rule)}{behind}", "dim")
        text.truncate(width, overflow="ellipsis")
        return text

    def _tide(self, state: ClusterState, width: int, rows: int) -> Panel:
        room = max(20, width - 22)
        kinds = {name: pool.kind for name, pool in state.pools.items()}
        lending = sum(n.gpu_count for n in state.nodes.values() if kinds[n.pool] != "training")
        top = float(max(lending, 1))
        tide = self._watch.tide(room)
        needed = [None if slot is None else slot.needed for slot in tide]
        lent = [None if slot is None else slot.lent for slot in tide]
        now = self._watch.needed
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True, width=6, style="bold")
        table.add_column(no_wrap=True, width=room)
        table.add_column(no_wrap=True, justify="right")
        table.add_row("demand", Text(sparkline(needed, top), "blue"), f"{now:.0f} of {lending}")
        table.add_row(
            "lent", Text(sparkline(lent, top), "yellow"), f"{state.gpus_loaned} of {lending}"
        )
        table.add_row("", self._hours(room), "")
        if rows > 5:
            alive, held = max(state.gpus_alive, 1), state.gpus_held
            busy = min(1.0, (held + state.gpus_serving) / alive)
            line = Text(f"{busy:.0%} of {alive} GPUs busy now, {held} of them training", "dim")
            table.add_row("", line, "")
        return Panel(
            table,
            title="tide  GPUs that owners need, and GPUs lent, over the day",
            title_align="left",
            border_style="cyan",
        )

    def _hours(self, room: int) -> Text:
        marks = [" "] * room
        steps = 4 if room < 90 else 8
        for step in range(steps):
            at_s = self._start_s + (self._end_s - self._start_s) * step / steps
            text = day_clock(at_s, self._start_s)
            column = room * step // steps
            marks[column : column + len(text)] = text
        return Text("".join(marks)[:room], "dim")

    def _last(self, rows: int) -> Panel:
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True, style="dim")
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=16)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for told, count in self._watch.last(max(rows - 2, 1)):
            reason = told.reason
            verb = Text(VERBS.get(reason.verb, reason.verb), TONES[reason.verb])
            subject = reason.subject if count == 1 else f"{reason.subject} +{count - 1}"
            said = self._voice.sentence(reason)
            when = day_clock(told.at_s, self._start_s)
            table.add_row(when, verb, Text(subject, "bold"), _sizes(reason) + said)
        return Panel(
            table, title="last decisions, and why", title_align="left", border_style="magenta"
        )


class _Screen:
    """Asks the terminal how large it is, then draws."""

    def __init__(self, view: LiveView, state: ClusterState) -> None:
        self._view, self._state = view, state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.size.height
        yield self._view.screen(self._state, options.max_width, height)


class _Fixed:
    """A layout of a given height."""

    def __init__(self, layout: Layout, height: int) -> None:
        self._layout, self._height = layout, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._layout, options.update_height(self._height))


def _in(nodes: Iterable[Node], *states: LoanState) -> list[Node]:
    return [node for node in nodes if node.loan_state in states]


def _brief(seconds: float) -> str:
    """Write a length of time in four characters at most."""
    if seconds < 3600:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h" if seconds < 1e6 else f"{seconds / 86_400:.0f}d"


def _sizes(reason: Reason) -> str:
    figures = {figure.name: figure.value for figure in reason.figures}
    if "gpus_before" not in figures or "gpus_after" not in figures:
        return ""
    return f"{figures['gpus_before']:.0f}→{figures['gpus_after']:.0f} GPUs: "
