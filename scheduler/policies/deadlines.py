"""Deadlines: the share each job must have to be in time, and who goes to the edge for it.

Composes `share` (ElasticFlow) and `offload` (EdgeFlow) over the sites of a draft. All cloud sites
count as one pool here: a share is an amount, its place is decided later. For each job that pool is
as fast as the sites that it may use are on average, each weighted by the GPUs that it can give.
"""

from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import RUNNING, WAITING, Bools, Figure, Floats, Ints
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.curves import level_within
from scheduler.policies.parts.draft import Draft
from scheduler.policies.parts.offload import Cloud, OffloadOptions, edge_ends, offload
from scheduler.policies.parts.share import Shares, end_with_more, satisfy
from scheduler.policies.ranges import Share


@dataclass(frozen=True, slots=True)
class DeadlineOptions:
    """How hard to try."""

    offload: OffloadOptions = field(default_factory=OffloadOptions)
    grace_s: float = 600.0  #: a job this close to its latest start may preempt.
    #: A job keeps a size above its share while the share alone would leave less than this part of
    #: its time to spare; otherwise it would fall behind and climb again, with a pause each time.
    spare_fraction: Share = 0.1
    settle_s: float = 600.0  #: a job that changed less long ago is not offloaded.


@dataclass(slots=True)
class Guarantee:
    """What deadlines ask for, of t jobs that have one and are, or shall be, in the cloud."""

    jobs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  #: by deadline.
    share: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  #: GPUs to have now.
    end_s: Floats = field(default_factory=lambda: np.zeros(0))  #: with the share; inf: never.
    satisfied: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))


def guarantee(draft: Draft, homeless: list[int], options: DeadlineOptions) -> Guarantee:
    """Apply the offload rules to the draft, and return the shares of those in the cloud."""
    jobs = draft.snapshot.jobs
    timed = np.isfinite(jobs.deadline_s)
    if not timed.any():
        return Guarantee()
    in_cloud = draft.in_cloud()
    waits = np.zeros(len(in_cloud), dtype=bool)
    waits[[*draft.waiting(), *homeless]] = True
    rows = np.flatnonzero(timed & (in_cloud | waits))
    rows = rows[np.argsort(jobs.deadline_s[rows], kind="stable")]
    if not len(rows):
        return Guarantee()
    cloud = ~draft.edge
    bases = draft.curve.sizes[draft.floor]
    held = np.bincount(draft.site[in_cloud], bases[in_cloud], len(cloud)).astype(np.int64)
    gives: Ints = np.where(cloud, draft.slack + held, 0)
    shares, work, rate = _shares(draft, rows, gives)
    servers = _servers(draft)
    if servers:
        others = int(bases[in_cloud & ~timed].sum())
        idle = int(gives.sum()) - int(shares.gpus_now.sum()) - others > 0
        moved = _offload(draft, rows, homeless, shares, work, rate, idle, servers, options)
        if moved:
            stays = np.ones(len(in_cloud), dtype=np.bool_)
            stays[moved] = False
            rows = rows[stays[rows]]
            shares, _, _ = _shares(draft, rows, gives)
    due_s, size = jobs.deadline_s[rows], jobs.size[rows]
    spare_s = due_s - shares.end_s
    near = (spare_s >= 0) & (spare_s < options.spare_fraction * (due_s - draft.now_s))
    near &= draft.was[rows] >= 0
    share = np.where(near, np.maximum(shares.gpus_now, size), shares.gpus_now)
    return Guarantee(rows, share, shares.end_s, shares.satisfied)


def promise(draft: Draft, found: Guarantee, settled: Bools) -> None:
    """Let each job that can be in time keep its share, by deadline, as far as there is room.

    A settled job does not grow for its share now: the share is found again in each cycle, and
    following it at once costs more pauses than it gains time.
    """
    _lift(draft, found, True, settled)


