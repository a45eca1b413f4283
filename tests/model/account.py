"""Books of a cell, kept from what was said and ordered alone: what each column must show.

They read stimuli, commands, the policy's plans, and which claims were set and dropped; never the
engine's state. Agents are expected to be prompt and honest.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler.core import facts
from scheduler.core.settings import Settings
from scheduler.core.stimuli import CurvesLearned, NodeHeard, NodeSilent, Stimulus
from scheduler.policies.interface import Kind, LoanPhase, Phase, Plan, Snapshot
from schemas import events

INF = float("inf")
KINDS = {"training": Kind.TRAINING, "inference": Kind.INFERENCE, "edge": Kind.EDGE}
#: Columns of a job that are as its tenant said.
AS_SAID = ("priority", "checkpoint_cost_s", "start_cost_s", "checkpoint_mib", "memory_mib")
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
                if self.nodes[name].loan == LoanPhase.LENT:
                    self.nodes[name].loan, self.nodes[name].lent_s = LoanPhase.RECLAIMING, -INF
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
                case facts.RefusalsNoted():
                    for name, refused in fact.jobs.items():
                        self.jobs[name].refused = refused
                case facts.GangStarting() | facts.GangScaling():
                    self.keeps_claim = getattr(fact, "keeps_claim", False)
                case facts.CommandIssued():
                    self._order(fact)
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
            job.step, job.step_at_s = job.saved, self.now_s
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

    def check(self, seen: Snapshot) -> None:
        """Hold every column of a snapshot to the books."""
        nodes = sorted(n for n, node in self.nodes.items() if node.heard and not node.dead)
        held = [
            (j, n) for j, job in self.jobs.items() for n in sorted(job.allocation) if n in nodes
        ]
        self._check_nodes(seen, nodes)
        self._check_jobs(seen, set(nodes))
        of = seen.holdings
        who = [(seen.jobs.ids[j], seen.nodes.ids[n]) for j, n in zip(of.job, of.node, strict=True)]
        assert who == held
        assert of.gpus.tolist() == [len(self.jobs[j].allocation[n]) for j, n in held]
        self._check_lenders(seen)

    def _site(self, name: str) -> tuple[str, str]:
        born = self.nodes[name].born
        return born.pool, "" if born.pool_kind == "edge" else born.agent

    def _check_nodes(self, seen: Snapshot, nodes: list[str]) -> None:
        taken: Places = defaultdict(set)
        sites = {self._site(name) for name in nodes}
        for job in self.jobs.values():
            for places in (job.allocation, job.leaving, job.claim or {}):
                for name, had in places.items():
                    taken[name] |= had
            sites |= {self._site(name) for name in job.claim or job.allocation}
        shared = Counter(pool for pool, _ in sites)
        ids = {(p, a): p if shared[p] == 1 else f"{p}@{a}" for p, a in sorted(sites)}
        assert seen.pools.ids == tuple(ids.values())
        for m, site in enumerate(ids):
            there = [one for name, one in self.nodes.items() if self._site(name) == site]
            there = [one for one in there if not one.dead]
            there = [one for one in there if one.heard] or there
            assert seen.pools.kind[m] == KINDS[there[0].born.pool_kind]
            for column in ("speed_factor", "gpu_memory_mib", "transfer_mib_per_s"):
                least = min(getattr(one.born, column) for one in there)
                assert getattr(seen.pools, column.removesuffix("_factor"))[m] == least
        assert seen.nodes.ids == tuple(nodes)
        for p, name in enumerate(nodes):
            node, shown = self.nodes[name], seen.nodes
            usable = node.born.pool_kind == "training" or node.loan == LoanPhase.LENT
            free = node.born.gpu_count - len(taken[name]) if usable else 0
            assert seen.pools.ids[shown.pool[p]] == ids[self._site(name)]
            assert (shown.gpus[p], shown.free[p]) == (node.born.gpu_count, free), name
            assert (shown.usable[p], shown.loan[p]) == (usable, node.loan), name
            assert (shown.lent_since_s[p], shown.returned_s[p]) == (node.lent_s, node.returned_s)

    def _phase(self, job: Job, heard: set[str]) -> Phase:
        if job.claim is not None or job.told or job.leaving or not set(job.allocation) <= heard:
            return Phase.MOVING
        if not job.allocation:
            return Phase.WAITING
        return Phase.RUNNING if set(job.allocation) == job.ready else Phase.MOVING

    def _check_jobs(self, seen: Snapshot, heard: set[str]) -> None:
        jobs, now_s = seen.jobs, self.now_s
        assert jobs.ids == tuple(self.jobs)
        sizes: set[int] = set()
        for n, (name, job) in enumerate(self.jobs.items()):
            said, goes = job.said, job.claim or job.allocation
            site = seen.pools.ids[jobs.pool[n]] if goes else None
            assert (site or "").partition("@")[0] == (self._site(min(goes))[0] if goes else "")
            lost = job.step_now(now_s) - job.saved if job.allocation else 0.0
            unit = 1.0 if job.curve is None else job.curve["per_step"]
            found = {
                "phase": self._phase(job, heard),
                "submit_s": job.submit_s,
                "deadline_s": said.deadline_s or INF,
                "remaining_steps": max(job.remaining(now_s), 1e-9),
                "attained_gpu_s": job.attained_gpu_s,
                "held_s": job.held_s,
                "first_start_s": job.first_s,
                "restarts": job.restarts,
                "waiting_since_s": job.waits_s,
                "requested": said.gpus or said.gpus_min,
                "size": gpus(goes),
                "changed_s": job.changed_s,
                "rate_age_s": now_s - job.rate_s,
                "checkpoint_age_steps": max(lost, 0.0) * unit,
                "backoff_until_s": job.backoff_s,
                "refused": job.refused,
                "leaves": bool(job.told and job.claim is None),
                "edge_allowed": said.edge_allowed,
                **{name: getattr(said, name) for name in AS_SAID},
            }
            for column, value in found.items():
                shown = float(getattr(jobs, column)[n])
                same = math.isclose(shown, value, rel_tol=1e-9, abs_tol=1e-6)
                assert same, f"{name}: {column} is {shown}, not {value}"
            assert jobs.tenants[n] == said.tenant
            note = [*job.note, *[np.nan] * (4 - len(job.note))]
            assert np.array_equal(jobs.notes[n], note, equal_nan=True)
            for size, rate in zip(jobs.sizes.tolist(), jobs.rate[n].tolist(), strict=True):
                assert math.isclose(rate, job.rate(size), rel_tol=1e-9), f"{name} at {size}"
            own = {} if job.curve is None else job.curve["affinity"]
            usual = zip(seen.pools.ids, seen.pools.speed, strict=True)
            speeds = [own.get(pool.partition("@")[0], speed) for pool, speed in usual]
            assert jobs.affinity[n].tolist() == speeds
            points = (
                [(p.gpus, 1.0) for p in said.rates] if job.curve is None else job.curve["points"]
            )
            sizes |= {at for at, rate in points if rate}
        assert jobs.sizes.tolist() == (sorted(sizes) or [1])

    def _check_lenders(self, seen: Snapshot) -> None:
        owners: dict[str, list[int]] = defaultdict(list)
        for p, name in enumerate(seen.nodes.ids):
            born = self.nodes[name].born
            if born.pool_kind != "training":
                owners[born.pool if born.pool_kind == "inference" else name].append(p)
        assert [one.id for one in seen.lenders] == sorted(owners)
        slot_s = self.settings.load_slot_s
        for one in seen.lenders:
            said = self.loads.get(one.id, [])
            assert one.nodes.tolist() == owners[one.id]
            assert one.gpus_needed == (said[-1][1] if said else 0.0)
            assert one.load_age_s == (self.now_s - said[-1][0] if said else INF)
            peaks: dict[int, float] = defaultdict(float)
            for at_s, needed in said:
                peaks[int(at_s // slot_s)] = max(peaks[int(at_s // slot_s)], needed)
            if said:
                peaks.setdefault(int(self.now_s // slot_s), said[-1][1])
            slots = range(min(peaks), max(peaks) + 1) if peaks else ()
            history = [peaks.get(slot, np.nan) for slot in slots][-576:]
            assert np.array_equal(one.history, history, equal_nan=True), one.id
