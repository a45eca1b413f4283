"""Moves of running jobs between sites, where what is left over elsewhere pays for the pause."""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import RUNNING, Figure, Ints
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.draft import Draft
from scheduler.policies.ranges import Share


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """When a move pays."""

    interval_s: float = 600.0  #: a job that changed less long ago stays.
    gain_pauses: float = 3.0  #: the time saved must be this many pauses,
    gain_fraction: Share = 0.15  #: and this part of the time left.
    most: int = 2  #: moves per cycle; each changes what is left for the next.


def move(draft: Draft, level: Ints, options: MoveOptions) -> None:
    """Move a few jobs to sites where they end sooner; changes the draft and `level`.

    A job with a deadline leaves the edge only to make it (EdgeFlow's rule 1 keeps it there, and
    rule 3 would send it back). None moves to the edge: that is for those who wait, and for the
    rules of `offload`.
    """
    jobs, curve = draft.snapshot.jobs, draft.curve
    may = (jobs.phase == RUNNING) & (draft.now_s - jobs.changed_s >= options.interval_s)
    site = draft.site.copy()
    may &= (site >= 0) & (site == draft.was) & draft.movable & ~draft.forced
    if not may.any() or len(draft.slack) < 2:
        return
    left = draft.slack.copy()
    grown = np.where(site >= 0, curve.sizes[level] - curve.sizes[draft.floor], 0)
    np.subtract.at(left, site[site >= 0], grown[site >= 0])
    for _ in range(options.most):
        targets = np.flatnonzero((left > 0) & ~draft.edge)
        rows = np.flatnonzero(may)
        if not len(targets) or not len(rows):
            return
        found = _best(draft, level, rows, targets, left, options)
        if found is None:
            return
        job, there, to, gain_s, pause_s = found
        here = int(site[job])
        left[here] += curve.sizes[level[job]]
        left[there] -= curve.sizes[to]
        draft.floor[job] = curve.base[job]
        figures = (Figure("saved_s", gain_s), Figure("move_s", pause_s))
        draft.put(job, there, Because("moves.sooner", (), figures))
        level[job] = to
        may[job] = False


def _best(
    draft: Draft, level: Ints, rows: Ints, targets: Ints, left: Ints, options: MoveOptions
) -> tuple[int, int, int, float, float] | None:
    """Return the move that saves most: job, site, level, seconds saved, pause."""
    jobs, curve = draft.snapshot.jobs, draft.curve
    site = draft.site[rows]
    work = jobs.remaining_steps[rows]
    here_s = work / np.maximum(curve.rate[rows, level[rows]] * draft.pace(rows, site), 1e-12)
    deadline_s = jobs.deadline_s[rows]
    bound = draft.edge[site] & np.isfinite(deadline_s)
    late = draft.now_s + here_s > deadline_s
    best: tuple[int, int, int, float, float] | None = None
    path = np.array(draft.capacity.transfer_mib_per_s)
    for there in targets.tolist():
        pace = draft.pace(rows, there)
        able = (site != there) & (pace > 0) & (jobs.memory_mib[rows] <= draft.memory_mib[there])
        at = (able & (~bound | late)).nonzero()[0]
        who = rows[at]
        fits = curve.allowed[who] & (curve.sizes <= left[there])
        # The smallest of the fastest sizes: GPUs that add nothing are left to others.
        to = np.where(fits, curve.rate[who], 0.0).argmax(axis=1)
        there_s = work[at] / np.maximum(curve.rate[who, to] * pace[at], 1e-12)
        slowest = np.maximum(np.minimum(path[site[at]], path[there]), 1e-9)
        pause_s = curve.change_s[who] + jobs.checkpoint_mib[who] / slowest
        pays = fits.any(axis=1)
        pays &= ~bound[at] | (draft.now_s + there_s + pause_s <= deadline_s[at])
        gain_s = here_s[at] - there_s - pause_s
        pays &= gain_s >= np.maximum(
            options.gain_pauses * pause_s, options.gain_fraction * here_s[at]
        )
        if not pays.any():
            continue
        index = int(np.where(pays, gain_s, -np.inf).argmax())
        if np.isfinite(gain_s[index]) and (best is None or gain_s[index] > best[3]):
            best = (
                int(who[index]),
                there,
                int(to[index]),
                float(gain_s[index]),
                float(pause_s[index]),
            )
    return best
