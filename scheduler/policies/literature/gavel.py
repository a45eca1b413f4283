"""Shares of time on each type of GPU by a linear program, served in rounds: `gavel`.

Types are the training pools. scipy is imported when first needed: the base install has none.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import NOTE, Floats, Ints, Kind, Phase, Plan, Snapshot
from scheduler.policies.parts.fixed import Gangs, Verdict, gangs, write
from scheduler.policies.parts.portable import weighed
from scheduler.policies.ranges import Amount

#: Types whose times are remembered one by one: a note's first number is the end of the round.
_TYPES = NOTE - 1
#: Digits by which rows are told apart when like jobs are put together.
_DIGITS = 12
#: A dual value from which on a job is a bottleneck. They add up to 1.
_BINDS = 1e-9


def fair_shares(rate: Floats, gpus: Ints, weight: Floats, capacity: Ints) -> Floats:
    """(n, t) parts of time on each type so that the smallest effective share is the largest.

    Job i's effective share is weight_i times sum_j rate_ij X_ij. Jobs that cannot be given more are
    frozen and the others raised again, until all are: the shares are lexicographically max-min.
    Which jobs are frozen is read off the dual values: who has one is tight in every optimum. Jobs
    that are alike are one variable with their number as its weight in the capacity, exact by
    symmetry.

    Args:
        rate: (n, t) work per second on each type; 0 where it cannot run.
        gpus: (n,) gangs.
        weight: (n,) that makes shares comparable.
        capacity: (t,) GPUs of each type.

    Raises:
        RuntimeError: The solver failed; a bug, for X = 0 is always feasible.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    shares = np.zeros(rate.shape)
    able = np.flatnonzero((np.where(gpus[:, None] <= capacity, rate, 0.0) > 0).any(axis=1))
    if not len(able):
        return shares
    scaled = np.where(gpus[:, None] <= capacity, rate, 0.0) * weight[:, None]
    scaled /= scaled[able].max()
    keys = np.concatenate((np.round(scaled[able], _DIGITS), gpus[able, None]), axis=1)
    rows, group, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    value, size = rows[:, :-1], rows[:, -1]
    u, t = value.shape
    x = np.arange(u * t)
    who, what = x // t, x % t
    # Rows: u of "level - sum_j value X <= 0", u of "sum_j X <= 1", t of the capacity.
    entry = (
        np.concatenate((-value.ravel(), np.ones(u), np.ones(u * t), (count * size)[who])),
        (
            np.concatenate((who, np.arange(u), u + who, 2 * u + what)),
            np.concatenate((x, np.full(u, u * t), x, x)),
        ),
    )
    matrix = coo_array(entry, shape=(2 * u + t, u * t + 1)).tocsc()
    most = np.where(value.ravel() > 0, 1.0, 0.0)
    bounds = np.stack((np.zeros(u * t + 1), np.append(most, np.inf)), axis=1)
    limit = np.concatenate((np.zeros(u), np.ones(u), capacity.astype(np.float64)))
    cost = np.append(np.zeros(u * t), -1.0)
    frozen = np.zeros(u, dtype=np.bool_)
    parts = np.zeros((u, t))
    while not frozen.all():
        found = linprog(cost, A_ub=matrix, b_ub=limit, bounds=bounds, method="highs")  # type: ignore[call-overload]  # the stubs know no sparse matrix
        if found.status != 0 and frozen.any():
            break  # the frozen levels leave the solver no room: what it found before holds
        if found.status != 0:
            raise RuntimeError(f"the linear program of {u} groups failed: {found.message}")
        parts = np.clip(found.x[:-1], 0.0, 1.0).reshape(u, t)
        level = float(found.x[-1])
        tight = ~frozen & (-found.ineqlin.marginals[:u] > _BINDS)
        if not tight.any():
            break
        frozen |= tight
        # A frozen job keeps its level: "-sum_j value X <= -level", without the variable.
        limit[:u][tight] = -level * (1 - 1e-7)
        keep = matrix.tocoo()
        gone = (keep.col == u * t) & np.isin(keep.row, np.flatnonzero(tight))
        left = (keep.data[~gone], (keep.row[~gone], keep.col[~gone]))
        matrix = coo_array(left, shape=matrix.shape).tocsc()
    shares[able] = parts[group.ravel()]
    return shares


