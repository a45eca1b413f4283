"""Shortest job first: `sjf`, which never preempts, and `srtf`, which does where it pays.

Both need remaining times (policies.md 2); they are near the best mean completion time for one
server and no gangs, and let long jobs starve.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.policies.interface import Floats, Ints, Plan, Snapshot
from scheduler.policies.parts.fixed import Gangs, Verdict, gangs, sweep, write

#: What is short. `time`: the run time left. `gpu_time`: that times the gang's GPUs, as the released
#: simulator of Tiresias calls `shortest-gpu`. `gpus`: the gang; that simulator calls it `sjf`.
Measure = Literal["time", "gpu_time", "gpus"]


def length(found: Gangs, measure: Measure) -> Floats:
    """(n,) what jobs are ordered by; inf for those that can run nowhere."""
    match measure:
        case "time":
            return found.best_s()
        case "gpu_time":
            return found.best_s() * np.maximum(found.size, 1)
        case "gpus":
            return np.where(found.size > 0, found.size.astype(np.float64), np.inf)


@dataclass(frozen=True, slots=True)
class Sjf:
    """Shortest job first, never preempting (policies.md 2).

    Waiting gangs start in order of `measure`, ties by submission. `passing` lets gangs that fit
    start before a shorter one that does not; without it that one holds everybody back.
    """

    name: str = "sjf"
    measure: Measure = "time"
    passing: bool = True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start the shortest that fit."""
        found = gangs(snapshot)
        key = length(found, self.measure)
        room = found.room.tolist()
        given = found.pool.copy()
        waiting = np.flatnonzero(found.starts)
        for job in waiting[np.argsort(key[waiting], kind="stable")].tolist():
            pool = found.fits(job, room)
            if pool >= 0:
                given[job] = pool
                room[pool] -= int(found.size[job])
            elif not self.passing:
                break
        return write(found, Verdict(given, "sjf.order", figures={"left_s": found.left_s}))


@dataclass(frozen=True, slots=True)
class Srtf:
    """Shortest remaining time first, preempting only what a swap pays for (policies.md 2).

    A waiting job q takes GPUs from a running job r only if T_q + d_q + d_r < T_r: its own time, its
    start and r's checkpoint and later restart all fit into what r still needs. With `gpu_time`
    both sides are weighed by their gangs. From the longest running job on, as few as let q fit;
    who gives way is never one that q could do without. `patience` 0 leaves the pauses out: the
    plain order of all jobs, which preempts the longest at once.
    """

    name: str = "srtf"
    measure: Literal["time", "gpu_time"] = "time"
    patience: float = 1.0  #: times the pauses count.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Serve the shortest."""
        found = gangs(snapshot)
        key = length(found, self.measure)
        if self.patience == 0:
            order = np.lexsort((~found.runs, key))
            able = (found.runs | found.starts)[order]
            given = sweep(found, order[able].tolist())
        else:
            given = self._swap(found, key)
        return write(found, Verdict(given, "srtf.order", figures={"left_s": found.left_s}))

    def _swap(self, found: Gangs, key: Floats) -> Ints:
        jobs = found.seen.jobs
        start_s = self.patience * jobs.start_cost_s
        stop_s = self.patience * (jobs.checkpoint_cost_s + jobs.start_cost_s)
        rows = np.arange(len(key))
        here_s = found.left_s / np.maximum(found.speed[rows, found.pool], 1e-12)
        room, given = found.room.tolist(), found.pool.copy()
        runs = [np.flatnonzero(found.pool == pool) for pool in range(len(room))]
        sizes, weighs = found.size.tolist(), self.measure == "gpu_time"
        #: (pool, weight of q) -> running jobs by what is left of them after the swap, the most
        #: first, with that and the GPUs up to each.
        lists: dict[tuple[int, int], tuple[Ints, Floats, Ints]] = {}
        waiting = np.flatnonzero(found.starts)
        for job in waiting[np.argsort(key[waiting], kind="stable")].tolist():
            pool = found.fits(job, room)
            weight = sizes[job] if weighs else 1
            for other in found.pools[job] if pool < 0 else ():
                at = (other, weight)
                if at not in lists:
                    lists[at] = _ranked(runs[other], here_s, stop_s, found.size, weight, weighs)
                who, worth, gpus = lists[at]
                mine_s = float(found.left_s[job] / found.speed[job, other] + start_s[job])
                longer = int(np.searchsorted(-worth, -mine_s * weight))
                need = sizes[job] - room[other]
                if longer and gpus[longer - 1] >= need:
                    victims = _fewest(who[:longer].tolist(), sizes, need)
                    given[victims] = -1
                    room[other] += sum(sizes[victim] for victim in victims)
                    for stale in [key for key in lists if key[0] == other]:
                        who, worth, _ = lists[stale]
                        stay = given[who] >= 0
                        who = who[stay]
                        lists[stale] = who, worth[stay], np.cumsum(found.size[who])
                    runs[other] = runs[other][given[runs[other]] >= 0]
                    pool = other
                    break
            if pool >= 0:
                given[job] = pool
                room[pool] -= sizes[job]
        return given


def _ranked(
    runs: Ints, here_s: Floats, stop_s: Floats, size: Ints, weight: int, weighs: bool
) -> tuple[Ints, Floats, Ints]:
    """Order running jobs by what a waiting one must be shorter than; the most first."""
    worth = here_s[runs] * (size[runs] if weighs else 1) - stop_s[runs] * weight
    order = np.argsort(-worth, kind="stable")
    return runs[order], worth[order], np.cumsum(size[runs[order]])


def _fewest(candidates: list[int], sizes: list[int], need: int) -> list[int]:
    """Take from the first on until there is enough, then spare whoever is not needed."""
    taken: list[int] = []
    have = 0
    for job in candidates:
        if have >= need:
            break
        taken.append(job)
        have += sizes[job]
    for job in list(taken):
        if have - sizes[job] >= need:
            taken.remove(job)
            have -= sizes[job]
    return taken
