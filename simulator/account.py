"""What becomes of jobs and nodes in a run, counted from the engine's facts and the field's truth.

It is an account beside the engine's own: nothing here is read back by anybody who decides.
"""

import math
from collections.abc import Sequence

import numpy as np

from scheduler.core import facts
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.policies.interface import Ints, Kind
from simulator.driver import START_S
from simulator.gang import Witness
from simulator.layout import Layout
from simulator.outcome import FleetRecord, Outcome
from simulator.physics.base import Placement
from simulator.pools import Owner
from simulator.usage import Usage


class Account(Witness):
    """Counts for N jobs, by submission, and for all nodes. Moments are the run's, in seconds."""

    def __init__(self, layout: Layout, out: Outcome) -> None:
        """Begin with nothing counted; `out` is filled."""
        many = len(out.ids)
        self._layout, self._out = layout, out
        self._at = {name: number for number, name in enumerate(out.ids)}
        self.over = 0  #: Jobs that ended, or were refused.
        self.failed = ""  #: Why the policy could not decide, if it could not.
        self._line: list[tuple[float, int]] = [(0.0, 0)]  # moments, and GPUs held from then on
        self._free: Ints = layout.gpus.copy()
        self._usage = Usage(layout.gpus, layout.pools.kind[layout.pool])
        self._open = layout.pools.kind[layout.pool] == Kind.TRAINING
        self._takes = self._open.copy()  # new work
        self._allocation: dict[
            int, dict[str, set[int]]
        ] = {}  # what jobs hold, by the engine's ledger
        self._held = [0] * many
        self._since_s = [0.0] * many  # of the present number of GPUs
        self._waits_since_s: dict[int, float] = {}  # jobs that wait, by submission
        self._pause: list[tuple[float, float]] = [(0.0, 0.0)] * many
        self._site = [-1] * many
        self._loans = 0
        #: Nodes asked back: which batch, asked, due and back when.
        self._reclaims: list[list[float]] = []
        self._asked_back: dict[int, list[float]] = {}  # those that are not back yet
        self._batches, self._batch_s = 0, -math.inf
        self._batch_of: dict[str, int] = {}  # owner -> batch, of what is asked at `_batch_s`
        self._looked_s = 0.0
        self._idle = self._stranded = 0
        self._decided = False
        self._usage.open(self._open)

    # --- what the field tells -----------------------------------------------------------------

    def changed(
        self,
        job: int,
        site: int,
        before: Placement,
        after: Placement,
        now_s: float,
        ready_s: float,
    ) -> None:
        at_s, out = now_s - START_S, self._out
        if out.start_s[job] == math.inf:
            out.start_s[job], out.ready_s[job] = at_s, ready_s - START_S
        else:
            out.restarts[job] += 1
        if before:
            held, size = (sum(gpus for _, gpus in one) for one in (before, after))
            count = out.grown if size > held else out.shrunk if size < held else out.moved
            count[job] += 1
        if self._site[job] not in (-1, site):
            out.migrated[job] += 1
            edge = self._layout.is_edge
            out.crossed[job] += edge(self._site[job]) != edge(site)
        self._site[job] = site
        self.stands(job, now_s, ready_s)

    def stands(self, job: int, now_s: float, until_s: float) -> None:
        """A job makes no progress from now until then."""
        self._book_pause(job, now_s - START_S)
        self._pause[job] = now_s - START_S, until_s - START_S

    def _book_pause(self, job: int, now_s: float) -> None:
        since_s, until_s = self._pause[job]
        self._out.paused_gpu_s[job] += self._held[job] * max(min(now_s, until_s) - since_s, 0.0)
        self._pause[job] = now_s, max(until_s, now_s)

    def ended(self, job: int, at_s: float) -> None:
        self._out.end_s[job] = at_s - START_S

    def killed(self, job: int, lost_s: float) -> None:
        self._out.killed[job] += 1
        self._out.lost_gpu_s[job] += self._held[job] * lost_s

    # --- what the engine decided --------------------------------------------------------------

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        """Take the facts of a decision."""
        now_s = max(stimulus.at_s - START_S, 0.0)
        if self._decided and now_s > self._looked_s:
            self._look(now_s)
        elif now_s > self._looked_s:
            self._book_idle(now_s)
        changed = False
        for fact in decision.facts:
            match fact:
                case facts.GangStarting() | facts.GangScaling():
                    changed = True
                    self._given(fact, now_s)
                case facts.GpusReleased():
                    changed = True
                    self._released(fact, now_s)
                case facts.GangCheckpointing() | facts.GangStopping():
                    self._leaves(fact, now_s)
                case facts.JobAccepted():
                    self._waits_since_s[self._at[fact.job]] = now_s
                case facts.JobQueued():
                    job = self._at[fact.job]
                    self._out.preemptions[job] += fact.reason != "migrated"
                    self._waits_since_s[job] = now_s
                case facts.JobMigrating():
                    self._waits_since_s[self._at[fact.job]] = now_s
                case facts.JobCompleted():
                    self.over += 1
                case facts.JobDeclined() | facts.JobFailed():
                    self.over += 1
                    job = self._at[fact.job]
                    self._out.refused[job] = isinstance(fact, facts.JobDeclined)
                    self._stops_waiting(job, now_s)
                case facts.PolicyFailed():
                    self.failed = self.failed or fact.error
                case facts.TargetSet():
                    self._out.claims += 1
                case facts.TargetDropped():
                    self._out.claims_timed_out += fact.timed_out
                case facts.CycleRan():
                    self._decided = True
                case _:
                    self._of_nodes(fact, now_s)
        if changed:
            held = self._layout.total - int(self._free.sum())
            self._line.append((now_s, held))
            self._usage.book(now_s)
            self._usage.look(self._free)

    def _given(self, fact: facts.GangStarting | facts.GangScaling, now_s: float) -> None:
        job = self._at[fact.job]
        self._stops_waiting(job, now_s)
        own = self._allocation.get(job, {})
        for node, gpus in fact.allocation.items():
            fresh = len(set(gpus) - own.get(node, set()))
            self._free[self._layout.at[node]] -= fresh
            own.setdefault(node, set()).update(gpus)
        self._allocation[job] = own
        self._holds(job, now_s)

    def _leaves(self, fact: facts.GangCheckpointing | facts.GangStopping, now_s: float) -> None:
        job = self._at[fact.job]
        self._book_pause(job, now_s)
        self._pause[job] = now_s, math.inf  # it does nothing any more until it is gone
        if fact.reason == "preempted":
            nodes = (self._layout.at[node] for node in self._allocation.get(job, ()))
            self._out.reclaim_preemptions += any(node in self._asked_back for node in nodes)

    def _released(self, fact: facts.GpusReleased, now_s: float) -> None:
        job = self._at[fact.job]
        own = self._allocation.get(job, {}).get(fact.node, set())
        self._free[self._layout.at[fact.node]] += len(own & set(fact.gpus))
        own -= set(fact.gpus)
        self._holds(job, now_s)

    def _holds(self, job: int, now_s: float) -> None:
        """Book what a job held until now, and note what it holds from now on."""
        self._out.attained_gpu_s[job] += self._held[job] * (now_s - self._since_s[job])
        self._book_pause(job, now_s)
        self._since_s[job] = now_s
        self._held[job] = sum(map(len, self._allocation[job].values()))

    def _stops_waiting(self, job: int, now_s: float) -> None:
        if (since_s := self._waits_since_s.pop(job, None)) is not None:
            self._out.waited_s[job] += now_s - since_s

    def _of_nodes(self, fact: object, now_s: float) -> None:
        layout, at = self._layout, self._layout.at
        match fact:
            case facts.NodeJoined() if layout.node_pool(at[fact.node]).kind == Kind.TRAINING:
                self._set(at[fact.node], True, now_s)
            case facts.NodeLost():
                self._set(at[fact.node], False, now_s)
            case facts.LoanGranted():
                self._loans += 1
                self._set(at[fact.node], True, now_s)
            case facts.ReclaimStarted():
                if self._batch_s != now_s:
                    self._batch_s, self._batch_of = now_s, {}
                node = at[fact.node]
                owner = layout.agent_of(node)  # whoever lends has an agent of its own
                if owner not in self._batch_of:
                    self._batch_of[owner] = self._batches
                    self._batches += 1
                due_s = fact.due_s - START_S
                row = self._asked_back[node] = [self._batch_of[owner], now_s, due_s, math.inf]
                self._reclaims.append(row)
                self._takes[node] = False
            case facts.LoanReturned() | facts.LoanLost():
                node = at[fact.node]
                if (back := self._asked_back.pop(node, None)) is not None:
                    back[-1] = now_s
                self._set(node, False, now_s)
            case _:
                pass

    def _set(self, node: int, is_open: bool, now_s: float) -> None:
        self._open[node] = self._takes[node] = is_open
        self._usage.book(now_s)
        self._usage.open(self._open)
        self._usage.look(self._free)

    # --- idle GPUs ----------------------------------------------------------------------------

    def _book_idle(self, now_s: float) -> None:
        self._out.idle_gpu_s += self._idle * (now_s - self._looked_s)
        self._out.stranded_gpu_s += self._stranded * (now_s - self._looked_s)
        self._looked_s = now_s

    def _look(self, now_s: float) -> None:
        """Count GPUs that were left idle since a decision while somebody waited for some."""
        self._decided = False
        self._idle = self._stranded = 0
        if self._waits_since_s:
            free = np.where(self._takes, self._free, 0)
            asked = int(self._out.requested[min(self._waits_since_s)])
            gang = min(asked, self._layout.all_pools[0].gpus_per_node)
            self._idle, self._stranded = int(free.sum()), int((free % gang).sum())
        self._book_idle(now_s)

    def close(self, now_s: float, owners: Sequence[Owner], failures: int | None) -> None:
        """End all accounts at a moment; of the fleet only if its `failures` are given."""
        if self._decided:
            self._look(now_s)
        self._book_idle(now_s)
        for job in range(len(self._held)):
            if self._held[job]:
                self._holds(job, now_s)
            self._stops_waiting(job, now_s)
        self._usage.book(now_s)
        self._out.until_s = now_s
        self._out.line_s = np.array([moment for moment, _ in self._line])
        self._out.line_gpus = np.array([gpus for _, gpus in self._line], dtype=np.int64)
        if failures is not None:
            self._out.fleet = self._fleet(now_s, owners, failures)

    def _fleet(self, now_s: float, owners: Sequence[Owner], failures: int) -> FleetRecord:
        for owner in owners:
            owner.book(now_s)
        pools = [owner for owner in owners if owner.kind == Kind.INFERENCE]
        opened, held = self._usage.open_gpu_s, self._usage.held_gpu_s
        line_s, lent, used = np.array(self._usage.line).reshape(-1, 3).T
        batch, asked_s, due_s, back_s = np.array(self._reclaims).reshape(-1, 4).T
        return FleetRecord(
            gpus=self._layout.total,
            ready_gpu_s=sum(opened),
            loans=self._loans,
            lent_gpu_s=opened[Kind.INFERENCE],
            lent_used_gpu_s=held[Kind.INFERENCE],
            edge_gpu_s=opened[Kind.EDGE],
            edge_used_gpu_s=held[Kind.EDGE],
            reclaim_batch=batch.astype(np.int64),
            reclaim_asked_s=asked_s,
            reclaim_due_s=due_s,
            reclaim_back_s=back_s,
            needed_gpu_s=sum(owner.needed_gpu_s for owner in pools),
            short_gpu_s=sum(owner.short_gpu_s for owner in pools),
            owned_gpu_s=sum(owner.gpus for owner in pools) * now_s,
            edge_short_gpu_s=sum(one.short_gpu_s for one in owners if one.kind == Kind.EDGE),
            failures=failures,
            line_s=line_s,
            line_lent=lent.astype(np.int64),
            line_used=used.astype(np.int64),
        )