def hold(draft: Draft, found: Guarantee, settled: Bools) -> None:
    """Once gangs have started: keep shares, then settled sizes, then be less late.

    Those that miss their deadline come last: nobody waits, and nobody just grown shrinks, for a
    deadline that is not met anyway.

    Args:
        draft: With the sites of all jobs decided.
        found: What deadlines ask for.
        settled: (n,) jobs that changed a moment ago.
    """
    promise(draft, found, settled)
    stays = np.flatnonzero(settled & (draft.site == draft.was) & ~draft.forced)
    _raise(draft, stays, draft.snapshot.jobs.size[stays])
    _lift(draft, found, False, settled)


def _lift(draft: Draft, found: Guarantee, in_time: bool, settled: Bools) -> None:
    """Raise the floors of those that can be in time, or of the others, to their shares."""
    mine = (found.satisfied == in_time).nonzero()[0]
    rows, gpus = found.jobs[mine], found.share[mine]
    rests = settled[rows] & (draft.site[rows] == draft.was[rows])
    asks = np.where(rests, np.minimum(gpus, draft.snapshot.jobs.size[rows]), gpus)
    rose = mine[_raise(draft, rows, asks)]
    rule = "deadline.share" if in_time else "deadline.late"
    for job, share, end_s in zip(
        found.jobs[rose].tolist(),
        found.share[rose].tolist(),
        found.end_s[rose].tolist(),
        strict=True,
    ):
        draft.shares[job] = (rule, share, end_s)


def _raise(draft: Draft, rows: Ints, gpus: Ints) -> list[int]:
    """Raise floors to at most so many GPUs each, as far as there is room; return which rose."""
    curve = draft.curve
    asks = ((draft.site[rows] >= 0) & (gpus > curve.sizes[draft.floor[rows]])).nonzero()[0]
    if not len(asks):
        return []
    who = rows[asks]
    fits = curve.allowed[who] & (curve.sizes <= gpus[asks, None])  # their floors do
    last = len(curve.sizes) - 1 - fits[:, ::-1].argmax(axis=1)
    sizes: list[int] = curve.sizes.tolist()
    slack: list[int] = draft.slack.tolist()
    rose = []
    columns = asks, who, draft.site[who], draft.floor[who], last
    for index, job, at, have, level in zip(*(c.tolist() for c in columns), strict=True):
        room = slack[at]
        if sizes[level] - sizes[have] > room:
            level = level_within(curve, job, sizes[have] + max(room, 0))
        if level > have:
            draft.floor[job] = level
            slack[at] -= sizes[level] - sizes[have]
            rose.append(index)
    draft.slack[:] = slack
    return rose


def urgent(draft: Draft, job: int, site: int, options: DeadlineOptions) -> bool:
    """Say whether a waiting job must start about now to be in time, and can still be."""
    jobs, curve = draft.snapshot.jobs, draft.curve
    best = float(curve.rate[job, curve.top[job]] * draft.pace(job, site))
    need_s = float(jobs.remaining_steps[job]) / max(best, 1e-12) + float(jobs.start_cost_s[job])
    spare_s = float(jobs.deadline_s[job]) - draft.now_s - need_s
    return 0.0 <= spare_s <= options.grace_s


def _shares(draft: Draft, rows: Ints, gives: Ints) -> tuple[Shares, Floats, Floats]:
    """Find the shares of r jobs in what each site gives, with their work and (r, k) rates."""
    jobs, curve = draft.snapshot.jobs, draft.curve
    cloud = np.flatnonzero(gives > 0)
    weight = np.where(draft.able(rows, cloud), gives[cloud], 0)
    pace = (weight * draft.pace(rows[:, None], cloud)).sum(axis=1)
    pace /= np.maximum(weight.sum(axis=1), 1.0)
    rate = np.where(curve.allowed[rows], curve.rate[rows] * pace[:, None], 0.0)
    work = jobs.remaining_steps[rows]
    # A job that has yet to start loses the pause of its start.
    start_s = np.where(jobs.phase[rows] == WAITING, jobs.start_cost_s[rows], 0.0)
    deadline_s = jobs.deadline_s[rows] - start_s
    gpus = int(gives.sum())
    return satisfy(draft.now_s, gpus, work, deadline_s, curve.sizes, rate), work, rate


