"""Queues in a tree, each with a guarantee, a maximum and a share of what others leave: `capacity`.

The tree and its counts are in `queue_tree.py`; here is who starts, who gives way, and when.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import (
    Figure,
    Ints,
    Kind,
    Need,
    Phase,
    Plan,
    Snapshot,
)
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.fixed import Verdict, gangs, write
from scheduler.policies.parts.queue_tree import NEARLY, Branch, Queue, QueueTree, check, grow_tree
from scheduler.policies.ranges import Amount


@dataclass(frozen=True, slots=True)
class CapacityQueues:
    """Hierarchical queues with guaranteed and bonus capacity (YARN's, as recalled).

    At each level the queue with the smallest use for its guarantee goes first, all below their
    guarantee before all others. What a queue starts at or above its guarantee is *bonus*. A queue
    that waits for what it is guaranteed for longer than `grace_s` takes bonus back: from queues
    that are over by more than the dead zone, the most over first; by scaling jobs in first, then
    by preempting whole gangs, of low priority and late start first. No queue on the way falls
    below its guarantee, and no more is taken than the gang needs. At most `round_most` of the
    cluster is taken in one round, but always one gang; what was freed is held for the claim.

    Guarantees are GPUs, not whole nodes: a gang may fit its queue's and no node all the same.

    What we do differently: all is counted in whole gangs, and a claim is enforced only if its whole
    gang is within the guarantee, for half a gang helps nobody. Who was preempted may not start
    again as bonus for `cooldown_s`, or the two would go round in circles. Defaults of the dead zone
    and the round are YARN's as recalled [M]; the grace is for checkpoints, not for 15 s [M].
    """

    name: str = "capacity"
    queues: tuple[
        Queue, ...
    ] = ()  #: parents too; none: equal guarantees for all tenants there are.
    leaf_of: Mapping[str, str] = field(default_factory=dict)  #: tenant -> path of its leaf.
    default_leaf: str = ""  #: of tenants in none; "": the first leaf.
    grace_s: Amount = 60.0
    dead_zone: Amount = 0.1  #: of the guarantee.
    round_most: Amount = 0.1  #: of the cluster.
    cooldown_s: Amount = 300.0

    def __post_init__(self) -> None:
        check(self.queues, (*self.leaf_of.values(), *filter(None, [self.default_leaf])))

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start, take back, and grow."""
        return _Round(self, snapshot).plan()


class _Round:
    """One plan being made."""

    def __init__(self, rules: CapacityQueues, seen: Snapshot) -> None:
        self.rules, self.seen, self.found = rules, seen, gangs(seen)
        jobs, found = seen.jobs, self.found
        trains = (seen.pools.kind[seen.nodes.pool] == Kind.TRAINING) & seen.nodes.usable
        self.cluster = int(seen.nodes.gpus[trains].sum())
        self.tree: QueueTree = grow_tree(
            rules.queues, rules.leaf_of, rules.default_leaf, jobs.tenants, self.cluster
        )
        self.leaf = [self.tree.leaf(tenant) for tenant in jobs.tenants]
        self.size: Ints = found.size.copy()
        self.given: Ints = found.pool.copy()
        self.room: list[int] = found.room.tolist()
        gpus = np.where(trains, seen.nodes.gpus, 0)
        self.whole = np.bincount(seen.nodes.pool, gpus, len(self.room)).tolist()  #: if all left.
        self.hold = [0] * len(self.room)  #: of the room, what claims below guarantees wait for.
        self.why: dict[int, Because] = {}
        self.taken = 0
        self.changed: set[int] = set()  #: gave way in this plan.
        training = seen.pools.kind[np.maximum(jobs.pool, 0)] == Kind.TRAINING
        holds = (jobs.phase != Phase.WAITING) & (jobs.size > 0) & training & ~found.ousted
        for job in np.flatnonzero(holds).tolist():
            self.leaf[job].add(int(jobs.size[job]), jobs.tenants[job])
        best_s = found.best_s()
        for job in np.flatnonzero(found.starts).tolist():
            leaf = self.leaf[job]
            length = float(best_s[job]) if leaf.rule.order == "shortest" else 0.0
            leaf.push(job, (-int(jobs.priority[job]), length, job))
        self.tree.refresh()

    def plan(self) -> Plan:
        """Serve leaves until nobody can start, then let jobs grow again."""
        while leaf := self.tree.next():
            self._serve(leaf, leaf.pop())
        self._grow()
        share = np.array([leaf.ratio() for leaf in self.leaf], dtype=np.float64)
        figures = {"queue_share": np.minimum(share, float(self.cluster))}
        verdict = Verdict(self.given, "capacity.order", self.size, self.why, figures)
        return write(self.found, verdict)

    def _serve(self, leaf: Branch, job: int) -> None:
        jobs, rules = self.seen.jobs, self.rules
        gpus, tenant = int(self.size[job]), jobs.tenants[job]
        bonus = leaf.used >= leaf.least - NEARLY
        # A gang that no pool has GPUs for, whoever leaves, must not hold its queue up for ever.
        claims = not bonus and gpus <= max(self.whole[pool] for pool in self.found.pools[job])
        enforced = claims and leaf.used + gpus <= leaf.least + NEARLY
        most = leaf.user_most()
        if leaf.by_user.get(tenant, 0) + gpus > most + NEARLY:
            have = float(leaf.by_user.get(tenant, 0) + gpus)
            self._wait(job, "capacity.user_limit", Need("tenant_gpus", most, have))
            return
        rested_s = self.seen.now_s - float(jobs.waiting_since_s[job])
        stopped = np.isfinite(jobs.first_start_s[job]) and jobs.phase[job] == Phase.WAITING
        if bonus and stopped and rested_s < rules.cooldown_s:
            left_s = rules.cooldown_s - rested_s
            self._wait(job, "capacity.cooldown", Need("cooldown_s", left_s, 0.0))
            return
        free = [r - h for r, h in zip(self.room, self.hold, strict=True)] if bonus else self.room
        pool = -1 if leaf.full(gpus) else self.found.fits(job, free)
        if pool < 0 and enforced and rested_s >= rules.grace_s:
            pool = self._take_back(leaf, job)
        full = leaf.full(gpus)
        if pool < 0 and full:
            need = Need("queue_gpus", full[0].most, full[0].used + gpus)
            self._wait(job, "capacity.maximum", need)
            return
        if pool >= 0:
            self.given[job] = pool
            self.room[pool] -= gpus
            leaf.add(gpus, tenant)
            rule = "capacity.bonus" if bonus else "capacity.guaranteed"
            self.why.setdefault(job, Because(rule, figures=self._figures(leaf)))
        elif claims:
            if enforced and rested_s < rules.grace_s:
                self.hold[self.found.pools[job][0]] += gpus
            leaf.clear()  # nobody of its own queue passes a gang that its guarantee is for
        self.tree.refresh(leaf)

    def _wait(self, job: int, rule: str, need: Need) -> None:
        if self.seen.jobs.phase[job] == Phase.WAITING:
            self.why[job] = Because(rule, needs=(need,), figures=self._figures(self.leaf[job]))
        self.tree.refresh(self.leaf[job])

    def _figures(self, leaf: Branch) -> tuple[Figure, ...]:
        return (Figure("queue_gpus", leaf.used), Figure("guaranteed_gpus", leaf.least))

    # --- who gives way ------------------------------------------------------------------------

    def _take_back(self, leaf: Branch, job: int) -> int:
        """Free what a gang needs in one pool; return the pool if it can start there now."""
        gpus = int(self.size[job])
        full = leaf.full(gpus)
        excess = max((one.used + gpus - one.most for one in full), default=0.0)
        for pool in self.found.pools[job]:
            need = max(gpus - self.room[pool], math.ceil(excess - NEARLY))
            steps = self._steps(leaf, pool, need, full[0] if full else self.tree.branches[0])
            if not steps:
                continue
            for victim, after in steps:
                before = int(self.size[victim])
                most = self.rules.round_most * self.cluster
                if self.taken and self.taken + before - after > most:
                    break
                self._shrink(victim, after, leaf)
                self.taken += before - after
                self.room[pool] += before - after
                lost_to = (self.seen.jobs.ids[job],)
                figures = self._figures(self.leaf[victim])
                self.why[victim] = Because("capacity.reclaim", lost_to, figures)
            if self.room[pool] >= gpus and not leaf.full(gpus):
                return pool
            self.hold[pool] += gpus
            return -1
        self.hold[self.found.pools[job][0]] += gpus
        return -1

    def _shrink(self, victim: int, after: int, leaf: Branch) -> None:
        owner = self.leaf[victim]
        owner.add(after - int(self.size[victim]), self.seen.jobs.tenants[victim])
        self.tree.refresh(owner)
        self.tree.refresh(leaf)
        self.changed.add(victim)
        self.size[victim] = after
        if not after:
            self.given[victim] = -1
            self.size[victim] = self.found.size[victim]

    def _steps(self, leaf: Branch, pool: int, need: int, within: Branch) -> list[tuple[int, int]]:
        """Choose (job, GPUs it keeps) below a queue that free `need` GPUs of a pool; [] if none."""
        jobs = self.seen.jobs
        over: dict[int, list[int]] = {}
        runs = np.flatnonzero((self.given == pool) & self.found.runs).tolist()
        for job in runs:
            owner = self.leaf[job]
            if job in self.changed or owner is leaf or not owner.is_below(within):
                continue
            if owner.over(self.rules.dead_zone):
                over.setdefault(owner.index, []).append(job)
        owners = sorted(over, key=lambda at: (-self.tree.branches[at].ratio(), at))
        ranked = [
            job
            for at in owners
            for job in sorted(
                over[at],
                key=lambda j: (
                    int(jobs.priority[j]),
                    -float(jobs.first_start_s[j]) if np.isfinite(jobs.first_start_s[j]) else 0.0,
                    float(jobs.checkpoint_age_steps[j]),
                    -j,
                ),
            )
        ]
        kept = {job: int(self.size[job]) for job in ranked}
        spent = [0.0] * len(self.tree.branches)
        for whole in (False, True):
            for job in ranked:
                if need <= 0:
                    break
                before = kept[job]
                after = 0 if whole else self._smaller(job, need)
                losing, gpus = list(self.leaf[job].below_common(leaf)), before - after
                if gpus > 0 and all(
                    one.used - spent[one.index] - gpus >= one.least - NEARLY for one in losing
                ):
                    for one in losing:
                        spent[one.index] += gpus
                    kept[job], need = after, need - gpus
        if need > 0:
            return []
        steps = [(job, kept[job]) for job in ranked if kept[job] < self.size[job]]
        for job, after in list(steps):  # spare whoever the later ones made unnecessary
            back = int(self.size[job]) - after
            if back <= -need:
                steps.remove((job, after))
                need += back
        return steps

    def _smaller(self, job: int, need: int) -> int:
        """Return the largest smaller size that frees enough, else the smallest."""
        sizes = self.seen.jobs.sizes[self.seen.jobs.rate[job] > 0]
        less = sizes[sizes < self.size[job]]
        if not len(less):
            return int(self.size[job])
        enough = less[less <= self.size[job] - need]
        return int(enough[-1] if len(enough) else less[0])

    # --- who grows again ----------------------------------------------------------------------

    def _grow(self) -> None:
        """Give jobs that were scaled in what they had asked for, where room is left."""
        jobs, found = self.seen.jobs, self.found
        smaller = found.runs & (self.given >= 0) & (found.size < jobs.requested)
        smaller &= self.seen.now_s - jobs.changed_s >= self.rules.cooldown_s
        for job in np.flatnonzero(smaller).tolist():
            pool, leaf = int(self.given[job]), self.leaf[job]
            allowed = jobs.sizes[(jobs.rate[job] > 0) & (jobs.sizes <= jobs.requested[job])]
            more = int(allowed.max(initial=0)) - int(self.size[job])
            if job in self.changed or not 0 < more <= self.room[pool] - self.hold[pool]:
                continue
            theirs = leaf.by_user.get(jobs.tenants[job], 0) + more
            if leaf.full(more) or theirs > leaf.user_most() + NEARLY:
                continue
            self.size[job] += more
            self.room[pool] -= more
            leaf.add(more, jobs.tenants[job])
            self.why[job] = Because("capacity.bonus", figures=self._figures(leaf))
