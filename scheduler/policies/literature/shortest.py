"""Shortest job first: `sjf`, which never preempts, and `srtf`, which does where it pays.

Both need remaining times; they are near the best mean completion time for one
server and no gangs, and let long jobs starve.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import WAITING, Floats, Ints, Plan, Snapshot
from scheduler.policies.parts.fixed import Gangs, Verdict, gangs, write


@dataclass(frozen=True, slots=True)
class Sjf:
    """Shortest job first, never preempting.

    Waiting gangs start in order of the run time left, ties by submission; gangs that fit start
    before a shorter one that does not.
    """

    name: str = "sjf"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start the shortest that fit."""
        found = gangs(snapshot)
        key = found.best_s()
        room = found.room.tolist()
        given = found.pool.copy()
        for job in _turns(found, key).tolist():
            pool = found.fits(job, room)
            if pool >= 0:
                given[job] = pool
                room[pool] -= int(found.size[job])
        return write(found, Verdict(given, "sjf.order", figures={"left_s": found.left_s}))

    def queue(self, snapshot: Snapshot) -> list[str]:
        """Name the waiting jobs in the order of their turns."""
        return _queue(snapshot)


@dataclass(frozen=True, slots=True)
class Srtf:
    """Shortest remaining time first, preempting only what a swap pays for.

    A waiting job q takes GPUs from a running job r only if T_q + d_q + d_r < T_r: its own time, its
    start and r's checkpoint and later restart all fit into what r still needs. From the longest
    running job on, as few as let q fit; who gives way is never one that q could do without.
    """

    name: str = "srtf"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Serve the shortest."""
        found, jobs = gangs(snapshot), snapshot.jobs
        key, rows = found.best_s(), np.arange(len(jobs.ids))
        here_s = found.left_s / np.maximum(found.speed[rows, found.pool], 1e-12)
        #: What a job that takes its place must be shorter than.
        worth = here_s - (jobs.checkpoint_cost_s + jobs.start_cost_s)
        room, given, sizes = found.room.tolist(), found.pool.copy(), found.size.tolist()
        runs = [_ranked(np.flatnonzero(found.pool == pool), worth) for pool in range(len(room))]
        for job in _turns(found, key).tolist():
            pool = found.fits(job, room)
            for other in found.pools[job] if pool < 0 else ():
                who = runs[other]
                mine_s = float(found.left_s[job] / found.speed[job, other] + jobs.start_cost_s[job])
                longer = int(np.searchsorted(-worth[who], -mine_s))
                need = sizes[job] - room[other]
                if longer and found.size[who[:longer]].sum() >= need:
                    victims = _fewest(who[:longer].tolist(), sizes, need)
                    given[victims] = -1
                    room[other] += sum(sizes[victim] for victim in victims)
                    runs[other] = who[given[who] >= 0]
                    pool = other
                    break
            if pool >= 0:
                given[job] = pool
                room[pool] -= sizes[job]
        return write(found, Verdict(given, "srtf.order", figures={"left_s": found.left_s}))

    def queue(self, snapshot: Snapshot) -> list[str]:
        """Name the waiting jobs in the order of their turns."""
        return _queue(snapshot)


def _turns(found: Gangs, key: Floats) -> Ints:
    """Order the gangs that may start: the shortest first, ties by submission."""
    waiting = np.flatnonzero(found.starts)
    ordered: Ints = waiting[np.argsort(key[waiting], kind="stable")]
    return ordered


def _queue(snapshot: Snapshot) -> list[str]:
    found, jobs = gangs(snapshot), snapshot.jobs
    turns = _turns(found, found.best_s()).tolist()
    return [jobs.ids[job] for job in turns if jobs.phase[job] == WAITING]


def _ranked(runs: Ints, worth: Floats) -> Ints:
    """Order running jobs by what a waiting one must be shorter than; the most first."""
    return runs[np.argsort(-worth[runs], kind="stable")]


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
