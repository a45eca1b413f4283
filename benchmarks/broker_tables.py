"""Tables of docs/results/brokers.md: what recovers from a fault when, and what fleets wait for."""

import json
from pathlib import Path

#: How the page calls the kinds of `tests.chaos.matrix`, in its order.
_FAULTS = {
    "kill-leader": "scheduler that leads: SIGKILL",
    "freeze-leader": "the same: SIGSTOP",
    "kill-standby": "scheduler that stands by: SIGKILL",
    "freeze-standby": "the same: SIGSTOP",
    "kill-schedulers": "both schedulers: SIGKILL",
    "outage": "both schedulers away for 150 s",
    "kill-bridge": "one bridge of two: SIGKILL",
    "kill-bridges": "both bridges: SIGKILL",
    "freeze-bridge": "one bridge: SIGSTOP",
    "kill-cloud": "cloud agent: SIGKILL",
    "freeze-cloud": "the same: SIGSTOP",
    "kill-edge": "edge agent: SIGKILL",
    "freeze-edge": "the same: SIGSTOP",
    "kill-mosquitto": "Mosquitto: SIGKILL",
    "freeze-mosquitto": "the same: SIGSTOP",
    "kill-kafka": "Kafka: SIGKILL",
    "freeze-kafka": "the same: SIGSTOP",
    "cut-link": "edge cut off, 1 to 10 s",
    "cut-past-lease": "edge cut off for longer than its lease",
    "slow-link": "slow link",
    "stall-link": "link that is open and carries nothing",
    "disk-full": "disk full at an edge agent",
}


def chaos(data: Path) -> str:
    """Make the table of how long it takes to recover from each kind of fault."""
    found = json.loads((data / "chaos.json").read_text("utf-8"))["by_kind"]
    lines = ["| fault | times | recovery, s: p50 | longest |", "|---|---|---|---|"]
    for kind in (*_FAULTS, *sorted(found.keys() - _FAULTS.keys())):
        if kind in found:
            one = found[kind]
            cells = (_FAULTS.get(kind, kind), str(one["faults"]))
            seconds = (f"{one['recovery_s_p50']:.2f}", f"{one['recovery_s_worst']:.2f}")
            lines.append(f"| {' | '.join((*cells, *seconds))} |")
    return "\n".join(lines)


def fleets(data: Path) -> str:
    """Make the table of what whole fleets of devices wait for."""
    found = json.loads((data / "bus.json").read_text("utf-8"))["figures"]
    columns = "devices|events/s|births/s|journal p50 / p99, ms|command p50 / p99, ms"
    lines = [f"| {' | '.join(columns.split('|'))} |", "|---" * 5 + "|"]
    for devices in (100, 1_000, 10_000):
        for rate in (100, 1_000):
            own = f"multiplexed_{devices}_devices_at_{rate}_per_s"
            waits = (
                " / ".join(_figure(found[f"{own}_{what}_{part}_ms"]) for part in ("p50", "p99"))
                for what in ("edge_to_journal", "event_to_command")
            )
            births = f"{found[f'multiplexed_{devices}_devices_births_per_s']:,.0f}"
            cells = (f"{devices:,}", f"{rate:,}", births if rate == 100 else "", *waits)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"
