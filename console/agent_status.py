"""A status for people and for programs."""

from collections.abc import Iterator
from typing import Any

from explain.shares import counted
from services.doctor.finding import Finding, Reporter
from services.install.gangs import named
from services.install.layout import CONFIG
from services.install.status import Status


def document(status: Status) -> dict[str, Any]:
    """Give a status as one JSON object; null where something is unknown."""
    unit, gangs = status.unit, status.gangs
    return {
        "agent": None if status.config is None else status.config.agent.name,
        "config": str(status.config_file),
        "good": not status.problems,
        "unit": None
        if unit is None
        else {
            "state": unit.get("ActiveState") or None,
            "enabled": unit.get("UnitFileState") == "enabled" if unit.said else None,
            "restarts": int(unit.get("NRestarts")) if unit.get("NRestarts") else None,
            "user": unit.get("User") or None,
        },
        "runs": status.runs,
        "pid": status.pid,
        "link_up": status.link_up,
        "spool_messages": status.spool,
        "gangs": None
        if gangs is None
        else [
            {"job": g.job, "epoch": g.epoch, "gpus": g.gpus, "workers": g.workers} for g in gangs
        ],
        "problems": status.problems,
    }


def lines(status: Status) -> Iterator[Finding]:
    """Give a status line by line."""
    if status.unit is not None:
        yield _of_unit(status)
    who = "not known: this user may not look" if status.runs is None else "not running"
    if status.runs:
        who = "runs" if status.pid is None else f"runs, process {status.pid}"
    yield Finding("agent", "ok" if status.runs else "warning", who)
    if status.link_up is not None:
        up = status.link_up
        yield Finding("link", "ok" if up else "warning", "up" if up else "down, see below")
    elif status.runs:
        yield Finding("link", "ok", "not known: http.port is not set, or nothing answers there")
    if status.spool is not None:
        yield Finding("spool", "ok", f"{counted(status.spool, 'message')} to be sent")
    if status.gangs is None:
        yield Finding("gangs", "ok", "not known: this user may not look, or none are real")
    else:
        yield Finding("gangs", "ok", named(status.gangs) or "none runs")
    yield from (Reporter("problem").problem(text, "") for text in status.problems)


def _of_unit(status: Status) -> Finding:
    assert status.unit is not None
    unit = status.unit
    if not unit.said:
        return Finding("service", "warning", f"installed for {CONFIG}, not known to systemd here")
    restarts = unit.get("NRestarts")
    said = f"{unit.get('ActiveState')} ({unit.get('SubState')}), {unit.get('UnitFileState')}"
    said += f", {restarts} restart{'' if restarts == '1' else 's'}"
    return Finding("service", "ok" if unit.active else "problem", said)
