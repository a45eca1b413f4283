"""Edge servers under deadlines: they take whom the cloud leaves without a promise.

A server is sure of itself: a job there has it alone until it ends, so what is in time when it
goes there is in time at the end, unless its owner wants the server back. Nobody is sent who would
be late there, so a server never costs a deadline; and a promise given in the cloud stays there.
Servers that no deadline needs take jobs without one, which make way when one does.

EdgeFlow sends jobs by three rules of how late they are in today's plan; those that are late there
as well keep the servers from others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.policies.interface import Bools, Figure, Floats, Ints, Kind, Phase, Snapshot
from scheduler.policies.parts.allot import Because, closing
from scheduler.policies.parts.commitments import PROMISED, Courses
from scheduler.policies.parts.contest import Contest
from scheduler.policies.parts.laxity import Laxity


@dataclass(frozen=True, slots=True)
class Sent:
    """A job that goes to a server."""

    job: int  #: of the contest.
    node: int
    level: int  #: there.
    end_s: float  #: there, pauses and the way of its checkpoint included.
    due_s: float
    stops: int  #: the job, of `Jobs`, that loses the server; -1: it was empty.


def offered(seen: Snapshot, reclaim: Mapping[str, float]) -> dict[int, int]:
    """Return the edge nodes that a deadline may have: empty ones (-1), then with whom they stop.

    Args:
        seen: What is known.
        reclaim: Nodes that go back in this plan.
    """
    jobs, nodes, held = seen.jobs, seen.nodes, seen.holdings
    able = (seen.pools.kind[nodes.pool] == Kind.EDGE) & (nodes.gpus > 0)
    able &= closing(seen, reclaim) == 0
    empty: list[int] = np.flatnonzero(able & (nodes.free == nodes.gpus)).tolist()
    stops = (jobs.phase == Phase.RUNNING) & np.isinf(jobs.deadline_s)
    alone = able[held.node] & stops[held.job] & (held.gpus == jobs.size[held.job])
    alone &= nodes.free[held.node] + held.gpus == nodes.gpus[held.node]
    who = np.flatnonzero(alone)
    taken = zip(held.node[who].tolist(), held.job[who].tolist(), strict=True)
    return dict.fromkeys(empty, -1) | dict(taken)


def send(
    seen: Snapshot, contest: Contest, lax: Laxity, courses: Courses, servers: dict[int, int]
) -> list[Sent]:
    """Choose who goes to an empty server, where somebody would find no room in the cloud.

    First go those without a promise, then those that would start in the cloud now and leave it to
    others. Among them the one that ends first, at the server where it does.

    Args:
        seen: What is known.
        contest: Who competes for the cloud.
        lax: What they could do there.
        courses: What is planned for them there.
        servers: From `offered`; those taken are removed.
    """
    short = (lax.least > 0) & ~courses.kept
    if not servers or not short.any():
        return []
    promised = seen.jobs.notes[contest.rows, 0] == PROMISED
    may = short | (courses.kept & ~promised & (lax.present == 0))
    return _seat(seen, contest, lax, np.flatnonzero(may), ~short, servers)


def fill(
    seen: Snapshot, contest: Contest, lax: Laxity, level: Ints, servers: dict[int, int]
) -> list[Sent]:
    """Let jobs without a deadline that got nothing in the cloud have empty servers, for now."""
    empty = {node: job for node, job in servers.items() if job < 0}
    may = (level == 0) & (lax.present == 0) & np.isinf(lax.due_s)
    if not empty or not may.any():
        return []
    return _seat(seen, contest, lax, np.flatnonzero(may), may, empty)


def _seat(
    seen: Snapshot,
    contest: Contest,
    lax: Laxity,
    rows: Ints,
    later: Bools,
    servers: dict[int, int],
) -> list[Sent]:
    """Give servers out: to those not `later` first, who ends first first, nobody to be late."""
    nodes = list(servers)
    level, ends_s = _ends(seen, contest, lax, rows, np.array(nodes, dtype=np.int64))
    saves_s = seen.jobs.checkpoint_cost_s
    ends_s += [float(saves_s[job]) if job >= 0 else 0.0 for job in servers.values()]
    ends_s[ends_s > lax.due_s[rows][:, None]] = np.inf
    found = []
    for at in np.lexsort((rows, ends_s.min(axis=1), later[rows])).tolist():
        server = int(ends_s[at].argmin())
        if not np.isfinite(ends_s[at, server]):
            continue
        job, node = int(rows[at]), nodes[server]
        end_s, due_s = float(ends_s[at, server]), float(lax.due_s[job])
        found.append(Sent(job, node, int(level[at, server]), end_s, due_s, servers.pop(node)))
        ends_s[:, server] = np.inf
        if not servers:
            break
    return found


def _ends(
    seen: Snapshot, contest: Contest, lax: Laxity, rows: Ints, servers: Ints
) -> tuple[Ints, Floats]:
    """(r, e) the level that each job would have at each server, and its end; inf where none."""
    jobs, pools, who = seen.jobs, seen.pools, contest.rows[rows]
    pool, gpus = seen.nodes.pool[servers], seen.nodes.gpus[servers]
    fits = lax.pays[rows][:, None, :] & (lax.sizes > 0) & (lax.sizes <= gpus[:, None])
    level = fits.shape[2] - 1 - fits[:, :, ::-1].argmax(axis=2)
    able: Bools = fits.any(axis=2) & jobs.edge_allowed[who][:, None]
    able &= jobs.memory_mib[who][:, None] <= pools.gpu_memory_mib[pool]
    own = np.hstack([np.zeros((len(who), 1)), np.maximum.accumulate(jobs.rate[who], axis=1)])
    rate = np.take_along_axis(own, level, axis=1) * jobs.affinity[who][:, pool]
    able &= rate > 0
    path = np.minimum(pools.transfer_mib_per_s[pool], pools.transfer_mib_per_s[contest.pool])
    moved_mib = np.where(jobs.attained_gpu_s[who] > 0, jobs.checkpoint_mib[who], 0.0)
    pause_s = lax.start_s[rows[:, None], level] + moved_mib[:, None] / np.maximum(path, 1e-9)
    run_s = lax.work[rows][:, None] / np.where(able, rate, 1.0)
    ends_s: Floats = np.where(able, lax.now_s + pause_s + run_s, np.inf)
    return level, ends_s


def arrivals(seen: Snapshot, contest: Contest, sent: Sequence[Sent]) -> list[tuple[Contest, Ints]]:
    """Return each job as a contest of its own for the pool it goes to, and its level: for `write`.

    Those who lose a server follow, at level 0.
    """
    found = []
    for one in sent:
        alone = _part(contest, np.array([one.job], dtype=np.int64))
        there = replace(alone, pool=int(seen.nodes.pool[one.node]))
        found.append((there, np.array([one.level], dtype=np.int64)))
        if one.stops >= 0:
            loser = replace(there, rows=np.array([one.stops], dtype=np.int64))
            found.append((loser, np.zeros(1, dtype=np.int64)))
    return found


def told(seen: Snapshot, contest: Contest, sent: Sequence[Sent]) -> dict[int, Because]:
    """Say why they go, and why others have to."""
    found = {}
    for one in sent:
        job = int(contest.rows[one.job])
        end = Figure("planned_end_s", one.end_s)
        if np.isinf(one.due_s):
            found[job] = Because("timely.spare_edge", (), (end,))
            continue
        found[job] = Because("timely.edge", (), (Figure("deadline_s", one.due_s), end))
        if one.stops >= 0:
            found[one.stops] = Because("timely.edge_needed", (seen.jobs.ids[job],))
    return found


def without(contest: Contest, sent: Sequence[Sent]) -> Contest:
    """Return a contest of those who stay."""
    return _part(contest, np.delete(np.arange(len(contest.rows)), [one.job for one in sent]))


def _part(contest: Contest, who: Ints) -> Contest:
    return replace(
        contest,
        rows=contest.rows[who],
        allowed=contest.allowed[who],
        rate=contest.rate[who],
        base=contest.base[who],
        present=contest.present[who],
        work=contest.work[who],
    )
