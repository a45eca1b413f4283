"""The end of a demo: what came of it, in one panel."""

from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from console.output import duration

_HOUR_S = 3600.0


def summary(result: dict[str, Any]) -> RenderableType:
    """Lay out the result of a run; a figure that is absent or null shows as a dash."""

    def count(name: str) -> str:
        value = result.get(name)
        return "–" if value is None else f"{value:,.0f}"

    def hours(name: str) -> str:
        value = result.get(name)
        return "–" if value is None else f"{value / _HOUR_S:,.2f} GPU h"

    met, total = result.get("deadlines_met"), result.get("deadlines_total")
    missed = None if total is None or met is None else total - met - _number(result)
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


def _number(result: dict[str, Any]) -> int:
    return int(result.get("deadlines_open") or 0)


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
