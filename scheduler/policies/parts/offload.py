"""EdgeFlow: which deadline jobs go to idle edge servers.

Three rules, in this order, while edge servers are open; one job takes one server:

1. A job at the edge stays there.
2. If no cloud GPU is idle, a job that makes its deadline at the edge goes there.
3. If a job misses its deadline in the cloud, those that one more GPU would not save go first.

The paper's prose and its pseudo-code differ in places; this is the prose. (The pseudo-code sends
jobs by rule 2 when GPUs *are* idle, and asks for memory strictly below the edge's.) Deadlines are
soft: nothing is rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats


@dataclass(frozen=True, slots=True)
class Offload:
    """A job that goes to an edge server, or stays at one."""

    job: int
    server: int
    rule: str  #: `rule1`, `rule2` or `rule3`.


@dataclass(frozen=True, slots=True, eq=False)
class Cloud:
    """How n jobs would fare in the cloud."""

    end_s: Floats  #: (n,)
    grown_end_s: Floats  #: (n,) with one size more until the next event, see `share`.
    at_largest: Bools  #: (n,) holds its largest size already.
    has_idle_gpu: bool


def edge_ends(
    now_s: float,
    work: Floats,
    rate: Floats,
    memory_mib: Floats,
    edge_memory_mib: Floats,
    transfer_s: Floats,
) -> Floats:
    """(n, e) when each job would end at each server; inf where it cannot run.

    Args:
        now_s: The present.
        work: (n,) steps left.
        rate: (n, e) steps per second there: speed factor times rate at the size it offers.
        memory_mib: (n,) needed per GPU.
        edge_memory_mib: (e,) there is per GPU.
        transfer_s: (n, e) for the checkpoint to get there; the paper leaves it out.
    """
    fits = (memory_mib[:, None] <= edge_memory_mib) & (rate > 0)
    run_s = work[:, None] / np.where(fits, rate, 1.0)
    return np.where(fits, now_s + run_s + transfer_s, np.inf)


def offload(
    deadline_s: Floats,
    cloud: Cloud,
    edge_end_s: Floats,
    servers: Sequence[int],
    evicted: Sequence[int],
    candidates: Sequence[int],
) -> list[Offload]:
    """Apply the three rules. Jobs whose server is still there are not named: they stay.

    Args:
        deadline_s: (n,)
        cloud: How they would fare there.
        edge_end_s: (n, e) from `edge_ends`.
        servers: Open ones, as columns of `edge_end_s`.
        evicted: Jobs at the edge whose server closes. Where not all find another, those that
            would be late at the edge but not in the cloud are brought back first.
        candidates: Jobs in the cloud, running or waiting, that may move, by deadline.
    """
    left = list(servers)
    moved: list[Offload] = []

    def send(job: int, rule: str, by_s: float) -> None:
        if not left:
            return
        server = min(left, key=lambda e: (edge_end_s[job, e], e))
        if np.isfinite(edge_end_s[job, server]) and edge_end_s[job, server] <= by_s:
            left.remove(server)
            moved.append(Offload(job, server, rule))

    def better_back(job: int) -> bool:
        there = min((edge_end_s[job, e] for e in left), default=np.inf)
        return bool(there > deadline_s[job] >= cloud.end_s[job])

    for job in sorted(evicted, key=lambda job: (better_back(job), deadline_s[job], job)):
        send(job, "rule1", np.inf)
    if not cloud.has_idle_gpu:
        for job in candidates:
            send(job, "rule2", deadline_s[job])
    gone = [move.job for move in moved]
    late = [j for j in candidates if cloud.end_s[j] > deadline_s[j] and j not in gone]
    for job in sorted(late, key=lambda j: (*_priority(j, deadline_s, cloud), j)):
        send(job, "rule3", np.inf)
    return moved


def _priority(job: int, deadline_s: Floats, cloud: Cloud) -> tuple[bool, float]:
    """Equation 7: how far from its deadline one more GPU would bring it; hopeless ones first."""
    if cloud.at_largest[job]:
        return (False, 0.0)
    spare_s = float(deadline_s[job] - cloud.grown_end_s[job])
    return (True, spare_s)