@dataclass(frozen=True, slots=True)
class Gavel:
    """Max-min fair time on GPU types, in rounds (Gavel).

    Equalised is effective throughput times gang, over what the job would have with an equal part
    of all types. In a round, (job, type) pairs are served by time due over time had, what was never
    had first; each job on one type, gangs that do not fit are passed.

    What we do differently: within a round idle GPUs go to gangs that fit, waiting gangs first; in
    a new one a job whose type was not served to the end takes what is idle; programs are solved
    each round, from the jobs there are, to the lexicographic optimum; a job's time on a type counts
    from when it was first seen. Notes: the end of the round, seconds had on the first three types;
    the rest of the time held counts for the other types alike.
    """

    name: str = "gavel"
    round_s: Amount = 360.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start a round if the last one is over, and fill what is idle."""
        found, jobs, now_s = gangs(snapshot), snapshot.jobs, snapshot.now_s
        round_end_s = float(np.nanmax(np.append(jobs.notes[:, 0], -np.inf)))
        had, notes = self._had(found, round_end_s)
        room, given = found.room.tolist(), found.pool.copy()
        share, types = np.zeros(had.shape), np.arange(had.shape[1])
        if now_s >= round_end_s:
            share = self._shares(found)
            back = np.bincount(found.pool[found.runs], found.size[found.runs], len(room))
            room = (found.room + back.astype(np.int64)).tolist()
            given = np.where(found.runs, -1, found.pool)
            # Ties: where it runs, then by submission.
            priority = np.where(had > 0, share / np.maximum(had, 1e-9), 1e9 * share)
            stays = found.pool[:, None] == types
            order = np.lexsort((~stays.ravel(), -share.ravel(), -priority.ravel()))
            self._serve(found, order[share.ravel()[order] > 0].tolist(), room, given)
            notes = {job: (now_s + self.round_s, *note[1:]) for job, note in notes.items()}
        waiting = np.flatnonzero((given < 0) & (found.starts | found.runs))
        age_s = np.maximum(now_s - jobs.submit_s, 1.0)
        due = np.argsort((jobs.held_s / age_s)[waiting], kind="stable")
        m = len(types)
        rest = [job * m + pool for job in waiting[due].tolist() for pool in self._homes(found, job)]
        self._serve(found, rest, room, given)
        figures = {"share": share.sum(axis=1), "share_had": had.sum(axis=1)}
        verdict = Verdict(given, "gavel.share", figures=figures)
        verdict.notes = {jobs.ids[job]: note for job, note in notes.items()}
        return write(found, verdict)

    def _homes(self, found: Gangs, job: int) -> tuple[int, ...]:
        own = int(found.pool[job])
        return (own,) if own >= 0 else found.pools[job]

    def _serve(self, found: Gangs, order: list[int], room: list[int], given: Ints) -> None:
        m, sizes = len(room), found.size.tolist()
        for at in order:
            job, pool = divmod(at, m)
            if given[job] < 0 and room[pool] >= sizes[job]:
                given[job] = pool
                room[pool] -= sizes[job]

    def _shares(self, found: Gangs) -> Floats:
        """(n, m) parts of time of all that run or may start."""
        jobs = found.seen.jobs
        shares = np.zeros(found.speed.shape)
        who = np.flatnonzero(found.runs | found.starts)
        back = np.bincount(found.pool[found.runs], found.size[found.runs], len(found.room))
        capacity = (found.room + back).astype(np.int64)
        work = jobs.remaining_steps[who] / found.left_s[who]
        rate = found.speed[who] * work[:, None]
        alike = weighed(rate, capacity / max(1, int(capacity.sum())))
        weight = found.size[who] / np.maximum(alike, 1e-12)
        types = capacity.nonzero()[0]  # of several best answers, one without GPUs changes which
        parts = fair_shares(rate[:, types], found.size[who], weight, capacity[types])
        shares[np.ix_(who, types)] = parts
        return shares

    def _had(self, found: Gangs, round_end_s: float) -> tuple[Floats, dict[int, tuple[float, ...]]]:
        """(n, m) part of its life on each type; and the notes as they are at the present."""
        jobs, now_s = found.seen.jobs, found.seen.now_s
        pools = found.seen.pools
        trains = (pools.kind == Kind.TRAINING) & pools.occupied(found.seen.nodes)
        types = np.flatnonzero(trains).tolist()
        noted = np.nan_to_num(jobs.notes[:, 1:], nan=0.0)
        begun_s = np.maximum(jobs.changed_s, round_end_s - self.round_s)
        now_on = np.where(found.runs & (now_s >= round_end_s), now_s - begun_s, 0.0)
        had = np.zeros(found.speed.shape)
        notes: dict[int, tuple[float, ...]] = {}
        for column, pool in enumerate(types[:_TYPES]):
            noted[:, column] += np.where(found.pool == pool, np.minimum(now_on, jobs.held_s), 0.0)
            had[:, pool] = noted[:, column]
        if others := types[_TYPES:]:
            rest = np.maximum(jobs.held_s - noted.sum(axis=1), 0.0)
            had[:, others] = rest[:, None] / len(others)
        had /= np.maximum(now_s - jobs.submit_s, 1.0)[:, None]
        if now_s >= round_end_s:
            for job in np.flatnonzero(jobs.phase != Phase.MOVING).tolist():
                notes[job] = (round_end_s, *noted[job].tolist())
        return had, notes
