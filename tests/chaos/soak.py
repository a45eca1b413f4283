"""The soak: a steady load for a long time; what grows?

    python -m tests.chaos.soak --minutes 60 --rate 50 --json out.json [--faults]

Samples every process each 10 s. Ends with 0 if all is well, 1 if a process ended by itself, a job
did not finish or something fell behind (the folder of the run is kept then), 2 if it was called
wrongly.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from bus.clock import SystemClock
from bus.contract import BusError
from bus.kafka import KafkaBus
from bus.kafka_client import open_consumer, stop
from bus.options import KafkaOptions
from schemas.topics import COMMANDS, EVENTS, TELEMETRY
from tests.chaos.faults import KINDS, LONG_KINDS, Faults
from tests.chaos.fleet import BRIDGES, SCHEDULE, SCHEDULERS, SETTINGS, Fleet, Shape
from tests.chaos.load import Crowd, Tenant, submit_steadily
from tests.chaos.processes import cpu_s, resident_mib
from tests.chaos.running import hush, parser_of, run_in_folder
from tests.chaos.trend import Trend
from tests.chaos.watch import Watch

SAMPLE_S = 10.0
START_S, FINISH_S = 90.0, 30.0
#: The first samples are of a fleet that still fills its caches.
WARM_UP_SHARE = 0.1
#: Of --faults: the pause between two.
FAULT_EVERY_S = 300.0
CROWD = 50
#: A scheduler that is so many records behind at the end does not keep up.
LAG_MAX = 1000.0
#: Closer to what production has: renewals and cycles less often, so that the rate leads.
_SETTINGS = {**SETTINGS, "cycle_s": 10.0, "silence_s": 20.0, "lease_s": 120.0, "unheard_s": 60.0}
_SCHEDULE = {**SCHEDULE, "telemetry_every_s": 5.0, "load_every_s": 5.0, "progress_every_s": 5.0}


class Soak:
    """One run: the load, and the samples."""

    def __init__(self, fleet: Fleet, minutes: float, rate_per_s: float, seed: int) -> None:
        self._fleet, self._minutes, self._rate_per_s, self._seed = fleet, minutes, rate_per_s, seed
        self._series: dict[str, Trend] = {}
        self._cpu_s: dict[str, float] = {}
        self._last: dict[str, dict[str, float]] = {}
        self.problems: list[str] = []
        self.faults: list[str] = []

    async def run(self, with_faults: bool) -> dict[str, Any]:
        fleet = self._fleet
        bus = KafkaBus.open(fleet.kafka, SystemClock())
        watch = Watch(fleet.kafka)
        tenant = Tenant(bus, np.random.default_rng(self._seed), "chaos")
        lags = _Lags(bus, fleet.kafka)
        crowd = Crowd(fleet.mqtt, CROWD, self._rate_per_s)
        watch.start()
        load = [
            asyncio.create_task(crowd.run()),
            asyncio.create_task(submit_steadily(tenant, 0.2, watch.jobs_ended, 30)),
        ]
        if with_faults:
            load.append(asyncio.create_task(self._inflict(watch)))
        began_s = time.monotonic()
        try:
            if not await watch.until(lambda: watch.heard(fleet.agents, 0.0), START_S):
                self.problems.append(f"the fleet is not up after {START_S:.0f} s")
            while time.monotonic() < began_s + 60.0 * self._minutes:
                await self._sample(lags, began_s, [one for one in load if one.done()])
                await asyncio.sleep(SAMPLE_S)
            took_s = time.monotonic() - began_s
            records = sum(watch.records[topic.name] for topic in (EVENTS, TELEMETRY))
            for one in load:
                one.cancel()
            await asyncio.gather(*load, return_exceptions=True)
            if not await watch.until(lambda: watch.over(tenant.jobs), FINISH_S):
                left = len(tenant.jobs) - watch.jobs_ended()
                self.problems.append(f"{left} jobs are not finished")
        finally:
            for one in load:
                one.cancel()
            await watch.stop()
            await lags.close()
            await bus.close()
        return {
            "minutes": round(took_s / 60.0, 1),
            "seed": self._seed,
            "events_per_s": round(records / took_s, 1),
            "jobs_accepted": len(tenant.jobs),
            "faults": self.faults,
            "cpu_cores": {
                name: round(used_s / took_s, 3) for name, used_s in sorted(self._cpu_s.items())
            },
            "trends": {name: one.summary() for name, one in sorted(self._series.items())},
            "problems": self.problems,
        }

    async def _sample(
        self, lags: "_Lags", began_s: float, ended: Sequence["asyncio.Task[None]"]
    ) -> None:
        for one in ended:
            one.result()
        fleet, at_s = self._fleet, time.monotonic() - began_s
        self.problems += fleet.restart_ended()
        for name, process in fleet.processes.items():
            self._note(at_s, f"rss_mib {name}", process.resident_mib())
            self._cpu_s[name] = process.cpu_s()
        for name in ("kafka", "mosquitto"):
            self._note(at_s, f"rss_mib {name}", resident_mib(fleet.broker_pid(name)))
            self._cpu_s[name] = cpu_s(fleet.broker_pid(name))
        pages = await asyncio.gather(
            *(asyncio.to_thread(fleet.metrics, name) for name in fleet.processes)
        )
        for name, page in zip(fleet.processes, pages, strict=True):
            self._note_page(at_s, name, page)
        for topic, lag in (await lags.read()).items():
            self._note(at_s, f"kafka_lag {topic}", lag)

    def _note_page(self, at_s: float, name: str, page: dict[str, float]) -> None:
        before, self._last[name] = self._last.get(name, {}), page
        if name in SCHEDULERS and page.get("tidegate_leader"):
            self._note(at_s, "event_lag", page.get("tidegate_event_lag", 0.0))
            for what in ("decision", "transaction"):
                metric = f"tidegate_{what}_seconds"
                count = page.get(f"{metric}_count", 0.0) - before.get(f"{metric}_count", 0.0)
                total_s = page.get(f"{metric}_sum", 0.0) - before.get(f"{metric}_sum", 0.0)
                if count > 0:
                    self._note(at_s, f"{what}_ms", 1000.0 * total_s / count)
        if name in BRIDGES and page:
            self._note(at_s, f"bridge_unacked {name}", page.get("tidegate_bridge_unacked", 0.0))
        if name in self._fleet.agents and page:
            self._note(at_s, f"spool {name}", page.get("tidegate_spool_messages", 0.0))
        if page:
            self._note(at_s, f"loop_lag_ms {name}", 1000.0 * page["tidegate_loop_lag_seconds"])
        if page.get("tidegate_invariant_violations_total", 0.0):
            self.problems.append(f"{name} found invariants broken")

    def _note(self, at_s: float, name: str, value: float) -> None:
        warm_s = WARM_UP_SHARE * 60.0 * self._minutes
        self._series.setdefault(name, Trend(warm_s)).add(at_s, value)

    async def _inflict(self, watch: Watch) -> None:
        rng = np.random.default_rng([self._seed, 2])
        faults = Faults(self._fleet, rng, lambda: watch.leader)
        kinds = [kind for kind in KINDS if kind not in LONG_KINDS]
        while True:
            await asyncio.sleep(FAULT_EVERY_S)
            fault = faults.make(str(rng.choice(kinds)))
            self.faults.append(f"{fault.kind} {fault.target}")
            await fault.happen()


class _Lags:
    """How many records lie after the committed positions of the groups that matter."""

    GROUPS = (
        (EVENTS.name, "scheduler-default"),
        (TELEMETRY.name, "scheduler-default"),
        (COMMANDS.name, "bridge-default"),
    )

    def __init__(self, bus: KafkaBus, options: KafkaOptions) -> None:
        self._bus, self._options = bus, options
        self._readers: dict[str, Any] = {}

    async def read(self) -> dict[str, float]:
        """Give them by topic; those that cannot be had now are left out."""
        found = {}
        for topic, group in self.GROUPS:
            try:
                reader = self._readers.get(group)
                if reader is None:
                    name = self._options.topic(group)
                    reader = self._readers[group] = await open_consumer(self._options, name)
                position = await reader.committed(TopicPartition(self._options.topic(topic), 0))
                found[topic] = float(await self._bus.end(topic) - (position or 0))
            except (BusError, KafkaError):
                continue
        return found

    async def close(self) -> None:
        for reader in self._readers.values():
            await stop(reader)


def _judge(figures: dict[str, Any]) -> list[str]:
    """Find what grew that must not."""
    found = []
    for name, trend in figures["trends"].items():
        if name.startswith("kafka_lag") and trend["last_quarter"] > LAG_MAX:
            found.append(f"{name} is {trend['last_quarter']:.0f} in the last quarter")
        if name.startswith("spool") and trend["last_quarter"] > LAG_MAX:
            found.append(f"{name} holds {trend['last_quarter']:.0f} in the last quarter")
    return found


def show(figures: dict[str, Any]) -> str:
    """Write the figures as a table."""
    lines = [f"{'figure':36}{'first quarter':>14}{'last':>10}{'max':>10}{'per hour':>10}"]
    for name, trend in figures["trends"].items():
        row = (trend["first_quarter"], trend["last_quarter"], trend["max"], trend["per_hour"])
        lines.append(f"{name:36}{row[0]:>14}{row[1]:>10}{row[2]:>10}{row[3]:>10}")
    lines.append("")
    lines += [f"{name:24}{figures[name]}" for name in ("minutes", "events_per_s", "jobs_accepted")]
    cores = ", ".join(f"{name} {used}" for name, used in figures["cpu_cores"].items())
    lines.append(f"{'cpu_cores':24}{cores}")
    lines += [f"PROBLEM: {text}" for text in figures["problems"]]
    return "\n".join(lines)


async def _whole(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    hush()
    fleet = Fleet(folder, Shape(settings=_SETTINGS, schedule=_SCHEDULE, snapshot_entries=5000))
    try:
        await asyncio.to_thread(fleet.start)
        soak = Soak(fleet, options.minutes, options.rate, options.seed)
        figures = await soak.run(options.faults)
    finally:
        await asyncio.to_thread(fleet.end)
    figures["problems"] += _judge(figures)
    return figures


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("soak", __doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=50.0, help="reports a second of the crowd")
    parser.add_argument("--faults", action="store_true", help="a fault every five minutes")
    options = parser.parse_args(arguments)
    return run_in_folder("soak", options, lambda folder: _whole(folder, options), show)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
