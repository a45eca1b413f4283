"""Deadlines in one pool, and at the edge: as many as can be met, and no promise that is not kept.

A job is promised to be in time when it starts ("commitment on admission" in the literature of
online scheduling), a large one when its rest is small enough; until then it competes anew in every
plan, the job with the least GPU time first, because that is how most of them can be met (as Moore
and Hodgson do for one machine). It is never refused. A promise is backed by a course of GPUs over
time (`commitments`) that counts every pause it needs.

What it knows that ElasticFlow does not: what a change of size costs, in pauses; which of its jobs
can lend GPUs for a short one and be back in time; that a job for which there is no room now may
find some later. What EDF does not: lengths, speeds at other sizes. What Tiresias, Gandiva and
Themis do not: deadlines, lengths, speeds. What EdgeFlow does not: that it pays to leave a large
late job for several small ones. It does not know who will come.
"""

from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import Bools, Figure, Floats, Ints, Kind, Need, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.commitments import (
    LOANS,
    PROMISED,
    Courses,
    Piece,
    borrow,
    free_over_time,
    renewed,
    resume,
    written,
)
from scheduler.policies.parts.contest import Contest, contests, write
from scheduler.policies.parts.elastic import ElasticOptions, grow, weights
from scheduler.policies.parts.laxity import Laxity, latest_return_s, laxity
from scheduler.policies.parts.loans import Loans
from scheduler.policies.parts.reservations import earliest, reserve
from scheduler.policies.timely_edge import arrivals, fill, offered, send, told, without

#: At so many sizes, from the least on, a job tries to borrow room.
_LARGER = 3


@dataclass(frozen=True, slots=True)
class TimelyOptions:
    """How careful, how patient. Tuned on nothing but the public ElasticFlow traces."""

    #: What each doubling of a gang adds to the pause of its start (physics.md B).
    doubling_s: float = 2.0
    #: A plan may be followed so much too late: what is planned for later has this much to spare.
    late_s: float = 60.0
    #: Waiting jobs that find no room, until the rest is left for the next plan.
    tries: int = 8
    #: Jobs for which room is kept later on, smallest first.
    ahead: int = 48
    #: A promise is given once the rest needs no more than the whole pool for so long, and no more
    #: GPU time than the median job takes in all; a larger one runs without, and may still lose its
    #: GPUs to smaller ones.
    pledge_s: float = 900.0
    horizon_s: float = 600.0  #: a change of a surplus must pay for its pause within this.
    ripple: float = 2.0  #: a change is counted so many times: others have to change because of it.
    #: What a GPU is worth to the best of the jobs that have no deadline, or are late whatever they
    #: get. At 1 they take it from those for whom it would not save as much GPU time as it takes.
    spare: float = 1.0
    weights: ElasticOptions = field(
        default_factory=lambda: ElasticOptions(rank_power=0.3, length_power=0.35)
    )


def has_deadlines(seen: Snapshot) -> bool:
    """Whether training in one pool, and the edge, is all there is, some of it with deadlines."""
    jobs, kinds = seen.jobs, seen.pools.kind[seen.pools.occupied(seen.nodes)]
    return bool(
        np.count_nonzero(kinds == Kind.TRAINING) == 1
        and not (kinds == Kind.INFERENCE).any()
        and np.isfinite(jobs.deadline_s).any()
        and (jobs.priority == 0).all()
    )


