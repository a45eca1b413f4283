"""Deadlines: the share each job must have to be in time, and who goes to the edge for it.

Composes `share` (ElasticFlow) and `offload` (EdgeFlow) over the sites of a draft. All cloud sites
count as one pool here, of their mean speed: a share is an amount, its place is decided later.
"""

from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.curves import level_within
from scheduler.policies.draft import Draft, Why
from scheduler.policies.interface import Bools, Figure, Floats, Ints, Kind, Phase
from scheduler.policies.offload import Cloud, OffloadOptions, edge_ends, offload
from scheduler.policies.share import Shares, end_with_more, satisfy


@dataclass(frozen=True, slots=True)
class DeadlineOptions:
    """How hard to try."""

    offload: OffloadOptions = field(default_factory=OffloadOptions)
    grace_s: float = 600.0  #: a job this close to its latest start may preempt.
    #: A job keeps a size above its share while the share alone would leave less than this part of
    #: its time to spare; otherwise it would fall behind and climb again, with a pause each time.
    spare_fraction: float = 0.1
    settle_s: float = 600.0  #: a job that changed less long ago is not offloaded.


@dataclass(slots=True)
class Guarantee:
    """What deadlines ask for, per job that has one and is, or shall be, in the cloud."""

    jobs: list[int] = field(default_factory=list)  #: by deadline.
    share: dict[int, int] = field(default_factory=dict)  #: GPUs to have now.
    end_s: dict[int, float] = field(default_factory=dict)  #: with the share; inf: never.
    satisfied: dict[int, bool] = field(default_factory=dict)


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
    cloud = draft.kind != Kind.EDGE
    bases = draft.curve.sizes[draft.floor]
    gpus = int(draft.slack[cloud].sum() + bases[in_cloud].sum())
    shares, work, rate = _shares(draft, rows, gpus)
    servers = _servers(draft)
    if servers:
        others = int(bases[in_cloud & ~timed].sum())
        idle = gpus - int(shares.gpus_now.sum()) - others > 0
        moved = _offload(draft, rows, homeless, shares, work, rate, idle, servers, options)
        if moved:
            rows = rows[~np.isin(rows, moved)]
            shares, _, _ = _shares(draft, rows, gpus)
    found = Guarantee(rows.tolist())
    for index, job in enumerate(found.jobs):
        left_s = float(jobs.deadline_s[job]) - draft.now_s
        spare_s = float(jobs.deadline_s[job] - shares.end_s[index])
        found.share[job] = int(shares.gpus_now[index])
        found.end_s[job] = float(shares.end_s[index])
        if 0 <= spare_s < options.spare_fraction * left_s and draft.was[job] >= 0:
            found.share[job] = max(found.share[job], int(jobs.size[job]))
        found.satisfied[job] = bool(shares.satisfied[index])
    return found


def promise(draft: Draft, found: Guarantee, settled: Bools) -> None:
    """Let each job that can be in time keep its share, by deadline, as far as there is room.

    A settled job does not grow for its share now: the share is found again in each cycle, and
    following it at once costs more pauses than it gains time.
    """
    for job in found.jobs:
        if found.satisfied[job]:
            _lift(draft, found, job, settled)


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
    for job in np.flatnonzero(settled).tolist():
        if draft.site[job] == draft.was[job] and not draft.forced[job]:
            _raise(draft, job, int(draft.snapshot.jobs.size[job]))
    for job in found.jobs:
        if not found.satisfied[job]:
            _lift(draft, found, job, settled)


def _lift(draft: Draft, found: Guarantee, job: int, settled: Bools) -> None:
    gpus = found.share[job]
    if settled[job] and draft.site[job] == draft.was[job]:
        gpus = min(gpus, int(draft.snapshot.jobs.size[job]))
    if _raise(draft, job, gpus):
        figures = (
            Figure("share_gpus", found.share[job]),
            Figure("deadline_s", float(draft.snapshot.jobs.deadline_s[job])),
            Figure("share_end_s", found.end_s[job]),
        )
        rule = "deadline.share" if found.satisfied[job] else "deadline.late"
        draft.shares[job] = Why(rule, (), figures)


def _raise(draft: Draft, job: int, gpus: int) -> bool:
    """Raise a floor to at most so many GPUs, as far as there is room; tell whether it rose."""
    site = draft.site[job]
    if site < 0:
        return False
    have = draft.size_at(job, int(draft.floor[job]))
    level = level_within(draft.curve, job, min(gpus, have + max(int(draft.slack[site]), 0)))
    if level <= draft.floor[job]:
        return False
    draft.raise_floor(job, level)
    return True


