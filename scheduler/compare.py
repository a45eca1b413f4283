"""What another policy would have decided at each recorded moment.

Both policies see the same snapshots, those of the recorded run; the run goes on as recorded. So
this compares single decisions. It is no simulation of what would have come of them. What the
recorded policy noted on jobs, nobody else is shown, as in a running cell.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scheduler.policies.interface import Phase, Plan, Policy, Snapshot

#: Size and pool that a plan gives a job; None is no GPU.
Place = tuple[int, str | None]
#: Jobs shown, those that differ most often.
_JOBS_SHOWN = 20


@dataclass(slots=True)
class Comparison:
    """Compares another policy's plans with the recorded ones. It makes the policies of a replay."""

    make: Callable[[str], Policy]
    line: str  #: Of the policy to compare with, options included.
    cycles: int = 0
    differing: int = 0
    first: dict[str, Any] | None = None
    jobs: dict[str, Counter[str]] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    other: Policy = field(init=False)
    #: Why the other policy could not decide, if it could not; it is not asked again.
    error: Exception | None = None

    def __post_init__(self) -> None:
        """Make the other policy.

        Raises:
            ValueError: its line is none.
        """
        self.other = self.make(self.line)

    def policy(self, name: str) -> Policy:
        """Make the recorded policy, with the other one looking on."""
        return _Watched(self.make(name), self)

    def add(self, snapshot: Snapshot, recorded: Plan, other: Plan) -> None:
        """Compare two plans for one snapshot."""
        self.cycles += 1
        changes = self._places(snapshot, recorded, other)
        nodes = self._nodes("lend", sorted(recorded.lend), sorted(other.lend))
        nodes += self._nodes("reclaim", sorted(recorded.reclaim), sorted(other.reclaim))
        if not changes and not nodes:
            return
        self.differing += 1
        if self.first is None:
            self.first = {"at_s": snapshot.now_s, "jobs": changes, "nodes": nodes}

    def _places(self, snapshot: Snapshot, recorded: Plan, other: Plan) -> list[dict[str, Any]]:
        jobs, pools = snapshot.jobs, snapshot.pools.ids
        named = {**recorded.targets, **other.targets}
        changes = []
        for index, job in enumerate(jobs.ids):
            phase = int(jobs.phase[index])
            if job not in named or phase == Phase.MOVING:
                continue
            pool = int(jobs.pool[index])
            now: Place = (int(jobs.size[index]), pools[pool] if pool >= 0 else None)
            ours, theirs = _place(recorded, job, now), _place(other, job, now)
            if ours == theirs:
                continue
            tally = self.jobs.setdefault(job, Counter())
            kinds = _kinds(phase == Phase.RUNNING, ours, theirs)
            tally.update(kinds)
            self.totals.update(kinds)
            changes.append(
                {"job": job, "now": _said(now), "recorded": _said(ours), "other": _said(theirs)}
            )
        return changes

    def _nodes(self, verb: str, recorded: list[str], other: list[str]) -> list[dict[str, Any]]:
        only_recorded = [node for node in recorded if node not in other]
        only_other = [node for node in other if node not in recorded]
        self.totals[f"{verb}_both"] += len(recorded) - len(only_recorded)
        self.totals[f"{verb}_only_recorded"] += len(only_recorded)
        self.totals[f"{verb}_only_other"] += len(only_other)
        return [{"node": node, "verb": verb, "by": "recorded"} for node in only_recorded] + [
            {"node": node, "verb": verb, "by": "other"} for node in only_other
        ]

    def to_dict(self) -> dict[str, Any]:
        """Give the result with JSON types only."""
        most = sorted(self.jobs.items(), key=lambda item: (-item[1].total(), item[0]))
        verbs = ("lend", "reclaim")
        return {
            "policy": self.line,
            "cycles": self.cycles,
            "cycles_differing": self.differing,
            "first": self.first,
            "jobs_differing": len(self.jobs),
            "differences": {
                kind: self.totals[kind] for kind in ("size", "pool", "starts", "preempted")
            },
            "jobs": [{"job": job, **dict(sorted(tally.items()))} for job, tally in most][
                :_JOBS_SHOWN
            ],
            **{
                verb: {
                    who: self.totals[f"{verb}_{who}"]
                    for who in ("both", "only_recorded", "only_other")
                }
                for verb in verbs
            },
        }


@dataclass(frozen=True, slots=True)
class _Watched:
    policy: Policy
    comparison: Comparison

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, snapshot: Snapshot) -> Plan:
        plan = self.policy.plan(snapshot)
        comparison = self.comparison
        if comparison.error is None:
            try:
                comparison.add(snapshot, plan, comparison.other.plan(self._shown(snapshot)))
            except Exception as error:  # noqa: BLE001 - it is not the recorded policy's
                comparison.error = error
        return plan

    def _shown(self, snapshot: Snapshot) -> Snapshot:
        """Give what the other policy may see: notes are for who wrote them."""
        if self.comparison.other.name == self.policy.name:
            return snapshot
        notes = np.full_like(snapshot.jobs.notes, np.nan)
        notes.flags.writeable = False
        return replace(snapshot, jobs=replace(snapshot.jobs, notes=notes))


def _place(plan: Plan, job: str, now: Place) -> Place:
    if job not in plan.targets:
        return now
    target = plan.targets[job]
    return (0, None) if target is None else (target.size, target.pool)


def _kinds(running: bool, ours: Place, theirs: Place) -> list[str]:
    """Say in what two places differ: one holds no GPU, or sizes, pools or both do."""
    if not ours[0] or not theirs[0]:
        return ["preempted" if running else "starts"]
    return [
        name
        for name, a, b in (("size", ours[0], theirs[0]), ("pool", ours[1], theirs[1]))
        if a != b
    ]


def _said(place: Place) -> dict[str, object]:
    return {"gpus": place[0], "pool": place[1]}
