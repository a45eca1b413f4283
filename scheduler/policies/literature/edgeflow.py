"""EdgeFlow: deadlines by minimum shares in the cloud, and idle edge servers for those that fail."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler.policies.interface import (
    Figure,
    Floats,
    Ints,
    Kind,
    Phase,
    Plan,
    Reason,
    Snapshot,
    Target,
)
from scheduler.policies.literature.elasticflow import demands_of
from scheduler.policies.parts.allot import Because, closing
from scheduler.policies.parts.lending import lend_and_reclaim
from scheduler.policies.parts.loans import LoanOptions
from scheduler.policies.parts.offload import Cloud, Offload, edge_ends, offload
from scheduler.policies.parts.problem import Problem, problems, write
from scheduler.policies.parts.share import Demand, Profile, end_with_more, satisfy
from scheduler.policies.parts.surplus import share_out


@dataclass(frozen=True, slots=True)
class EdgeFlow:
    """Meet as many deadlines as can be, and refuse nobody: late jobs run on.

    After the pages that could be read of the article (Journal of Software 36(12), 2025, p. 5480),
    at every event:

    1. *Shares.* In the cloud, by deadline, each job gets its minimum satisfactory share as soon as
       it can be had; those that miss get what is left.
    2. *Offload*, one job per idle edge server: who is there stays (rule 1); if no cloud GPU is
       idle, who makes its deadline at the edge goes (rule 2); if jobs miss their deadline, those
       go whose end with one GPU more, equation 7, is the furthest behind it (rule 3).
    3. *Again* without those, and what is left to the job that ends soonest by it per GPU.

    The memory a job needs, and the time its checkpoint takes to get there, count; where text and
    pseudo-code of the article disagree, the text holds. A server runs a job at the largest size it
    has GPUs for; the article knows servers of one GPU.

    Knows deadlines, lengths, speeds, and the speed, memory and path of each edge. Idle servers are
    found as `loans` finds them, from what their owners report; inference pools are not borrowed.
    Costs O(n k S) as ElasticFlow, and one re-plan more for each late job.

    Attributes:
        loans: When an edge server counts as idle.
    """

    name: str = "edgeflow"
    loans: LoanOptions = field(default_factory=LoanOptions)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide sites and sizes of all jobs, and which edge servers are borrowed."""
        lend, reclaim, reasons = self._borrow(snapshot)
        servers = _open_servers(snapshot, reclaim)
        decided: list[tuple[Problem, Ints]] = []
        why: dict[int, Because] = {}
        there: dict[str, Target] = {}
        for problem in problems(snapshot, reclaim=reclaim):
            cloud = _Cloud(snapshot, problem, np.arange(len(problem.rows)))
            moves, ends_s = self._offload(snapshot, problem, cloud, servers)
            for move in moves:
                job, node = int(problem.rows[move.job]), servers[move.server]
                level = _level_at(problem, move.job, int(snapshot.nodes.gpus[node]))
                edge = int(snapshot.nodes.pool[node])
                row = np.array([job], dtype=np.int64)
                decided.append((replace(problem, pool=edge, rows=row), np.array([level])))
                placement = ((snapshot.nodes.ids[node], int(problem.sizes[level])),)
                there[snapshot.jobs.ids[job]] = Target(snapshot.pools.ids[edge], placement)
                figures = (
                    Figure("edge_end_s", float(ends_s[move.job, move.server])),
                    Figure("cloud_end_s", float(cloud.end_s[move.job])),
                    Figure("deadline_s", float(snapshot.jobs.deadline_s[job])),
                )
                told = tuple(figure for figure in figures if math.isfinite(figure.value))
                why[job] = Because(f"edgeflow.{move.rule}", (), told)
            gone = {move.server for move in moves}
            servers = [node for at, node in enumerate(servers) if at not in gone]
            rest = np.setdiff1d(np.arange(len(problem.rows)), [move.job for move in moves])
            if moves:
                cloud = _Cloud(snapshot, problem, rest)
            gpus = cloud.share_out()
            sized = replace(problem, rows=problem.rows[rest])
            decided.append((sized, problem.sizes.searchsorted(gpus)))
            why.update(cloud.causes(gpus))
        plan = write(
            snapshot,
            decided,
            "edgeflow.share",
            why=why,
            lend=lend,
            reclaim=reclaim,
            reasons=reasons,
        )
        # One job to a server: which one was decided above, by where it ends soonest.
        return replace(plan, targets={**plan.targets, **there})

    def _borrow(
        self, seen: Snapshot
    ) -> tuple[tuple[str, ...], dict[str, float], tuple[Reason, ...]]:
        """Decide which edge servers to ask for; what other lenders want back is given."""
        if not seen.lenders or not len(seen.jobs.sizes):
            return (), {}, ()
        loans = lend_and_reclaim(seen, self.loans)
        names = seen.nodes.ids
        edge = seen.pools.kind[seen.nodes.pool] == Kind.EDGE
        lend = tuple(names[node] for node in loans.lend if edge[node])
        reclaim = {names[node]: due_s for node, due_s in loans.reclaim.items()}
        about = {*lend, *reclaim}
        reasons = tuple(reason for reason in loans.reasons if reason.subject in about)
        return lend, reclaim, reasons

    def _offload(
        self, seen: Snapshot, problem: Problem, cloud: "_Cloud", servers: list[int]
    ) -> tuple[list[Offload], Floats]:
        """Apply the rules; jobs are indices in the problem, servers in `servers`."""
        jobs, rows = seen.jobs, problem.rows
        if not servers or not len(rows):
            return [], np.zeros((len(rows), len(servers)))
        pool = seen.nodes.pool[servers]
        rate = np.zeros((len(rows), len(servers)))
        for row in np.flatnonzero(jobs.edge_allowed[rows]).tolist():
            for at, node in enumerate(servers):
                level = _level_at(problem, row, int(seen.nodes.gpus[node]))
                if level:
                    own = float(jobs.rate[rows[row], level - 1])
                    rate[row, at] = own * jobs.affinity[rows[row], pool[at]]
        runs = jobs.phase[rows] == Phase.RUNNING
        moved_mib = np.where(runs, jobs.checkpoint_mib[rows], 0.0)[:, None]
        pause_s = jobs.start_cost_s[rows] + np.where(runs, jobs.checkpoint_cost_s[rows], 0.0)
        path = np.maximum(seen.pools.transfer_mib_per_s[pool], 1e-9)
        ends_s = edge_ends(
            seen.now_s,
            problem.work,
            rate,
            jobs.memory_mib[rows],
            seen.pools.gpu_memory_mib[pool],
            moved_mib / path + pause_s[:, None],
        )
        at_edge = runs & (seen.pools.kind[jobs.pool[rows]] == Kind.EDGE)
        order = np.lexsort((rows, jobs.deadline_s[rows])).tolist()
        # Who is in a problem and was at the edge has lost its server.
        evicted = [index for index in order if at_edge[index]]
        others = [index for index in order if not at_edge[index]]
        fate = Cloud(cloud.end_s, cloud.grown(), cloud.at_largest, cloud.idle)
        columns = list(range(len(servers)))
        due_s = jobs.deadline_s[rows]
        return offload(due_s, fate, ends_s, columns, evicted, others), ends_s


