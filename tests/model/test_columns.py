"""Every column of the live snapshot is what an independent account of the same history says."""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from scheduler.core.engine import Engine
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import (
    Cause,
    Command,
    Curve,
    CurvesLearned,
    Input,
    LeaderStarted,
    NodeHeard,
    NodeSilent,
    Stimulus,
    TimePassed,
)
from schemas import commands, events
from tests.builders import START_S, begun_anew, load, node_born, submitted
from tests.model.account import Books
from tests.model.account_columns import check
from tests.simulation.world import RandomPolicy

#: (node, agent, pool, kind, GPUs, speed, transfer): two agents in one pool, unlike nodes.
FLEET: list[tuple[str, str, str, events.PoolKind, int, float, float]] = [
    ("t0", "a0", "train", "training", 4, 1.0, 1000.0),
    ("t1", "a0", "train", "training", 4, 0.8, 500.0),
    ("t2", "a1", "train", "training", 4, 1.0, 1000.0),
    ("i0", "inf", "infer", "inference", 4, 0.5, 1000.0),
    ("i1", "inf", "infer", "inference", 2, 0.6, 1000.0),
    ("e0", "e0", "edge", "edge", 2, 0.3, 20.0),
    ("e1", "e1", "edge", "edge", 2, 0.2, 10.0),
]
NODES = {row[0]: row for row in FLEET}


@dataclass
class Gang:
    """What an agent runs."""

    epoch: int
    where: dict[str, list[int]]
    total: int
    step: int
    up_s: float = 0.0
    whole: bool = True


#: When, which of them, what and by whom.
Coming = tuple[float, int, Any, Cause]


def stopped(job: str, epoch: int, node: str, gpus: list[int], why: Any, step: int) -> Any:
    return events.WorkerStopped(job=job, epoch=epoch, node=node, gpus=gpus, reason=why, step=step)


