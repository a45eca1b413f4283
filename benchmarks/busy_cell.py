"""A real engine over a cluster that does at once what it is told, and what its cycles take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import numpy as np

from scheduler import garbage
from scheduler.core import due, engine
from scheduler.core.engine import Engine
from scheduler.core.job_work import declared_rate
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Cause, Command, Input, LeaderStarted, Stimulus, TimePassed
from scheduler.core.transitions import TERMINAL, JobState
from scheduler.policies.interface import Plan, Snapshot
from scheduler.policies.registry import make_policy
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import (
    CommandAcknowledged,
    InferenceLoad,
    JobProgressed,
    JobSubmitted,
    NodeBorn,
    RatePoint,
    WorkerStarted,
    WorkerStopped,
)

CYCLE_S, SLOT_S, DAY_S = 60.0, 300.0, 86_400.0
HISTORY_SLOTS = 2 * 288
#: Cycles after a cold start that are not steady yet: gangs still start, and all are new.
SETTLING = 5
#: The parts of a cycle.
PARTS = ("due", "columns", "policy", "adopt", "rest")


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """Seconds that t cycles took."""

    wall_s: np.ndarray  #: (t,)
    cpu_s: np.ndarray  #: (t,)
    parts_s: np.ndarray  #: (t, parts) of CPU time.

    def steady(self) -> "Spent":
        """Return those of cycles some time after the cold start."""
        after = slice(min(SETTLING, len(self.wall_s) - 1), None)
        return Spent(self.wall_s[after], self.cpu_s[after], self.parts_s[after])

    @property
    def mean_s(self) -> float:
        """Wall time of a cycle."""
        return float(self.wall_s.mean())


class Cell:
    """A real engine, and a cluster that does at once what it is told."""

    def __init__(self, policy: str, gpus: int, seed: int) -> None:
        """Begin with all nodes born and two days of what owners needed; the policy is not asked."""
        nodes = gpus // 8
        lent = max(1, nodes // 4)
        self._lent, self.now_s = lent, 1e6
        self._rng = np.random.default_rng(seed)
        self._policy = make_policy(policy)
        self._done: dict[str, float] = {}  # progress of running gangs, in steps
        self._made = 0
        self.spent = dict.fromkeys(PARTS, 0.0)
        np.unique(np.zeros(1))  # imports what it needs when it is called first
        self.engine = Engine(ClusterState(), lambda _: self)
        self._feed(LeaderStarted("bench", 1, policy, Settings().to_dict()))
        train, edge = nodes - lent, 2
        for pool, kind, count, gpus_each, speed in (
            ("train", "training", train, 8, 1.0),
            ("infer", "inference", lent + 1, 8, 0.8),
            ("owned", "inference", 2, 8, 1.0),
            ("edge", "edge", edge, 1, 0.3),
        ):
            for number in range(count):
                born = {"node": f"{pool}-{number:05}", "agent": pool, "pool": pool}
                figures = {"gpu_count": gpus_each, "gpu_memory_mib": 80_000, "speed_factor": speed}
                self._feed(
                    NodeBorn.model_validate(
                        {**born, **figures, "pool_kind": kind, "gpu_type": "a100"}
                    )
                )
        end_s = self.now_s
        for slot in range(-HISTORY_SLOTS, 1):
            self.now_s = max(self.now_s, end_s + (slot + HISTORY_SLOTS) * SLOT_S)
            self._loads()

    @property
    def name(self) -> str:
        """That of the policy that it measures."""
        return self._policy.name

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide as the policy does."""
        return self._policy.plan(snapshot)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Measure the parts of a cycle where the engine calls them."""
        places: tuple[tuple[Any, str, str], ...] = (
            (due, "overdue", "due"),
            (self.engine, "snapshot", "columns"),
            (self, "plan", "policy"),
            (engine, "adopt", "adopt"),
        )
        kept = [getattr(owner, name) for owner, name, _ in places]
        for (owner, name, part), does in zip(places, kept, strict=True):
            setattr(owner, name, self._timed(does, part))
        try:
            yield
        finally:
            for (owner, name, _), does in zip(places, kept, strict=True):
                setattr(owner, name, does)

    def _timed(self, does: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began_s = process_time()
            try:
                return does(*arguments)
            finally:
                self.spent[part] += process_time() - began_s

        return timed

    # --- the cluster -------------------------------------------------------------------------

    def _feed(self, data: Input) -> None:
        """Hand the engine an event, and answer the commands that follow from it."""
        cause = Cause("/agents/bench", 1, self.engine.state.number)
        for command in self.engine.handle(Stimulus(self.now_s, data, cause)).commands:
            self._obey(command)

    def submit(self) -> None:
        """Let one more job come, of any length and size."""
        rng, low = self._rng, int(self._rng.integers(0, 4))
        sizes = (1, 2, 4, 8, 16, 32)[low : low + int(rng.integers(1, 5))]
        power, within_s = float(rng.uniform(0.6, 0.95)), float(rng.uniform(3000, 30000))
        self._made += 1
        self._feed(
            JobSubmitted(
                job=f"job-{self._made:06}",
                tenant=f"team-{self._made % 10}",
                model="m",
                gpus_min=sizes[0],
                gpus_max=sizes[-1],
                total_steps=1 + int(rng.lognormal(9, 1)),
                samples_per_step=1.0,
                rates=[RatePoint(gpus=size, samples_per_s=float(size**power)) for size in sizes],
                deadline_s=self.now_s + within_s if rng.random() < 0.2 else None,
                memory_mib=10_000,
                checkpoint_mib=1000,
                checkpoint_cost_s=10.0,
                start_cost_s=20.0,
                edge_allowed=bool(rng.random() < 0.3),
            )
        )

    def _loads(self) -> None:
        tide = 1.0 + float(np.sin(2 * np.pi * self.now_s / DAY_S))
        self._load("infer", round(8 * self._lent * 0.25 * tide))
        self._load("owned", round(8.0 * (1.0 + float(np.sin(self.now_s / SLOT_S / 45)))))
        for node in ("edge-00000", "edge-00001"):
            self._load("edge", 0, node)

    def _load(self, pool: str, gpus: int, node: str | None = None) -> None:
        figures = {"requests_running": 1, "requests_waiting": 0, "request_rate_per_s": 1.0}
        needs = {"gpus_needed": gpus, "gpus_serving": gpus, "pool": pool, "node": node}
        self._feed(InferenceLoad.model_validate({**figures, **needs}))

    def _obey(self, command: Command) -> None:
        self._feed(CommandAcknowledged(command=command.id, outcome="done"))
        data = command.data
        if not isinstance(data, StartGang | ScaleGang | StopGang):
            return
        job = self.engine.state.jobs[data.job]
        epoch, step = job.epoch, int(self._done.get(job.id, job.step))
        left = job.allocation if isinstance(data, StopGang) else job.leaving
        why = data.reason if isinstance(data, StopGang) else "scaled_in"
        for node, gpus in sorted(left.items()):
            part = {"job": job.id, "epoch": epoch, "node": node, "gpus": list(gpus)}
            self._feed(WorkerStopped.model_validate({**part, "reason": why, "step": step}))
        if isinstance(data, StartGang | ScaleGang):
            self._done[job.id] = float(step)
            for node, gpus in sorted(job.allocation.items()):
                part = {"job": job.id, "epoch": epoch, "node": node, "gpus": list(gpus)}
                self._feed(WorkerStarted.model_validate({**part, "step": step}))
        else:
            self._done.pop(job.id, None)

    def rest(self) -> None:
        """Do what the scheduler's process does after each plan, where nobody waits for it."""
        self.engine.catch_up()
        garbage.look_at_new(surely=True)

    # --- time --------------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """How many jobs have not ended."""
        return sum(job.state not in TERMINAL for job in self.engine.state.jobs.values())

    def work(self) -> None:
        """Let a cycle's time pass: gangs get on, some end, and a fifteenth of them says so."""
        self.now_s += CYCLE_S
        state = self.engine.state
        for number, name in enumerate(list(self._done)):
            job = state.jobs[name]
            if job.state != JobState.RUNNING:
                continue
            speed = min(state.nodes[node].speed_factor for node in job.allocation)
            rate = declared_rate(job, job.size) * speed
            assert job.total_steps is not None
            self._done[name] = min(float(job.total_steps), self._done[name] + CYCLE_S * rate)
            step = int(self._done[name])
            if step == job.total_steps:
                del self._done[name]
                for node, gpus in sorted(job.allocation.items()):
                    part = {"job": name, "epoch": job.epoch, "node": node, "gpus": list(gpus)}
                    done = {"reason": "completed", "step": step}
                    self._feed(WorkerStopped.model_validate({**part, **done}))
            elif number % 15 == int(self.now_s / CYCLE_S) % 15 or job.samples_per_s == 0.0:
                said = {"job": name, "epoch": job.epoch, "step": step, "samples_per_s": rate}
                saved = {"checkpoint_step": step, "checkpoint_cost_s": 10.0}
                self._feed(JobProgressed.model_validate({**said, **saved}))
        if self.now_s % SLOT_S < CYCLE_S:
            self._loads()

    def cycle(self) -> Spent:
        """Have the engine decide, and give what that took."""
        self.spent = dict.fromkeys(PARTS, 0.0)
        stimulus = Stimulus(self.now_s, TimePassed())
        with self._watched():
            began_s, began_cpu_s = perf_counter(), process_time()
            decision = self.engine.handle(stimulus)
            cpu_s, wall_s = process_time() - began_cpu_s, perf_counter() - began_s
        self.spent["rest"] = cpu_s - sum(self.spent.values())
        parts = np.array([[self.spent[part] for part in PARTS]])
        for command in decision.commands:
            self._obey(command)
        return Spent(np.array([wall_s]), np.array([cpu_s]), parts)
