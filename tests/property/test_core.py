"""Whatever agents and tenants say, in whatever order: no law is broken and nothing is raised."""

from typing import Any

import numpy as np
import orjson
from hypothesis import given, settings, strategies as st

from scheduler.core.canonical import state_to_json
from scheduler.core.engine import Engine
from scheduler.core.record import stimulus_from_dict, stimulus_to_dict
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import (
    Cause,
    Input,
    LeaderStarted,
    NodeHeard,
    NodeSilent,
    Stimulus,
    TimePassed,
)
from schemas import events
from tests.builders import START_S, Cell, begun_anew, decided, node_born, submitted
from tests.effort import examples
from tests.simulation.world import RandomPolicy

jobs = st.sampled_from(["j0", "j1", "j2", "ghost"])
nodes = st.sampled_from(["n0", "n1", "i0", "ghost"])
gpus = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)
epochs = st.integers(0, 60)
steps = st.sampled_from([0, 5, 100, 5000])
POOLS: dict[str, tuple[str, events.PoolKind]] = {
    "n0": ("train", "training"),
    "n1": ("train", "training"),
    "i0": ("infer", "inference"),
    "ghost": ("infer", "inference"),
}


@st.composite
def births(draw: Any) -> events.NodeBorn:
    name = draw(nodes)
    pool, kind = POOLS[name]
    held = [
        events.GangHeld(job=draw(jobs), epoch=draw(epochs), gpus=[gpu], step=0)
        for gpu in draw(st.lists(st.integers(0, 2), max_size=2, unique=True))
    ]
    loan = draw(st.sampled_from([None, None, "loan-0", "loan-1"]))
    size = draw(st.sampled_from([4, 4, 4, 3]))
    return node_born(name, pool=pool, kind=kind, gpus=size, held=held, loan=loan)


def acks(command: int, outcome: str) -> events.CommandAcknowledged:
    """About the n-th open command; the number is replaced by its id when it is fed."""
    return events.CommandAcknowledged.model_validate(
        {"command": f"open-{command}", "outcome": outcome, "reason": "r"}
    )


def committed(job: str, epoch: int, step: int) -> events.CheckpointCommitted:
    return events.CheckpointCommitted(
        job=job, epoch=epoch, step=step, uri="u", size_mib=1, cost_s=1.0
    )


#: What a word about the workers on a node names.
workers: Any = {"job": jobs, "epoch": epochs, "node": nodes, "gpus": gpus, "step": steps}
reasons = st.sampled_from(["completed", "scaled_in", "preempted", "cancelled", "lease_ended"])
inputs = st.one_of(
    st.builds(TimePassed),
    st.builds(acks, st.integers(0, 5), st.sampled_from(["done", "done", "refused"])),
    births(),
    st.builds(submitted, jobs, gpus_min=st.integers(1, 3)),
    st.builds(events.JobCancelled, job=jobs),
    st.builds(NodeSilent, nodes, st.just(START_S)),
    st.builds(NodeHeard, nodes),
    st.builds(events.NodeDied, node=nodes),
    st.builds(events.WorkerStarted, **workers),
    st.builds(events.WorkerStopped, reason=reasons, **workers),
    st.builds(events.WorkerFailed, error=st.just("e"), retriable=st.booleans(), **workers),
    st.builds(committed, jobs, epochs, steps),
    st.builds(events.CheckpointFailed, job=jobs, epoch=epochs, error=st.just("e")),
)


def _aimed(state: ClusterState, data: Any) -> Any:
    """Make a report hit more often: of the present epoch, or of an open command."""
    job = state.jobs.get(getattr(data, "job", ""))
    epoch = getattr(data, "epoch", None)
    if job is not None and epoch is not None and epoch % 3:
        return data.model_copy(update={"epoch": max(0, job.epoch - epoch % 3 + 1)})
    if isinstance(data, events.CommandAcknowledged) and state.commands:
        names = list(state.commands)
        return data.model_copy(update={"command": names[int(data.command[-1]) % len(names)]})
    return data


@settings(max_examples=examples(150))
@given(
    said=st.lists(st.tuples(inputs, st.sampled_from([0.0, 5.0, 61.0, 700.0])), max_size=40),
    seed=st.integers(0, 1000),
    boots=st.lists(st.integers(0, 2), min_size=40, max_size=40),
)
def test_no_report_breaks_a_law(
    said: list[tuple[Input, float]], seed: int, boots: list[int]
) -> None:
    policy = RandomPolicy(np.random.default_rng(seed))
    engine = Engine(ClusterState(), lambda _: policy)
    now_s = START_S
    first: list[tuple[Input, float]] = [
        (LeaderStarted("x", 1, "random", Settings().to_dict()), 0.0),
        (node_born("n0"), 0.0),
        (node_born("n1"), 0.0),
        (node_born("i0", pool="infer", kind="inference"), 0.0),
        (submitted("j0"), 0.0),
        (submitted("j1"), 0.0),
        (TimePassed(), 5.0),
    ]
    for (data, wait_s), boot in zip([*first, *said], [0] * len(first) + boots, strict=False):
        now_s += wait_s
        cause = Cause("/agents/a", boot, 1)
        stimulus = Stimulus(now_s, _aimed(engine.state, data), cause)
        before = state_to_json(engine.state)
        decision = engine.handle(stimulus)
        decided(engine.state, stimulus, decision, before)
        if engine.state.number % 3 == 0:
            begun_anew(engine)


@given(said=inputs)
def test_stimuli_survive_the_journal(said: Input) -> None:
    stimulus = Stimulus(1.5, said, Cause("/agents/a", 3, 2**53))
    read = orjson.loads(orjson.dumps(stimulus_to_dict(stimulus)))
    assert stimulus_from_dict(read) == stimulus


def test_time_never_falls() -> None:
    cell = Cell().told(node_born("n0"), submitted())
    cell.run("j0", n0=4)
    cell.now_s += 100.0
    cell.feed(TimePassed())
    used = cell.state.totals.training_gpu_s
    late = Stimulus(cell.now_s - 50.0, TimePassed())
    cell.engine.handle(late)
    assert (cell.state.now_s, cell.state.totals.training_gpu_s) == (cell.now_s, used)
    assert used == 400.0
