"""Jobs and policies by hand, for tests of the driver. Moments are a run's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bus.contract import Record
from scheduler.policies.interface import LoanPhase, Plan, Snapshot, Target
from scheduler.replay import Result, verify
from simulator.driver import START_S
from simulator.physics.base import Entry, Observed, Placement, Segment


@dataclass(slots=True)
class Linear:
    """Does `work` at a unit of progress per second and GPU; a change costs 10 s."""

    work: float = 100.0
    halves: bool = False  #: Half as fast in the second half.
    stamp: int | None = None

    @property
    def total(self) -> float:
        return self.work

    def segment(self, progress: float, gpus: tuple[int, ...]) -> Segment:
        middle = self.work / 2
        if self.halves:
            return Segment(
                sum(gpus) / (1 + (progress >= middle)), middle * (1 + (progress >= middle))
            )
        return Segment(float(sum(gpus)), self.work)

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        return Observed(np.array(sizes, dtype=np.float64), self.work - progress)

    def pause_s(self, before: Placement, after: Placement) -> float:
        return 10.0


@dataclass(slots=True)
class Script:
    """A policy that does at moments what it is told to.

    A job is given GPUs by node: `3`, of the training pool, means `node-003`.
    """

    acts: Mapping[float, Mapping[str, Mapping[int, int] | Mapping[str, int] | None]]
    notes: Mapping[float, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    lends: Mapping[float, tuple[str, ...]] = field(default_factory=dict)
    reclaims: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    declines: Mapping[float, tuple[str, ...]] = field(default_factory=dict)
    seen: list[Snapshot] = field(default_factory=list)
    name: str = "script"

    def plan(self, snapshot: Snapshot) -> Plan:
        if snapshot.jobs.ids or (snapshot.nodes.loan > LoanPhase.OWNED).any():
            self.seen.append(snapshot)
        now_s = snapshot.now_s - START_S
        return Plan(
            targets={
                job: None if held is None else self._target(snapshot, held)
                for job, held in self.acts.get(now_s, {}).items()
            },
            lend=self.lends.get(now_s, ()),
            reclaim={node: START_S + due_s for node, due_s in self.reclaims.get(now_s, {}).items()},
            notes=self.notes.get(now_s, {}),
            decline=self.declines.get(now_s, ()),
        )

    def _target(self, seen: Snapshot, held: Mapping[int, int] | Mapping[str, int]) -> Target:
        named = {
            node if isinstance(node, str) else f"node-{node:03}": gpus
            for node, gpus in held.items()
        }
        pool = seen.nodes.pool[seen.nodes.ids.index(min(named))]
        return Target(seen.pools.ids[pool], tuple(sorted(named.items())))

    @property
    def moments(self) -> list[float]:
        return [one.now_s - START_S for one in self.seen]

    def at(self, now_s: float) -> Snapshot:
        """Give what it saw at a moment."""
        return next(one for one in self.seen if one.now_s == START_S + now_s)


def entry(name: str, at_s: float = 0.0, gpus: int = 1, **model: object) -> Entry:
    return Entry(name, at_s, Linear(**model), gpus)  # type: ignore[arg-type]


def replayed(journal: Path) -> Result:
    """Decide again what a recorder wrote of a run."""

    def records(kind: bytes) -> Iterator[Record]:
        for number, line in enumerate(journal.read_bytes().splitlines()):
            if line.startswith(kind):
                yield Record("", number, "default", line[1:], {}, 0.0)

    return verify(records(b"J"), snapshots=records(b"S"))
