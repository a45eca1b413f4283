"""How many stimuli a second the engine handles, and what a node and a job cost in memory."""

import gc
import time
import tracemalloc
from collections.abc import Iterator

from scheduler.core.engine import Engine
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Cause, Decision, Input, LeaderStarted, Stimulus, TimePassed
from scheduler.policies.registry import make_policy
from schemas import commands, events

_START_S = 1_000_000.0
_GPUS = 8


class World:
    """An engine with a fleet that obeys at once, so that steady state is soon reached."""

    def __init__(self, nodes: int, jobs: int, policy: str = "tide") -> None:
        """Start a cluster of `nodes` training nodes of 8 GPUs with `jobs` jobs submitted."""
        self.engine = Engine(ClusterState(), make_policy)
        self.now_s = _START_S
        self.stimuli: list[Stimulus] = []
        self.feed(LeaderStarted("bench", 1, policy, Settings().to_dict()))
        for number in range(nodes):
            self.feed(_born(number))
        for number in range(jobs):
            self.feed(_submitted(number))

    def feed(self, data: Input) -> Decision:
        """Hand the engine one input, now."""
        stimulus = Stimulus(self.now_s, data, Cause("/agents/cluster", 1, 0))
        self.stimuli.append(stimulus)
        return self.engine.handle(stimulus)

    def cycle(self, later_s: float = 60.0) -> Decision:
        """Let time pass, and the fleet obey what the cycle commands."""
        self.now_s += later_s
        decision = self.feed(TimePassed())
        for command in decision.commands:
            for answer in obey(command.id, command.data):
                self.feed(answer)
        return decision


def _born(number: int) -> events.NodeBorn:
    return events.NodeBorn(
        node=f"node-{number:05d}",
        agent="cluster",
        pool="training",
        pool_kind="training",
        gpu_count=_GPUS,
        gpu_type="a100",
        gpu_memory_mib=81_920,
    )


def _submitted(number: int) -> events.JobSubmitted:
    base = 100.0 + number % 37
    points = [(1, 1.0), (2, 1.9), (4, 3.5), (8, 6.2)]
    return events.JobSubmitted(
        job=f"job-{number:06d}",
        tenant=f"team-{number % 7}",
        model="resnet50",
        gpus_min=1 + number % 2,
        gpus_max=8,
        total_steps=5_000_000 + 1000 * number,
        samples_per_step=64.0,
        rates=[events.RatePoint(gpus=gpus, samples_per_s=base * gain) for gpus, gain in points],
        deadline_s=_START_S + 86_400.0 * (1 + number % 5) if number % 3 == 0 else None,
    )


def obey(command: str, data: commands.CommandData) -> Iterator[Input]:
    """Answer a command as an agent would that is done at once."""
    yield events.CommandAcknowledged(command=command, outcome="done")
    if isinstance(data, commands.StartGang | commands.ScaleGang):
        for part in data.placement:
            yield events.WorkerStarted(
                job=data.job, epoch=data.epoch, node=part.node, gpus=part.gpus, step=0
            )


def _rate(world: World, inputs: list[Input], seconds: float) -> float:
    handled, ends = 0, time.perf_counter() + seconds
    began = time.perf_counter()
    while time.perf_counter() < ends:
        for data in inputs:
            world.now_s += 0.001
            world.engine.handle(Stimulus(world.now_s, data, Cause("/agents/cluster", 1, 0)))
        handled += len(inputs)
    return handled / (time.perf_counter() - began)


def run(seconds: float) -> dict[str, float]:
    """Measure stimuli that make no cycle, by kind, at 1,000 GPUs and 250 jobs."""
    world = World(nodes=125, jobs=250)
    for _ in range(3):
        world.cycle()
    running = [job for job in world.engine.state.jobs.values() if job.allocation]
    progress: list[Input] = [
        events.JobProgressed(
            job=job.id,
            epoch=job.epoch,
            step=job.step,
            samples_per_s=120.0,
            checkpoint_step=0,
            checkpoint_cost_s=5.0,
        )
        for job in running
    ]
    load: list[Input] = [
        events.InferenceLoad(
            pool="serving",
            requests_running=10,
            requests_waiting=0,
            request_rate_per_s=4.0,
            gpus_needed=gpus,
            gpus_serving=64,
        )
        for gpus in range(20, 40)
    ]
    acks: list[Input] = [
        events.CommandAcknowledged(command=f"default-{n}-0", outcome="done") for n in range(20)
    ]
    share = seconds / 3
    return {
        "progress_stimuli_per_s": _rate(world, progress, share),
        "load_stimuli_per_s": _rate(world, load, share),
        "ack_stimuli_per_s": _rate(world, acks, share),
    }


def memory(nodes: int) -> dict[str, float]:
    """Measure the bytes that the engine keeps for a node, and for a job, at so many nodes."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    world = World(nodes, 0, policy="fifo")
    world.stimuli.clear()
    gc.collect()
    with_nodes, _ = tracemalloc.get_traced_memory()
    for number in range(nodes):
        world.feed(_submitted(number))
    world.stimuli.clear()
    gc.collect()
    with_jobs, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        f"bytes_per_node_at_{nodes}": (with_nodes - before) / nodes,
        f"bytes_per_job_at_{nodes}": (with_jobs - with_nodes) / nodes,
    }
