"""Books of a cell, kept from what was said and ordered alone: what each column must show.

They read stimuli, commands, the policy's plans, which claims were set and dropped, and what is
called back since its owner is not heard; never the engine's state. Agents are expected to be prompt
and honest.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler.core import facts
from scheduler.core.settings import Settings
from scheduler.core.stimuli import CurvesLearned, NodeHeard, NodeSilent, Stimulus
from scheduler.policies.interface import LoanPhase, Plan
from schemas import events

INF = float("inf")
Places = dict[str, set[int]]


def gpus(places: Places | None) -> int:
    return sum(map(len, (places or {}).values()))


@dataclass
class Job:
    said: events.JobSubmitted
    submit_s: float
    waits_s: float
    allocation: Places = field(default_factory=dict)
    leaving: Places = field(default_factory=dict)
    claim: Places | None = None
    epoch: int = -1
    ready: set[str] = field(default_factory=set)
    told: str = ""  #: Why it must go, from when it is told until it has gone.
    migrates: bool = False  #: It has gone, and what it claims is next.
    first_s: float = INF
    changed_s: float = -INF
    backoff_s: float = -INF
    #: Its newest gang: under which epoch and by whom it was begun, and, once it was given up, until
    #: when the order may be obeyed; 0: never.
    began: int = -1
    agents: set[str] = field(default_factory=set)
    unsure_s: float = 0.0
    failures: int = 0
    restarts: int = 0
    attained_gpu_s: float = 0.0
    held_s: float = 0.0
    step: int = 0
    step_at_s: float = 0.0
    steps_per_s: float = 0.0
    saved: int = 0
    factor: float = 1.0
    rate_s: float = -INF
    curve: Any = None
    curve_step: int = 0
    note: tuple[float, ...] = ()
    refused: bool = False

    @property
    def total(self) -> int:
        assert self.said.total_steps is not None  # all of these jobs declare it
        return self.said.total_steps

    def step_now(self, now_s: float) -> float:
        return min(self.total, self.step + self.steps_per_s * (now_s - self.step_at_s))

    def remaining(self, now_s: float) -> float:
        unit = 1.0 if self.curve is None else self.curve["per_step"]
        if self.curve is None or self.curve["left"] is None:
            return float((self.total - self.step_now(now_s)) * unit)
        return float(self.curve["left"] - (self.step_now(now_s) - self.curve_step) * unit)

    def rate(self, size: int) -> float:
        """Work per second at a size, by hand."""
        points = [[p.gpus, p.samples_per_s] for p in self.said.rates]
        scale = self.factor / self.said.samples_per_step
        if self.curve is not None:
            points, scale = self.curve["points"], 1.0
        if not self.said.gpus_min <= size <= self.said.gpus_max:
            return 0.0
        below = [point for point in points if point[0] <= size][-1:]
        above = [point for point in points if point[0] >= size][:1]
        if not below or not above or not below[0][1] * above[0][1]:
            return 0.0
        (x, y), (right, high) = below[0], above[0]
        return float((y + (high - y) * (size - x) / max(right - x, 1)) * scale)


@dataclass
class Node:
    born: events.NodeBorn
    heard: bool = True
    dead: bool = False
    loan: LoanPhase = LoanPhase.OWNED
    loan_id: str = ""
    lent_s: float = -INF
    returned_s: float = -INF

    def call_back(self) -> None:
        if self.loan == LoanPhase.LENT:
            self.loan, self.lent_s = LoanPhase.RECLAIMING, -INF

    def hand_back(self, now_s: float) -> None:
        self.loan, self.lent_s, self.returned_s = LoanPhase.OWNED, -INF, now_s


class Books:
    """The account."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.now_s = settings, 0.0
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.orders: dict[str, facts.CommandIssued] = {}
        self.loads: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.newest: dict[str, tuple[int, int]] = {}
        self.keeps_claim = False  #: Whether the next order is to shrink for now, in a circle.

    def take(self, stimulus: Stimulus, plan: Plan | None, decided: tuple[Any, ...]) -> None:
        """Write down a stimulus, the plan made on it if the policy was asked, and the answer."""
        for job in self.jobs.values():
            job.attained_gpu_s += gpus(job.allocation) * (stimulus.at_s - self.now_s)
            job.held_s += (stimulus.at_s - self.now_s) if job.allocation else 0.0
        self.now_s = stimulus.at_s
        self._hear(stimulus)
        self._settle()
        if plan is not None:
            for name, note in plan.notes.items():
                self.jobs[name].note = note
            for name in plan.reclaim:
                self.nodes[name].call_back()
            claimed = {fact.job for fact in decided if isinstance(fact, facts.TargetSet)}
            for name, target in plan.targets.items():
                job, wanted = self.jobs[name], dict(target.placement) if target else {}
                same = wanted == {node: len(had) for node, had in job.allocation.items()}
                job.refused = bool(wanted) and name not in claimed and not same
        for fact in decided:
            match fact:
                case facts.TargetSet():
                    self.jobs[fact.job].claim = {n: set(g) for n, g in fact.allocation.items()}
                case facts.TargetDropped() if fact.job in self.jobs:
                    job = self.jobs[fact.job]
                    job.claim, job.refused = None, job.refused or fact.refused
                    if job.migrates:
                        job.migrates, job.backoff_s = False, -INF
                        self._rest(job)
                case facts.LoanRecalled():
                    self.nodes[fact.node].call_back()
                case facts.RefusalsNoted():
                    for name, refused in fact.jobs.items():
                        self.jobs[name].refused = refused
                case facts.GangStarting() | facts.GangScaling():
                    self.keeps_claim = getattr(fact, "keeps_claim", False)
                case facts.CommandIssued():
                    self._order(fact)
                case facts.CommandExpired() if fact.command in self.orders:
                    self._expired(self.orders[fact.command])
                case _:
                    pass
        self._settle()

    def _hear(self, stimulus: Stimulus) -> None:
        said: Any = stimulus.data
        job = self.jobs.get(getattr(said, "job", ""))
        match said:
            case events.NodeBorn():
                node = self.nodes.setdefault(said.node, Node(said))
                node.heard, node.dead = True, False
            case NodeSilent() | NodeHeard():
                self.nodes[said.node].heard = isinstance(said, NodeHeard)
            case events.NodeDied():
                node = self.nodes[said.node]
                node.dead = True
                if node.loan != LoanPhase.OWNED:
                    node.hand_back(self.now_s)
                for one in self.jobs.values():
                    self._left(one, said.node, set(range(99)), "failed")
            case events.InferenceLoad():
                name, cause = said.node or said.pool, stimulus.cause
                if (order := (cause.bootid, cause.sequence)) >= self.newest.get(name, (-1, -1)):
                    self.newest[name] = order
                    self.loads[name].append((self.now_s, float(said.gpus_needed)))
            case events.JobSubmitted():
                self.jobs[said.job] = Job(said, self.now_s, self.now_s)
            case events.JobCancelled() if job is not None and job.told != "completed":
                job.told = "cancelled"
            case events.WorkerStarted() if job is not None and said.epoch == job.epoch:
                job.ready.add(said.node)
            case events.JobProgressed() if job is not None and said.epoch == job.epoch:
                self._progress(job, said)
            case events.WorkerStopped() | events.WorkerFailed() if job is not None:
                self._saved(job, said.step)
                why = "failed" if isinstance(said, events.WorkerFailed) else said.reason
                self._left(job, said.node, set(said.gpus), why)
            case CurvesLearned():
                for name, curve in said.curves.items():
                    if name in self.jobs:
                        one = self.jobs[name]
                        one.curve, one.curve_step, one.rate_s = curve, one.step, self.now_s
            case events.CommandAcknowledged():
                self._answered(said)
            case _:
                pass

    def _saved(self, job: Job, step: int) -> None:
        job.failures = 0 if step > job.saved else job.failures
        job.saved = max(job.saved, step)

    def _progress(self, job: Job, said: events.JobProgressed) -> None:
        if said.step < job.step or not (job.allocation or job.leaving):
            return
        job.step, job.step_at_s = said.step, self.now_s
        self._saved(job, said.checkpoint_step)
        job.steps_per_s = said.samples_per_s / job.said.samples_per_step
        if job.curve is None:
            job.rate_s = self.now_s
        if job.allocation:
            slowest = min(self.nodes[name].born.speed_factor for name in job.allocation)
            curve, job.curve, job.factor = job.curve, None, 1.0
            declared = job.rate(gpus(job.allocation)) * job.said.samples_per_step
            factor = said.samples_per_s / (declared * slowest)
            job.curve, job.factor = curve, float(np.clip(factor, 0.05, 20.0))

    def _answered(self, said: events.CommandAcknowledged) -> None:
        order = self.orders.pop(said.command, None)
        if order is not None and order.kind == "StopGang" and said.outcome == "done":
            job = self.jobs.get(order.subject)
            if job is not None and order.agent in job.agents:
                job.unsure_s = 0.0 if order.data["epoch"] >= job.began else job.unsure_s
        node = self.nodes.get(order.subject) if order is not None else None
        if order is None or node is None or order.data.get("loan") != node.loan_id:
            return
        if order.kind == "LendNode" and node.loan == LoanPhase.LENDING:
            if said.outcome == "done":
                node.loan, node.lent_s = LoanPhase.LENT, self.now_s
            else:
                node.hand_back(self.now_s)
        elif order.kind == "ReturnNode" and node.loan == LoanPhase.RECLAIMING:
            node.hand_back(self.now_s)

    def _expired(self, order: facts.CommandIssued) -> None:
        job = self.jobs.get(order.subject)
        if order.kind == "StartGang" and job is not None:
            job.unsure_s = order.expires_s
        if order.kind == "StopGang":
            del self.orders[order.command]  # an answer comes too late

    def _order(self, order: facts.CommandIssued) -> None:
        self.orders[order.command] = order
        if order.kind == "LendNode":
            node = self.nodes[order.subject]
            node.loan, node.loan_id = LoanPhase.LENDING, order.data["loan"]
        job = self.jobs.get(order.subject)
        if job is None or order.kind not in ("StartGang", "ScaleGang", "StopGang"):
            return
        job.steps_per_s = 0.0
        if order.kind == "StopGang":
            if job.allocation or job.leaving:
                job.told = job.told or order.data["reason"]
            return
        cells = {part["node"]: set(part["gpus"]) for part in order.data["placement"]}
        for name, had in job.allocation.items():
            if left := had - cells.get(name, set()):
                job.leaving[name] = job.leaving.get(name, set()) | left
        if order.kind == "StartGang":
            job.began, job.agents = order.data["epoch"], set()
            job.step, job.step_at_s = job.saved, self.now_s
        job.agents.add(order.agent)
        job.restarts += job.first_s < INF
        job.first_s = min(job.first_s, self.now_s)
        job.allocation, job.ready, job.epoch = cells, set(), order.data["epoch"]
        job.claim = job.claim if self.keeps_claim else None
        job.changed_s, job.migrates = self.now_s, False

    def _left(self, job: Job, node: str, left: set[int], why: str) -> None:
        """GPUs of a node are no more the job's; unless it was to leave them, it has to go."""
        if job.allocation.get(node, set()) & left and not job.told:
            job.told, job.steps_per_s = why, 0.0
        for places in (job.allocation, job.leaving):
            if node in places and not places[node] - left:
                del places[node]
            elif node in places:
                places[node] -= left

    def _settle(self) -> None:
        """Those that were told to go and hold nothing any more have gone."""
        for name, job in list(self.jobs.items()):
            if not job.told or job.allocation or job.leaving:
                continue
            if job.told in ("completed", "cancelled"):
                del self.jobs[name]
                continue
            job.migrates = job.told == "migrated" and job.claim is not None
            if job.told == "failed":
                pause_s = self.settings.backoff_s * 2.0**job.failures
                job.failures, job.backoff_s = job.failures + 1, self.now_s + pause_s
            elif not job.migrates:
                job.backoff_s = -INF
            job.told = ""
            self._rest(job)

    def _rest(self, job: Job) -> None:
        job.waits_s = job.changed_s = job.step_at_s = self.now_s
        job.step, job.steps_per_s = job.saved, 0.0
