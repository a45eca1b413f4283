"""What a demo came to: in figures, and in one panel."""

from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bus.contract import Bus
from demo.fleet import Fleet
from explain.moments import duration
from scheduler.core.canonical import state_hash
from scheduler.core.state import ClusterState
from scheduler.core.transitions import TERMINAL, JobState
from schemas.topics import ALL_TOPICS, EVENTS, REQUESTS, TELEMETRY

_HOUR_S = 3600.0


async def result_of(bus: Bus, fleet: Fleet) -> dict[str, Any]:
    """Give the figures of a run that is over, and what its bus and its scheduler counted."""
    state = fleet.scheduler.engine.state
    dead = 0
    for name in ALL_TOPICS:
        if name.endswith(".dlq"):
            async for _ in bus.read(name):  # offsets may have gaps
                dead += 1
    return {
        **figures(state),
        "events": await bus.end(EVENTS.name) + await bus.end(TELEMETRY.name),
        "dead_letters": dead,
        # Of this process: a run that was killed counts those since it went on.
        "duplicates": fleet.duplicates,
        "invariant_violations": fleet.scheduler.invariant_violations,
        "state_hash": state_hash(state),
    }


async def said_on(bus: Bus) -> int:
    """Count what was said to the scheduler: by agents in events, by people in requests."""
    return await bus.end(EVENTS.name) + await bus.end(REQUESTS.name)


def figures(state: ClusterState) -> dict[str, Any]:
    """Give the figures of a run, from the state alone. Times in seconds."""
    totals = state.totals
    live = [job for job in state.jobs.values() if job.state not in TERMINAL]
    queued = sum(job.state is JobState.QUEUED for job in live)
    return {
        "jobs_submitted": totals.jobs_submitted,
        "jobs_completed": totals.jobs_completed,
        "jobs_failed": totals.jobs_failed,
        "jobs_running": len(live) - queued,
        "jobs_queued": queued,
        "mean_jct_s": totals.jct_s / totals.jobs_completed if totals.jobs_completed else None,
        "mean_queueing_s": totals.queueing_s / totals.jobs_started if totals.jobs_started else None,
        "deadlines_total": totals.deadlines_total,
        "deadlines_met": totals.deadlines_met,
        # Of unfinished jobs, not yet due; what is neither met nor open was missed.
        "deadlines_open": sum(
            job.deadline_s is not None and job.deadline_s > state.now_s for job in live
        ),
        "loans_granted": totals.loans_granted,
        "loans_reclaimed": totals.loans_reclaimed,
        "reclaims_late": totals.reclaims_late,
        "inference_shortfall_gpu_s": totals.inference_shortfall_gpu_s,
        "loaned_gpu_s": totals.loaned_gpu_s,
        "migrations": totals.migrations,
        "preemptions": totals.preemptions,
        "scale_outs": totals.scale_outs,
        "scale_ins": totals.scale_ins,
        "worker_failures": totals.failures,
        "policy_failures": totals.policy_failures,
        "claims": totals.claims,
        "claims_timed_out": totals.claims_timed_out,
        "gpu_utilisation": (
            (totals.training_gpu_s + totals.serving_gpu_s) / totals.gpu_s if totals.gpu_s else None
        ),
        "commands": totals.commands,
        "decisions": state.number,
    }


def summary(result: dict[str, Any]) -> RenderableType:
    """Lay out the result of a run; a figure that is absent or null shows as a dash."""

    def count(name: str) -> str:
        value = result.get(name)
        return "–" if value is None else f"{value:,.0f}"

    def hours(name: str) -> str:
        value = result.get(name)
        return "–" if value is None else f"{value / _HOUR_S:,.2f} GPU h"

    met, total = result.get("deadlines_met"), result.get("deadlines_total")
    still_open = int(result.get("deadlines_open") or 0)
    missed = None if total is None or met is None else total - met - still_open
    used = result.get("gpu_utilisation")
    late = result.get("reclaims_late") or 0
    violations = result.get("invariant_violations")
    jobs = _table(
        "Training",
        ("jobs submitted", count("jobs_submitted"), ""),
        ("completed", count("jobs_completed"), "green"),
        ("still on GPUs", count("jobs_running"), ""),
        ("still queued", count("jobs_queued"), ""),
        ("mean time of completed jobs", duration(result.get("mean_jct_s")), ""),
        ("mean wait for the first start", duration(result.get("mean_queueing_s")), ""),
    )
    deadlines = Text.assemble(("Deadlines  ", "bold cyan"))
    deadlines.append(f"{count('deadlines_met')} met", "green")
    deadlines.append(f", {'–' if missed is None else missed} missed", "red" if missed else "")
    deadlines.append(f", {count('deadlines_open')} not due yet")
    lending = _table(
        "Lending",
        ("loans granted", count("loans_granted"), ""),
        ("given back", count("loans_reclaimed"), ""),
        ("given back late", f"{late:,}", "red" if late else "green"),
        ("GPU time lent", hours("loaned_gpu_s"), ""),
        ("owners were short of", hours("inference_shortfall_gpu_s"), ""),
    )
    moves = _table(
        "Moves",
        ("scale-outs", count("scale_outs"), ""),
        ("scale-ins", count("scale_ins"), ""),
        ("migrations", count("migrations"), ""),
        ("preemptions", count("preemptions"), ""),
        ("GPUs used", "–" if used is None else f"{used:.1%}", "bold"),
    )
    tail = Text.assemble(
        (f"{count('events')} events, {count('decisions')} decisions, ", "dim"),
        (f"{count('commands')} commands; ", "dim"),
        (
            f"{count('invariant_violations')} invariant violations",
            "bold red" if violations else "green",
        ),
        (f"\nstate {result.get('state_hash') or '–'}", "dim"),
    )
    columns = Columns([jobs, lending, moves], padding=(0, 4))
    return Panel(
        Group(columns, Text(), deadlines, Text(), tail),
        title=Text("what came of it", "bold"),
        title_align="left",
        border_style="cyan",
        padding=(1, 2),
    )


def _table(title: str, *rows: tuple[str, str, str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold cyan", box=None)
    table.show_header = False
    table.pad_edge = False
    table.padding = (0, 2, 0, 0)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value, style in rows:
        table.add_row(name, Text(value, style))
    return table