def _servers(draft: Draft) -> list[int]:
    """Return edge sites where nobody is and something is free."""
    empty = draft.edge & (draft.slack > 0)
    empty[draft.site[draft.site >= 0]] = False
    found: list[int] = empty.nonzero()[0].tolist()
    return found


def _offload(
    draft: Draft,
    rows: Ints,
    homeless: list[int],
    shares: Shares,
    work: Floats,
    rate: Floats,
    idle: bool,
    servers: list[int],
    options: DeadlineOptions,
) -> list[int]:
    jobs, curve, reading = draft.snapshot.jobs, draft.curve, options.offload
    offered = np.searchsorted(curve.sizes, draft.slack[servers], side="right") - 1  # (e,)
    able = jobs.edge_allowed[rows][:, None] & (offered[None, :] >= curve.base[rows][:, None])
    if not able.any():
        return []
    pace = draft.pace(rows[:, None], np.array(servers, dtype=np.int64))
    there = np.where(able, curve.rate[rows][:, np.maximum(offered, 0)] * pace, 0.0)
    path = np.array([draft.capacity.transfer_mib_per_s[site] for site in servers])
    runs = jobs.phase[rows] == RUNNING
    moved_mib = np.where(runs, jobs.checkpoint_mib[rows], 0.0)[:, None]
    transfer_s = moved_mib / np.maximum(path, 1e-9) + curve.change_s[rows][:, None]
    ends_s = edge_ends(
        draft.now_s,
        work,
        there,
        jobs.memory_mib[rows],
        draft.memory_mib[servers],
        transfer_s,
        reading,
    )
    was = draft.was[rows]
    lost = np.zeros(len(draft.was), dtype=np.bool_)
    lost[homeless] = True
    evicted = lost[rows] & (was >= 0) & draft.edge[was]
    contended = len(draft.waiting()) > 0 or not shares.satisfied.all()
    rested = draft.now_s - jobs.changed_s[rows] >= options.settle_s
    can = np.isfinite(ends_s).any(axis=1)  # be sent anywhere
    evicted &= can
    candidates = can & ~evicted & ((draft.site[rows] < 0) | (rested & contended))
    if not (evicted | candidates).any():
        return []
    at_largest = shares.gpus_now >= curve.sizes[curve.top[rows]]
    asked = candidates & ~at_largest
    cloud = Cloud(
        shares.end_s,
        _grown(asked, draft, shares, work, rate, jobs.deadline_s[rows]),
        at_largest,
        idle,
    )
    columns = list(range(len(servers)))
    deadline_s = jobs.deadline_s[rows]
    who = evicted.nonzero()[0].tolist(), candidates.nonzero()[0].tolist()
    moved = []
    for move in offload(deadline_s, cloud, ends_s, columns, *who, reading):
        job, site = int(rows[move.job]), servers[move.server]
        figures = (
            Figure("edge_end_s", float(ends_s[move.job, move.server])),
            Figure("cloud_end_s", float(cloud.end_s[move.job])),
            Figure("deadline_s", float(deadline_s[move.job])),
        )
        draft.put(job, site, Because(f"edgeflow.{move.rule}", (), figures))
        moved.append(job)
    return moved


def _grown(
    asked: Bools, draft: Draft, shares: Shares, work: Floats, rate: Floats, deadline_s: Floats
) -> Floats:
    """(n,) equation 7's end of each late job asked for, with one size more until the next event."""
    ends_s = shares.end_s.copy()
    coming = shares.end_s[np.isfinite(shares.end_s)]
    until_s = float(coming.min()) if len(coming) else draft.now_s + 60.0
    asked = asked & (rate > 0).any(axis=1)
    for index in np.flatnonzero(asked & (shares.end_s > deadline_s)).tolist():
        may = rate[index] > 0
        sizes, own = draft.curve.sizes[may], rate[index, may]
        filling = shares.filling(index)
        ends_s[index] = end_with_more(shares.profile, filling, work[index], sizes, own, until_s)
    return ends_s