def urgent(draft: Draft, job: int, site: int, options: DeadlineOptions) -> bool:
    """Say whether a waiting job must start about now to be in time, and can still be."""
    jobs, curve = draft.snapshot.jobs, draft.curve
    best = float(curve.rate[job, curve.top[job]]) * draft.capacity.speed[site]
    need_s = float(jobs.remaining_steps[job]) / max(best, 1e-12) + float(jobs.start_cost_s[job])
    spare_s = float(jobs.deadline_s[job]) - draft.now_s - need_s
    return 0.0 <= spare_s <= options.grace_s


def _shares(draft: Draft, rows: Ints, gpus: int) -> tuple[Shares, Floats, Floats]:
    jobs, curve = draft.snapshot.jobs, draft.curve
    cloud = draft.kind != Kind.EDGE
    speed = float(draft.speed[cloud].mean()) if cloud.any() else 1.0
    rate = np.where(curve.allowed[rows], curve.rate[rows] * speed, 0.0)
    work = jobs.remaining_steps[rows]
    # A job that has yet to start loses the pause of its start.
    start_s = np.where(jobs.phase[rows] == Phase.WAITING, jobs.start_cost_s[rows], 0.0)
    deadline_s = jobs.deadline_s[rows] - start_s
    return satisfy(draft.now_s, gpus, work, deadline_s, curve.sizes, rate), work, rate


def _servers(draft: Draft) -> list[int]:
    """Return edge sites where nobody is and something is free."""
    taken = sorted({at for at in draft.site if at >= 0})
    return [
        site
        for site in np.flatnonzero((draft.kind == Kind.EDGE) & (draft.slack > 0)).tolist()
        if site not in taken
    ]


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
    speed_of = draft.speed[servers]
    offered = np.searchsorted(curve.sizes, draft.slack[servers], side="right") - 1  # (e,)
    able = jobs.edge_allowed[rows][:, None] & (offered[None, :] >= curve.base[rows][:, None])
    there = np.where(able, curve.rate[rows][:, np.maximum(offered, 0)] * speed_of, 0.0)
    path = np.array([draft.capacity.transfer_mib_per_s[site] for site in servers])
    runs = jobs.phase[rows] == Phase.RUNNING
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
    evicted, candidates = [], []
    contended = len(draft.waiting()) > 0 or not shares.satisfied.all()
    for index, job in enumerate(rows.tolist()):
        was = draft.was[job]
        if job in homeless and was >= 0 and draft.kind[was] == Kind.EDGE:
            evicted.append(index)
            continue
        rested = draft.now_s - jobs.changed_s[job] >= options.settle_s
        if draft.site[job] < 0 or (contended and rested):
            candidates.append(index)
    cloud = Cloud(
        shares.end_s,
        _grown(draft, shares, work, rate, jobs.deadline_s[rows]),
        shares.gpus_now >= curve.sizes[curve.top[rows]],
        idle,
    )
    columns = list(range(len(servers)))
    deadline_s = jobs.deadline_s[rows]
    moved = []
    for move in offload(deadline_s, cloud, ends_s, columns, evicted, candidates, reading):
        job, site = int(rows[move.job]), servers[move.server]
        figures = (
            Figure("edge_end_s", float(ends_s[move.job, move.server])),
            Figure("cloud_end_s", float(cloud.end_s[move.job])),
            Figure("deadline_s", float(deadline_s[move.job])),
        )
        draft.put(job, site, Why(f"edgeflow.{move.rule}", (), figures))
        moved.append(job)
    return moved


def _grown(draft: Draft, shares: Shares, work: Floats, rate: Floats, deadline_s: Floats) -> Floats:
    """(n,) equation 7's end of each late job, with one size more until the next event."""
    ends_s = shares.end_s.copy()
    coming = shares.end_s[np.isfinite(shares.end_s)]
    until_s = float(coming.min()) if len(coming) else draft.now_s + 60.0
    for index in np.flatnonzero(shares.end_s > deadline_s).tolist():
        may = rate[index] > 0
        sizes, own = draft.curve.sizes[may], rate[index, may]
        filling = shares.fillings[index]
        ends_s[index] = end_with_more(shares.profile, filling, work[index], sizes, own, until_s)
    return ends_s
