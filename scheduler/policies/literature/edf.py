"""Earliest deadline first, with as many GPUs as help."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.policies.interface import WAITING, Figure, Ints, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.problem import Problem, problems, write

#: Which size a job would have for itself alone: the fastest, or the largest that runs at all.
Most = Literal["fastest", "largest"]


@dataclass(frozen=True, slots=True)
class Edf:
    """Serve jobs by deadline; each gets its best size, or the best in what earlier ones leave.

    Nothing is refused and nothing is spared: a job that can no longer be in time still goes first,
    and the first job takes its best size though half of it might do. Jobs without
    a deadline come last, by submission. Knows deadlines and which size is fastest, but no lengths.
    Costs O(n log n + n k) for n jobs and k sizes.

    Attributes:
        most: The baseline of ElasticFlow's evaluation gives the `largest` size that was profiled,
            though measured speeds fall beyond some size, and meets half as many
            deadlines for it; `fastest` is the smallest of the fastest sizes.
    """

    name: str = "edf"
    most: Most = "fastest"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Go through the jobs by deadline, once."""
        jobs = snapshot.jobs
        decided: list[tuple[Problem, Ints]] = []
        why: dict[int, Because] = {}
        for problem in problems(snapshot):
            rows = problem.rows
            left = problem.gpus
            level = np.zeros(len(rows), dtype=np.int64)
            ahead: list[str] = []
            for index in np.lexsort((rows, jobs.deadline_s[rows])).tolist():
                job = int(rows[index])
                may = problem.allowed[index] & (problem.sizes <= left)
                if self.most == "fastest":
                    at = int(np.where(may, problem.rate[index], -1.0).argmax())
                else:
                    at = int(np.flatnonzero(may)[-1])
                level[index] = at
                left -= int(problem.sizes[at])
                due_s = float(jobs.deadline_s[job])
                figures = (Figure("deadline_s", due_s),) if math.isfinite(due_s) else ()
                why[job] = Because("edf.deadline", tuple(ahead[-3:]) if not at else (), figures)
                if at:
                    ahead.append(jobs.ids[job])
            decided.append((problem, level))
        return write(snapshot, decided, "edf.deadline", why=why)

    def queue(self, snapshot: Snapshot) -> list[str]:
        """Name the waiting jobs in the order of their turns."""
        jobs = snapshot.jobs
        rows = np.unique(np.concatenate([[], *(one.rows for one in problems(snapshot))]))
        rows = rows.astype(np.int64)
        turns = rows[np.lexsort((rows, jobs.deadline_s[rows]))].tolist()
        return [jobs.ids[job] for job in turns if jobs.phase[job] == WAITING]
