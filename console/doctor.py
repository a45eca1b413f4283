"""`tidegate doctor`: what is wrong here, and what to do about it."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from bus.clock import SystemClock
from console.findings import drawn
from console.output import JsonPath, emit_json, out
from console.serve import Settings, needing
from explain.shares import counted

_ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration, as the agent reads it; by default the installed agent's. "
        "docs/install.md lists what may be found.",
    ),
]


def doctor(
    config: _ConfigFile = None, settings: Settings = None, json_path: JsonPath = None
) -> None:
    """Look for what keeps an agent from its work, and say what to do about each finding.

    Looks at the bus, certificates, clock, GPUs, their owner's hooks and
    metrics, checkpoint store, disk, permissions and the service. Nothing is
    changed, but that a small object is written to the checkpoint store and
    deleted again. For an installed agent, run as root, it looks as the agent's
    own user. A check that hangs is given up after 10 s.

    Exit codes: 0 no problem (there may be warnings), 1 a problem, 2 no such configuration.

    Example: tidegate doctor --config tidegate.toml
    """
    with needing("edge"):
        from services.doctor.context import config_file, load_context
        from services.doctor.runner import run_checks, worst
    file = config_file(config, settings or [])
    context = load_context(file, settings or [], SystemClock())
    findings = run_checks(context)
    code = worst(findings)
    name = context.config.agent.name
    if json_path is not None:
        document = {
            "agent": name,
            "config": None if file is None else str(file),
            "good": code == 0,
            "findings": [dataclasses.asdict(one) for one in findings],
        }
        emit_json(document, json_path)
    if json_path != "-":
        counts = Counter(one.verdict for one in findings)
        title = Text.assemble((name or "No agent", "bold"), (f"  {file or ''}", "dim"))
        out().print(title, drawn(findings), sep="\n")
        out().print(_sum(counts))
    raise typer.Exit(code)


def _sum(counts: Mapping[Any, int]) -> Text:
    said = [
        (counted(counts[verdict], verdict), style)
        for verdict, style in (("problem", "red"), ("warning", "yellow"))
        if counts[verdict]
    ]
    if not said:
        return Text("All is well.", "green")
    parts = [part for pair in said for part in (pair, ", ")][:-1]
    return Text.assemble(*parts, ".")