class Field:
    """A cell with agents that answer within seconds, and whatever else befalls it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.policy = RandomPolicy(np.random.default_rng(seed + 1), nonsense=0.0)
        self.settings = Settings()
        self.books = Books(self.settings)
        self.engine = Engine(ClusterState(), lambda _: self.policy)
        self.now_s = START_S
        self.coming: list[Coming] = []
        self.gangs: dict[str, Gang] = {}
        self.silent: dict[str, float] = {}  #: Node: since when.
        self.dead: set[str] = set()
        self.count = self.jobs = 0
        self.feed(LeaderStarted("x", 1, "any:of=all", self.settings.to_dict()))
        for name in NODES:
            self.feed(self.born(name))

    def born(self, name: str) -> events.NodeBorn:
        node, agent, pool, kind, gpus, speed, transfer = NODES[name]
        born = node_born(node, agent=agent, pool=pool, kind=kind, gpus=gpus)
        return born.model_copy(update={"speed_factor": speed, "transfer_mib_per_s": transfer})

    # --- what is said and done ---

    def feed(self, data: Input, cause: Cause | None = None) -> None:
        self.policy.made = None
        stimulus = Stimulus(self.now_s, data, cause or Cause("/agents/x", 0, self.count))
        decision = self.engine.handle(stimulus)
        self.count += 1
        self.books.take(stimulus, self.policy.made, decision.facts)
        assert self.engine.state.totals.policy_failures == 0
        if self.count % 4 == 0:
            self.engine.catch_up()
        if self.count % 3 == 0:
            begun_anew(self.engine)
            check(self.books, self.engine.snapshot())
        for command in decision.commands:
            self.obey(command)

    def say(self, data: Any, within_s: float, cause: Cause | None = None) -> float:
        at_s = self.now_s + float(self.rng.uniform(0.0, within_s))
        self.count += 1
        cause = cause or Cause("/agents/x", 0, self.count)
        heapq.heappush(self.coming, (at_s, self.count, data, cause))
        return at_s

    def obey(self, command: Command) -> None:
        data = command.data
        no = isinstance(data, commands.LendNode) and self.rng.random() < 0.2
        outcome: Any = "refused" if no else "done"
        self.say(events.CommandAcknowledged(command=command.id, outcome=outcome, reason="-"), 20.0)
        match data:
            case commands.StartGang() | commands.ScaleGang():
                where = {part.node: list(part.gpus) for part in data.placement}
                if isinstance(data, commands.StartGang):
                    assert data.spec.total_steps is not None
                    gang = Gang(data.epoch, where, data.spec.total_steps, data.step)
                else:
                    gang = self.gangs[data.job]
                    for name, had in gang.where.items():
                        left = [gpu for gpu in had if gpu not in where.get(name, ())]
                        if left:
                            self.say(
                                stopped(data.job, gang.epoch, name, left, "scaled_in", 0), 40.0
                            )
                    gang.epoch, gang.where = data.epoch, where
                self.gangs[data.job], gang.up_s = gang, self.now_s
                for name, gpus in where.items():
                    said = events.WorkerStarted(
                        job=data.job, epoch=data.epoch, node=name, gpus=gpus, step=gang.step
                    )
                    gang.up_s = max(gang.up_s, self.say(said, 60.0))
            case commands.StopGang() if data.job in self.gangs:
                gang = self.gangs.pop(data.job)
                step = gang.step if data.checkpoint else 0
                for name, gpus in gang.where.items():
                    said = stopped(data.job, gang.epoch, name, gpus, data.reason, step)
                    self.say(said, 40.0)

    # --- time ---

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            wake_s = max(self.engine.wake_s or end_s, self.now_s)
            if self.coming and self.coming[0][0] <= min(wake_s, end_s):
                at_s, _, data, cause = heapq.heappop(self.coming)
                self.now_s = max(self.now_s, at_s)
                self.feed(data, cause)
            elif wake_s <= end_s:
                self.now_s = wake_s
                self.feed(TimePassed())
            else:
                self.now_s = end_s
                return

    # --- what may happen ---

    def happen(self) -> None:
        for name, since_s in list(self.silent.items()):
            if self.now_s >= since_s + 300.0:  # well before its lease ends
                del self.silent[name]
                self.feed(NodeHeard(name))
        what = ["submit", "progress", "load", "learn", "cancel", "fail", "contact", "die"]
        chances = (0.15, 0.3, 0.2, 0.1, 0.03, 0.05, 0.12, 0.05)
        getattr(self, str(self.rng.choice(what, p=chances)))()

    def submit(self) -> None:
        rng = self.rng
        least = int(rng.integers(1, 4))
        most = least + int(rng.integers(0, 6))
        sizes = sorted({least, most, *rng.integers(1, 9, 2).tolist()})
        rates = [events.RatePoint(gpus=g, samples_per_s=float(10 * g**0.8)) for g in sizes]
        said = {
            "gpus_min": least,
            "gpus_max": most,
            "tenant": f"team-{self.jobs % 3}",
            "gpus": int(rng.integers(least, most + 1)) if rng.random() < 0.5 else None,
            "total_steps": int(rng.integers(50, 5000)),
            "samples_per_step": float(rng.uniform(1.0, 20.0)),
            "rates": rates,
            "deadline_s": self.now_s + 4000.0 if rng.random() < 0.3 else None,
            "priority": int(rng.integers(-2, 3)),
            "checkpoint_mib": int(rng.integers(0, 500)),
            "memory_mib": int(rng.integers(0, 90_000)),
            "edge_allowed": bool(rng.random() < 0.5),
        }
        self.jobs += 1
        self.feed(submitted(f"j{self.jobs - 1}").model_copy(update=said))

    def running(self) -> list[str]:
        return [
            name
            for name, gang in self.gangs.items()
            if gang.whole and gang.up_s < self.now_s and not self.silent.keys() & gang.where.keys()
        ]

    def progress(self) -> None:
        for name in self.running():
            gang, rng = self.gangs[name], self.rng
            gang.step = min(gang.total, gang.step + int(rng.integers(0, 200)))
            if gang.step == gang.total:
                self.gangs.pop(name)
                for node, gpus in gang.where.items():
                    self.feed(stopped(name, gang.epoch, node, gpus, "completed", gang.step))
                return
            said = events.JobProgressed(
                job=name,
                epoch=gang.epoch,
                step=gang.step,
                samples_per_s=float(rng.uniform(5.0, 50.0)),
                checkpoint_step=gang.step if rng.random() < 0.3 else 0,
                checkpoint_cost_s=5.0,
            )
            self.feed(said)

    def load(self) -> None:
        name = str(self.rng.choice(["i0", "e0", "e1"]))
        _, agent, pool, _, _, _, _ = NODES[name]
        said = load(int(self.rng.integers(0, 7)), pool, None if pool == "infer" else name)
        # What was said first may come last; a restarted agent counts anew.
        self.count += 1
        cause = Cause(f"/agents/{agent}", int(self.now_s - START_S) // 4000, self.count)
        self.say(said, 900.0, cause)

    def learn(self) -> None:
        rng = self.rng
        names = [name for name in self.books.jobs if rng.random() < 0.3]
        curves: dict[str, Curve] = {}
        for name in [*names, "nobody"]:
            sizes = sorted({int(size) for size in rng.integers(1, 10, 4)})
            points = [[float(g), float(rng.choice([0.0, 5.0 * g, 7.0 * g]))] for g in sizes]
            curves[name] = {
                "points": points,
                "per_step": float(rng.uniform(0.5, 30.0)),
                "left": float(rng.uniform(0.0, 9000.0)) if rng.random() < 0.5 else None,
                "measured": [],
                "affinity": {"infer": 0.7, "gone": 2.0} if rng.random() < 0.5 else {},
            }
        self.feed(CurvesLearned(curves))

    def cancel(self) -> None:
        if self.books.jobs:
            self.feed(events.JobCancelled(job=str(self.rng.choice(list(self.books.jobs)))))

    def fail(self) -> None:
        for name in self.running()[:1]:
            gang = self.gangs[name]
            node = min(gang.where)
            gpus = gang.where.pop(node)
            gang.whole = False
            if not gang.where:
                self.gangs.pop(name)
            place: Any = {"job": name, "epoch": gang.epoch, "node": node, "gpus": gpus}
            self.feed(events.WorkerFailed(**place, error="e", step=0))

    def contact(self) -> None:
        name = str(self.rng.choice(list(NODES)))
        if name not in self.dead and name not in self.silent:
            self.silent[name] = self.now_s
            self.feed(NodeSilent(name, self.now_s))

    def die(self) -> None:
        for name in sorted(self.dead):
            self.dead.remove(name)
            self.feed(self.born(name))
        name = str(self.rng.choice(list(NODES)))
        if name in self.silent or name in self.dead:
            return
        self.dead.add(name)
        for job, gang in list(self.gangs.items()):
            if gang.where.pop(name, None) is not None:
                gang.whole = False
                if not gang.where:
                    self.gangs.pop(job)
        self.coming = [one for one in self.coming if getattr(one[2], "node", "") != name]
        heapq.heapify(self.coming)
        self.feed(events.NodeDied(node=name, reason="off"))


SLOWER = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6)]


@pytest.mark.parametrize("seed", [0, *SLOWER])
def test_every_column_is_what_the_books_say(seed: int) -> None:
    field = Field(seed)
    for _ in range(200):
        field.happen()
        field.pass_s(float(field.rng.choice([0.0, 1.0, 10.0, 45.0, 120.0])))
    totals = field.engine.state.totals
    assert min(totals.jobs_started, totals.migrations, totals.scale_ins, totals.loans_granted) > 0
