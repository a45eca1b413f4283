"""Simulated gangs under any course of orders: steps are never lost, invented or undone."""

from hypothesis import given, strategies as st

from runtime.core import (
    CheckpointDone,
    CheckpointWorkers,
    GangCompleted,
    GangFailed,
    GangStarted,
    GangStopped,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.simulated import Physics, SimulatedExecutor, rate_at
from runtime.simulated_owner import SimulatedOwner
from schemas.events import RatePoint
from tests.gangs import spec

SPEC = spec(
    total_steps=100_000,
    samples_per_step=2.0,
    rates=[RatePoint(gpus=1, samples_per_s=10.0), RatePoint(gpus=8, samples_per_s=50.0)],
    checkpoint_cost_s=7.0,
    start_cost_s=20.0,
)
SIZES = st.integers(1, 8)
GAPS = st.floats(0.0, 500.0)
ORDERS = st.lists(st.tuples(GAPS, st.sampled_from(["scale", "checkpoint"]), SIZES), max_size=8)


def place(size: int) -> dict[str, tuple[int, ...]]:
    return {"n": tuple(range(size))}


@given(start=SIZES, orders=ORDERS, looks=st.lists(GAPS, max_size=5), seed=st.integers(0, 99))
def test_a_course_of_orders_conserves_steps(
    start: int, orders: list[tuple[float, str, int]], looks: list[float], seed: int
) -> None:
    executor = SimulatedExecutor({"n": 1.0}, Physics(seed=seed, failures_per_gpu_hour=0.05))
    executor.start(StartWorkers("j", 1, place(start), SPEC, 0, 0.0), 0.0)
    course = [(gap, kind, size) for gap, kind, size in orders]
    course += [(gap, "look", 0) for gap in looks]
    now_s, epoch, last, saved = 0.0, 1, 0, 0
    for gap_s, kind, size in course:
        now_s += gap_s
        for report in executor.advance(now_s):
            if isinstance(report, GangFailed):
                assert executor.next_due_s() is None
                return
            if isinstance(report, CheckpointDone):
                assert saved <= report.step
                saved = report.step
        for progress in executor.progress(now_s):
            assert progress.epoch == epoch
            fastest = rate_at(SPEC.rates, 8) * 1.07 / SPEC.samples_per_step
            assert last <= progress.step <= last + fastest * now_s + 1
            assert saved <= progress.step
            last = progress.step
        if kind == "scale":
            epoch += 1
            executor.scale(ScaleWorkers("j", epoch, place(size)), now_s)
        elif kind == "checkpoint":
            executor.checkpoint(CheckpointWorkers("j", epoch), now_s)

    ends = []
    while (due_s := executor.next_due_s()) is not None:
        ends += executor.advance(due_s)
    assert isinstance(ends[-1], GangCompleted | GangFailed)
    starts = [report for report in ends if isinstance(report, GangStarted)]
    assert all(last <= report.step for report in starts)


@given(
    size=SIZES,
    pauses=st.lists(st.floats(10.0, 400.0), max_size=6),
    seed=st.integers(0, 99),
)
def test_the_completion_time_is_the_work_plus_the_pauses(
    size: int, pauses: list[float], seed: int
) -> None:
    def end_s(checkpoints: list[float]) -> float:
        executor = SimulatedExecutor({"n": 1.0}, Physics(seed=seed, failures_per_gpu_hour=0.0))
        executor.start(StartWorkers("j", 1, place(size), SPEC, 0, 0.0), 0.0)
        now_s = 20.0
        for gap_s in checkpoints:
            now_s += gap_s
            executor.advance(now_s)
            executor.checkpoint(CheckpointWorkers("j", 1), now_s)
        last_s = 0.0
        while (due_s := executor.next_due_s()) is not None:
            executor.advance(due_s)
            last_s = due_s
        return last_s

    assert abs(end_s(pauses) - (end_s([]) + 7.0 * len(pauses))) < 1e-3


@given(ran_s=st.floats(0.0, 500.0), grace_s=st.floats(0.0, 20.0), checkpoint=st.booleans())
def test_a_stop_leaves_within_the_grace(ran_s: float, grace_s: float, checkpoint: bool) -> None:
    executor = SimulatedExecutor({"n": 1.0}, Physics(failures_per_gpu_hour=0.0))
    executor.start(StartWorkers("j", 1, place(4), SPEC, 3, 0.0), 0.0)
    executor.advance(ran_s)
    executor.stop(StopWorkers("j", 1, checkpoint, grace_s), ran_s)
    reports = executor.advance(ran_s + grace_s)
    assert isinstance(reports[-1], GangStopped)
    saved = [report for report in reports if isinstance(report, CheckpointDone)]
    assert reports[-1].step == (saved[0].step if saved else 3)
    assert executor.next_due_s() is None


@given(
    needed=st.floats(0.0, 16.0),
    moves=st.lists(
        st.tuples(st.floats(0.1, 100.0), st.sampled_from(["s1", "s2"]), st.booleans()), max_size=10
    ),
    looks=st.lists(st.floats(0.0, 1000.0), max_size=10),
)
def test_shortfall_does_not_depend_on_when_it_is_looked_at(
    needed: float, moves: list[tuple[float, str, bool]], looks: list[float]
) -> None:
    def shortfall(look_at: list[float]) -> float:
        owner = SimulatedOwner("p", {"s1": 8, "s2": 8}, lambda _: needed, 0.0)
        course: list[tuple[float, str, bool]] = [(at_s, "", False) for at_s in look_at]
        now_s = 0.0
        for gap_s, node, lend in moves:
            now_s += gap_s
            course.append((now_s, node, lend))
        for at_s, node, lend in sorted(course, key=lambda move: move[0]):
            owner.advance(at_s)
            if not node:
                owner.loads(at_s)
            elif lend:
                owner.drain(node, at_s)
            else:
                owner.hand_back(node, at_s)
        owner.advance(2000.0)
        return owner.loads(2000.0)[0].shortfall_gpu_s

    assert abs(shortfall(looks) - shortfall([])) < 1e-6