class _Cloud:
    """The cloud's plan for r of the n jobs of a problem."""

    def __init__(self, seen: Snapshot, problem: Problem, rows: Ints) -> None:
        self._seen, self._problem, self._rows = seen, problem, rows
        jobs = seen.jobs
        demands = demands_of(seen, problem)
        self._demands: list[Demand] = [demands[row] for row in rows.tolist()]
        due_s = jobs.deadline_s[problem.rows[rows]]
        self._timed: list[int] = np.flatnonzero(np.isfinite(due_s)).tolist()
        self._left = Profile(np.array([seen.now_s]), np.array([problem.gpus]))
        self._shares = satisfy(self._left, [self._demands[index] for index in self._timed])
        self._least = np.zeros(len(rows), dtype=np.int64)
        self.end_s = np.full(len(problem.rows), np.inf)
        self.at_largest = np.zeros(len(problem.rows), dtype=np.bool_)
        for own, index in zip(self._shares, self._timed, strict=True):
            row = int(rows[index])
            self._least[index] = own.now
            self.end_s[row] = own.end_s
            self.at_largest[row] = own.now >= int(self._demands[index].curve.sizes[-1])
        others = sum(int(d.curve.sizes[0]) for d in self._demands if math.isinf(d.deadline_s))
        #: Some GPU would be idle now, so that more of them help nobody.
        self.idle = int(self._left.free[0]) > others

    def grown(self) -> Floats:
        """(n,) equation 7's end of each late job, with one size more until the next event."""
        found = self.end_s.copy()
        coming_s = [own.end_s for own in self._shares if math.isfinite(own.end_s)]
        until_s = min(coming_s, default=self._seen.now_s + 60.0)
        for own, index in zip(self._shares, self._timed, strict=True):
            demand = self._demands[index]
            if own.end_s > demand.deadline_s:
                row = int(self._rows[index])
                found[row] = end_with_more(self._left, own, demand, until_s)
        return found

    def share_out(self) -> Ints:
        """Hand out what shares leave; returns the (r,) GPUs of those that take part."""
        return share_out(self._least, int(self._left.free[0]), self._demands)

    def causes(self, gpus: Ints) -> dict[int, Because]:
        """Say what decided about each."""
        found = {}
        for index, row in enumerate(self._rows.tolist()):
            demand = self._demands[index]
            job = int(self._problem.rows[row])
            if math.isinf(demand.deadline_s):
                found[job] = Because("edgeflow.surplus")
                continue
            ends = [("share_end_s", float(self.end_s[row])), ("deadline_s", demand.deadline_s)]
            figures = tuple(Figure(name, at_s) for name, at_s in ends if math.isfinite(at_s))
            grows = gpus[index] > self._least[index]
            late = self.end_s[row] > demand.deadline_s + 1e-6
            rule = "late" if late else "surplus" if grows else "share"
            found[job] = Because(f"edgeflow.{rule}", (), figures)
        return found


def _open_servers(seen: Snapshot, reclaim: dict[str, float]) -> list[int]:
    """Return edge nodes that are open to training and hold nobody."""
    nodes = seen.nodes
    empty = (closing(seen, reclaim) == 0) & (nodes.free == nodes.gpus) & (nodes.gpus > 0)
    return [int(n) for n in np.flatnonzero(empty & (seen.pools.kind[nodes.pool] == Kind.EDGE))]


def _level_at(problem: Problem, row: int, gpus: int) -> int:
    """Return the largest level of a job that so many GPUs hold; 0 if there is none."""
    return int(np.flatnonzero(problem.allowed[row] & (problem.sizes <= gpus))[-1])