def timely(seen: Snapshot, options: TimelyOptions, loans: Loans | None = None) -> Plan:
    """Decide all sizes.

    1. Promised jobs are planned at the least constant size that is in time, or as they were
       promised (`commitments.resume`).
    2. The others that could still be in time come by the GPU time they need, least first. Each
       starts at its least size if that is free to its end; or room is kept for it later, if it can
       be in time then; or jobs that have time to spare lend it (`commitments.borrow`). Who starts
       is promised, but for one larger than most (`_small`): several others could pay for it.
    3. What is left over goes by marginal return: GPU time that a GPU saves later, as ElasticFlow
       has it, but with the pause of the change counted. It finishes work ahead of time, which
       makes room for who comes. Jobs that wait for room, are late, or have no deadline take part;
       what they hold can be taken back.
    4. Where somebody has no promise after 2, edge servers take who is in time there
       (`timely_edge`), and 1 and 2 are done again for the others. Servers left after 3 go to
       jobs without a deadline that got nothing, until a deadline needs them.

    Args:
        seen: What is known.
        options: How careful, how patient.
        loans: Edge servers that change hands.

    Costs O(n k) for n jobs and k sizes; where there is too little for all, O(n log n) more for each
    of some dozens of jobs that want to start.
    """
    loans = loans or Loans()
    reclaim = {seen.nodes.ids[node]: due_s for node, due_s in sorted(loans.reclaim.items())}
    decided: list[tuple[Contest, Ints]] = []
    why: dict[int, Because] = {}
    notes: dict[str, tuple[float, ...]] = {}
    servers = offered(seen, reclaim)
    for whole in contests(seen, reclaim=reclaim):
        contest = whole
        lax, fresh = _courses(seen, contest, options)
        while sent := send(seen, contest, lax, fresh, servers):
            decided.extend(arrivals(seen, contest, sent))
            why |= told(seen, contest, sent)
            contest = without(contest, sent)
            lax, fresh = _courses(seen, contest, options)
        was = seen.jobs.notes[contest.rows]
        level = _share_rest(lax, fresh, options)
        small = _small(lax, seen.jobs.attained_gpu_s[contest.rows], options)
        promised = fresh.kept & (small | (was[:, 0] == PROMISED))
        for job in renewed(lax, fresh, promised, was).tolist():
            notes[seen.jobs.ids[contest.rows[job]]] = written(lax, fresh, job)
        _explain(lax, fresh, promised, level, contest, why)
        decided.append((contest, level))
        rest = fill(seen, contest, lax, level, servers)
        decided.extend(arrivals(seen, contest, rest))
        why |= told(seen, contest, rest)
    return write(
        seen,
        decided,
        "timely.surplus",
        why=why,
        notes=notes,
        lend=tuple(seen.nodes.ids[node] for node in sorted(loans.lend)),
        reclaim=reclaim,
        reasons=tuple(loans.reasons),
    )


def _courses(seen: Snapshot, contest: Contest, options: TimelyOptions) -> tuple[Laxity, Courses]:
    """Plan the promised jobs of a contest, and who joins them."""
    lax = laxity(seen, contest, options.doubling_s)
    return lax, _start(lax, resume(lax, seen.jobs.notes[contest.rows]), options)


def _start(lax: Laxity, courses: Courses, options: TimelyOptions) -> Courses:
    """Plan who can be in time, smallest GPU time first; adds them to those promised."""
    able = np.flatnonzero(~courses.kept & (lax.least > 0))
    order = able[np.lexsort((able, lax.area_gpu_s[able]))]
    if not courses.lending:  # all keep their sizes to the end: room now is room for ever
        used = int(lax.sizes[courses.level].sum())
        fit = np.cumsum(lax.sizes[lax.least[order]]) <= lax.gpus - used
        now = order[: len(order) if fit.all() else int(fit.argmin())]
        courses.stay(now, lax.least[now])
        courses.kept[now] = True
        order = order[len(now) :]
    if not len(order):
        return courses
    profile = free_over_time(lax, courses)
    latest_s = latest_return_s(lax, courses.level)
    kept: list[Piece] = []
    failed = checked = 0
    for job in order.tolist():
        levels = np.flatnonzero(lax.now_s + lax.takes_s[job] <= lax.due_s[job]).tolist()
        for level in levels:
            gpus, takes_s = int(lax.sizes[level]), float(lax.takes_s[job, level])
            start_s = earliest(profile, gpus, takes_s)
            if start_s <= lax.now_s:
                courses.stay(job, level)
                courses.kept[job] = True
                reserve(profile, gpus, start_s, takes_s)
                break
            if start_s + options.late_s + takes_s <= lax.due_s[job] and len(kept) < options.ahead:
                kept.append((start_s, start_s + takes_s, gpus))
                reserve(profile, gpus, start_s, takes_s)
                break
        else:
            for level in levels[:_LARGER] if checked < LOANS else ():
                found = borrow(lax, courses, latest_s, profile, job, level, options.late_s)
                if found is None:
                    continue
                checked += 1
                left = free_over_time(lax, found, kept)
                if left.free.min() >= 0:
                    courses, profile = found, left
                    break
            else:
                failed += 1
        if failed >= options.tries:
            break
    return courses


def _small(lax: Laxity, attained_gpu_s: Floats, options: TimelyOptions) -> Bools:
    """Say whose rest is so small that hardly more than one other could be in time in its place.

    Of those who come about half need less than the median of those that are there. Where lengths
    differ much, those that are there are the long ones, so the pool is a limit as well.
    """
    timed = lax.least > 0
    whole_gpu_s = lax.area_gpu_s[timed] + attained_gpu_s[timed]
    median_gpu_s = float(np.median(whole_gpu_s)) if len(whole_gpu_s) else 0.0
    small: Bools = lax.area_gpu_s <= min(median_gpu_s, options.pledge_s * lax.gpus)
    return small


