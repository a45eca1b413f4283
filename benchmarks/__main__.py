"""`python -m benchmarks`: what Tidegate does in a second on this machine, as a table or JSON."""

import argparse
import sys
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import (
    agent,
    bus,
    codec,
    decisions,
    engine,
    fleet,
    gateway,
    migration,
    reclaim_real,
    replay,
    resize,
    scrape,
    telemetry,
)
from benchmarks.figures import write

#: Figure -> (aim, whether more is better). From the project's own aims for 2 cores.
AIMS: Mapping[str, tuple[float, bool]] = {
    "telemetry_events_per_s": (50_000.0, True),
    "replay_stimuli_per_s": (5_000.0, True),
    "tide_1000_gpus_mean_ms": (20.0, False),
    "tide_1000_gpus_p99_ms": (20.0, False),
    "meter_8_gpus_1hz_core_percent": (1.0, False),
    "agent_slots_core_percent": (1.0, False),
    "agent_slots_rss_mib": (60.0, False),
    "agent_nvml_core_percent": (1.0, False),
    "agent_nvml_rss_mib": (60.0, False),
}
PARTS: Mapping[str, Callable[[float], dict[str, float]]] = {
    "codec": codec.run,
    "telemetry": telemetry.run,
    "engine": engine.run,
    "memory": lambda _: {**engine.memory(1_000), **engine.memory(10_000)},
    "decisions": decisions.run,
    "bus": bus.run,
    "fleet": fleet.run,
    "replay": replay.run,
    "gateway": gateway.run,
    "scrape": scrape.run,
    "agent": agent.run,
    "migration": migration.run,
    "reclaim_real": reclaim_real.run,
    "resize": lambda _: resize.run([1], rounds=1),
}


def main() -> int:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"which; of {', '.join(PARTS)} (all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each part (3)")
    parser.add_argument("--json", metavar="PATH", help="write the figures; - is standard output")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]!r}; there are: {', '.join(PARTS)}")
    screen = Console(stderr=True)
    figures: dict[str, float] = {}
    #: A part that lacks something here says so, and gives nothing.
    whole = not options.parts
    table = Table("part", "figure", "value", "aim", title="Tidegate, measured")
    for part in track(options.parts or list(PARTS), "measuring", console=screen, transient=True):
        found = PARTS[part](options.seconds)
        whole = whole and bool(found)
        for name, value in found.items():
            figures[name] = value
            table.add_row(part, name, _shown(value), _aim(name, value))
    if whole and (lost := sorted(AIMS.keys() - figures.keys())):
        raise RuntimeError(f"aims for figures that nothing measures: {', '.join(lost)}")
    if options.json != "-":
        Console().print(table)
    write(options.json, figures=figures)
    return 0


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _aim(name: str, value: float) -> str:
    if name not in AIMS:
        return ""
    aim, more = AIMS[name]
    reached = value >= aim if more else value <= aim
    return f"{_shown(aim)} {'reached' if reached else 'missed'}"


if __name__ == "__main__":
    sys.exit(main())