def _share_rest(lax: Laxity, courses: Courses, options: TimelyOptions) -> Ints:
    """Give out what nobody needs; returns the (r,) levels to have now."""
    level = courses.level
    left = lax.gpus - int(lax.sizes[level].sum())
    if left <= 0 or not len(level):
        return level
    value = _worth(lax, level, options)
    top = np.maximum(len(lax.sizes) - 1 - lax.pays[:, ::-1].argmax(axis=1), level)
    if not courses.lending:
        return grow(lax.sizes, value, level, top, left)
    # Lenders come back for what is theirs: others that are promised may only grow, for as long as
    # they run, by what is never needed, and must not end later for it.
    firm = courses.kept & ~np.isfinite(courses.until_s)
    rows = np.arange(len(level))
    slower = lax.takes_s > lax.takes_s[rows, level][:, None]
    value[firm[:, None] & slower] = -np.inf
    never = int(free_over_time(lax, courses).free.min())
    grown = grow(lax.sizes, value, level, np.where(firm, top, level), min(left, never))
    left = lax.gpus - int(lax.sizes[grown].sum())
    return grow(lax.sizes, value, grown, np.where(courses.kept, grown, top), left)


def _worth(lax: Laxity, level: Ints, options: TimelyOptions) -> Floats:
    """(r, k) GPU time that a second at each level saves later; -inf where it may not be had."""
    rows, levels = np.arange(len(level)), np.arange(len(lax.sizes))
    timed = lax.least > 0
    need = np.where(level > 0, level, np.where(timed, lax.least, lax.pays.argmax(axis=1)))
    below = np.where(lax.pays & (levels < need[:, None]), levels, 0).max(axis=1)
    step = lax.rate[rows, need] - lax.rate[rows, below]
    price = (lax.sizes[need] - lax.sizes[below]) / np.maximum(step, 1e-12)
    others = np.flatnonzero(~timed)
    if len(others):
        unit = lax.sizes[need[others]] / lax.rate[others, need[others]]
        weight = weights(lax.work[others] * unit, options.weights)
        price[others] = options.spare * unit * weight / weight.max()
    runs = lax.present > 0
    # Who waits has to start some day, so its pause is a loss of this run only.
    within_s = np.where(runs[:, None], np.minimum(options.horizon_s, lax.takes_s), lax.takes_s)
    times = np.where(runs, options.ripple, 1.0)[:, None]
    lost = times * lax.pause_s / np.maximum(within_s, 1e-9)
    lost[runs, lax.present[runs]] = 0.0
    value = price[:, None] * lax.rate * np.maximum(1.0 - lost, 0.0)
    ends_s = lax.now_s + lax.takes_s
    late = (ends_s > lax.due_s[:, None]) & (level > 0)[:, None]
    late[rows, level] = False
    allowed = lax.pays & (lax.sizes <= lax.gpus) & ~late
    value = np.where(allowed, value, -np.inf)
    value[rows, level] = np.maximum(value[rows, level], 0.0)  # what is needed, whatever it costs
    value[:, 0] = 0.0
    return value


def _explain(
    lax: Laxity,
    courses: Courses,
    promised: Bools,
    level: Ints,
    contest: Contest,
    why: dict[int, Because],
) -> None:
    """Say what decided, of those that change or wait."""
    changed: Bools = (level != lax.present) | (level == 0)
    best_effort, late = Because("timely.best_effort"), Because("timely.late")
    rows = np.flatnonzero(changed)
    ends_s = lax.now_s + lax.takes_s[rows, level[rows]]
    for job, row, due_s, kept, until_s, end_s in zip(
        rows.tolist(),
        contest.rows[rows].tolist(),
        lax.due_s[rows].tolist(),
        courses.kept[rows].tolist(),
        courses.until_s[rows].tolist(),
        ends_s.tolist(),
        strict=True,
    ):
        due = Figure("deadline_s", due_s)
        if due_s == np.inf:
            why[row] = best_effort
        elif not lax.least[job]:
            why[row] = late
        elif not kept:
            want = Need("gpus", float(lax.sizes[level[job]]), float(lax.sizes[lax.least[job]]))
            why[row] = Because("timely.room", (), (due,), (want,))
        elif until_s < np.inf:
            why[row] = Because("timely.lends", (), (due, Figure("back_s", until_s)))
        else:
            rule = "timely.promised" if promised[job] else "timely.planned"
            rule = "timely.surplus" if level[job] > courses.level[job] else rule
            why[row] = Because(rule, (), (due, Figure("planned_end_s", end_s)))
