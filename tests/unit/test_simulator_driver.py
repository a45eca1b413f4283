"""The driver: when policies are asked, what changes cost, and what is counted."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.interface import Phase, Plan, Snapshot
from scheduler.policies.registry import make_policy
from simulator.driver import START_S
from simulator.metrics import measure
from simulator.physics.base import Cluster, Entry, Observed
from simulator.run import Options, Outcome, PolicyError, Run, ladder, simulate
from tests.scripted import Linear, Script, entry


def run(policy: Script, *jobs: Entry, **options: object) -> Outcome:
    given = {"cluster": Cluster(2, 4), "instant": True, **options}
    return simulate(jobs, policy, Options(**given))  # type: ignore[arg-type]


def test_rounds_see_arrivals_and_ends_only_at_the_next_one() -> None:
    policy = Script({120.0: {"a": {0: 1}}})
    out = run(policy, entry("a", 61.0), entry("b", 130.0), horizon_s=1000.0)
    assert out.end_s[0] == 120.0 + 10.0 + 100.0
    assert policy.moments[:3] == [120.0, 180.0, 240.0]
    assert policy.seen[1].jobs.ids == ("a", "b")
    assert policy.seen[2].jobs.ids == ("b",)
    assert policy.seen[1].nodes.free.tolist() == [3, 4]
    assert policy.seen[2].nodes.free.tolist() == [4, 4]


@pytest.mark.parametrize("round_s", [0.9, 33.75, 57.6])
def test_a_job_that_arrives_just_before_or_on_a_round_is_seen_there(round_s: float) -> None:
    for k in range(1, 60):
        for came_s in (k * round_s, k * round_s - 1e-6, (k - 0.5) * round_s):
            policy = Script({})
            run(policy, entry("a", came_s), round_s=round_s, horizon_s=(k + 1.5) * round_s)
            assert policy.moments == pytest.approx([k * round_s, (k + 1) * round_s])


@pytest.mark.parametrize(("on_events", "start_s"), [(True, 6e6 + 10.0), (False, 6e6 + 60.0)])
def test_rounds_pass_by_while_nobody_is_there(on_events: bool, start_s: float) -> None:
    jobs = [entry("a"), entry("b", 6e6 + 10.0)]
    one = Run(jobs, make_policy("fifo"), Options(on_events=on_events))
    assert one.run().start_s.tolist() == [0.0, start_s]
    assert one.driver.engine.state.number < 50


def test_events_are_seen_at_once() -> None:
    policy = Script({61.0: {"a": {0: 1}}, 171.0: {"b": {0: 1}}})
    out = run(policy, entry("a", 61.0), entry("b", 130.0), on_events=True)
    assert out.end_s.tolist() == [171.0, 281.0]
    assert policy.moments == [61.0, 120.0, 130.0, 171.0, 180.0, 240.0]


def test_a_segment_that_ends_is_no_event_and_the_next_begins() -> None:
    policy = Script({0.0: {"a": {0: 2}}})
    out = run(policy, entry("a", halves=True), on_events=True)
    assert out.end_s[0] == 10.0 + 25.0 + 50.0
    assert policy.moments == [0.0, 60.0]


def test_segments_last_whole_ticks() -> None:
    policy = Script({0.0: {"a": {0: 3}}})
    out = run(policy, entry("a", halves=True), tick_s=1.0)
    assert out.end_s[0] == 10.0 + 17.0 + 33.0


def test_every_change_costs_and_is_counted_and_progress_stays() -> None:
    policy = Script(
        {
            0.0: {"a": {0: 1}},
            60.0: {"a": {0: 2}},
            120.0: {"a": {1: 2}},
            180.0: {"a": {1: 1}},
            240.0: {"a": None},
            300.0: {"a": {0: 1, 1: 1}},
        }
    )
    out = run(policy, entry("a", work=1000.0))
    done = 50.0 + 100.0 + 100.0 + 50.0
    assert out.end_s[0] == 310.0 + (1000.0 - done) / 2
    counts = (out.restarts, out.grown, out.moved, out.shrunk, out.preemptions)
    assert [int(count[0]) for count in counts] == [4, 1, 1, 1, 1]
    assert out.waited_s[0] == 60.0
    assert out.paused_gpu_s[0] == 10.0 * (1 + 2 + 2 + 1 + 2)
    last = policy.seen[-1].jobs
    assert last.attained_gpu_s[0] == 60 + 120 + 120 + 60 + 2 * (policy.moments[-1] - 300.0)
    assert last.held_s[0] == policy.moments[-1] - 60.0
    assert (last.first_start_s[0], last.changed_s[0]) == (START_S, START_S + 300.0)
    assert policy.seen[4].jobs.remaining_steps[0] == 700.0


def test_agents_that_take_time_save_first_and_start_when_the_gpus_are_free() -> None:
    a, b = (replace(entry(name, work=work), checkpoint_cost_s=15.0)
            for name, work in (("a", 1000.0), ("b", 400.0)))  # fmt: skip
    policy = Script(
        {
            0.0: {"a": {0: 4}},
            60.0: {"a": {0: 2}, "b": {0: 2}},
            120.0: {"a": None, "b": {0: 4}},
            180.0: {"a": {1: 4}},
        }
    )
    jobs = (a, b, entry("c", 65.0), entry("d", 130.0))
    out = run(policy, *jobs, instant=False, on_events=True, horizon_s=400.0)
    # Two GPUs of a are free at 75, the others at 135: b starts, and then grows.
    for now_s, size, free in ((65.0, [2, 2], [0, 4]), (130.0, [2, 4], [0, 4])):
        seen = policy.at(now_s)
        assert seen.jobs.phase[:2].tolist() == [Phase.MOVING] * 2
        assert (seen.jobs.size[:2].tolist(), seen.nodes.free.tolist()) == (size, free)
    assert policy.at(120.0).jobs.phase[:2].tolist() == [Phase.RUNNING] * 2
    assert policy.at(120.0).jobs.remaining_steps[:2].tolist() == [1000 - 4 * 50 - 2 * 50, 330.0]
    assert policy.at(180.0).jobs.remaining_steps[0] == 700.0
    assert out.start_s[:2].tolist() == [0.0, 75.0]
    assert out.ready_s[:2].tolist() == [10.0, 85.0]
    assert out.end_s[:2].tolist() == [190.0 + 700 / 4, 145.0 + (400 - 2 * 50) / 4]
    assert out.waited_s[:2].tolist() == [45.0, 75.0]
    assert out.attained_gpu_s[:2].tolist() == [4 * 75 + 2 * 60 + 4 * 185, 2 * 60 + 4 * 85]
    assert out.paused_gpu_s[:2].tolist() == [4 * 10 + 4 * 10 + 2 * 15 + 4 * 10, 2 * 10 + 4 * 10]
    assert (out.restarts[:2].tolist(), out.preemptions[:2].tolist()) == ([2, 1], [1, 0])


def test_a_gang_that_saves_for_long_before_it_leaves_some_gpus_is_waited_for() -> None:
    """From 600 s on its agent was asked for them again and again, within one moment."""
    job = replace(entry("a", work=20_000.0), checkpoint_cost_s=700.0)
    policy = Script({0.0: {"a": {0: 4}}, 120.0: {"a": {0: 2}}})
    out = run(policy, job, instant=False, on_events=True)
    assert out.end_s[0] == 130.0 + (20_000 - 4 * 110) / 2


def test_the_same_allocation_again_changes_nothing() -> None:
    out = run(Script({0.0: {"a": {0: 1}}, 60.0: {"a": {0: 1}}}), entry("a"))
    assert (out.end_s[0], out.restarts[0]) == (110.0, 0)


def test_a_change_in_a_pause_begins_it_anew() -> None:
    acts = {0.0: {"a": {0: 1}}, 5.0: {"a": {0: 2}}}
    out = run(Script(acts), entry("a"), entry("b", 5.0), on_events=True, horizon_s=500.0)
    assert out.end_s[0] == 15.0 + 50.0
    assert out.paused_gpu_s[0] == 5.0 + 20.0


def test_notes_come_back_and_a_declined_job_leaves() -> None:
    policy = Script({0.0: {"a": {0: 1}}}, notes={0.0: {"a": (2.0, 7.0)}}, declines={0.0: ("b",)})
    out = run(policy, entry("a"), entry("b"), entry("c"), horizon_s=300.0)
    assert policy.seen[1].jobs.ids == ("a", "c")
    notes = policy.seen[1].jobs.notes
    assert notes[0, :2].tolist() == [2.0, 7.0]
    assert np.isnan(notes[0, 2:]).all()
    assert out.refused.tolist() == [0, 1, 0]
    figures = measure(out)
    assert (figures["jobs"], figures["completed"]) == (3, 1)
    assert (figures["rejected"], figures["unfinished"]) == (1, 1)


def test_a_run_ends_when_the_last_job_is_refused() -> None:
    out = run(
        Script({0.0: {"a": {0: 1}}}, declines={60.0: ("b",)}), entry("a", work=30.0), entry("b")
    )
    assert (out.until_s, out.waited_s.tolist()) == (60.0, [0.0, 60.0])


def test_giving_out_too_much_is_a_bug_with_a_name() -> None:
    with pytest.raises(PolicyError, match=r"script: at 0 s: .*node-000"):
        run(Script({0.0: {"a": {0: 3}, "b": {0: 2}}}), entry("a"), entry("b"))


def test_a_run_in_which_nothing_can_happen_ends() -> None:
    # What a preempted job would have done later is no sign of life.
    out = run(Script({0.0: {"a": {0: 1}}, 60.0: {"a": None}}), entry("a", work=1e6), stall_s=600.0)
    assert math.isinf(out.end_s[0])
    assert out.until_s == 720.0
    assert out.waited_s[0] == 660.0


def test_figures_of_a_run() -> None:
    policy = Script({0.0: {"a": {0: 4}}, 60.0: {"b": {1: 3}}})
    jobs = [
        Entry("a", 0.0, Linear(400.0), 4, deadline_s=109.0),
        Entry("b", 30.0, Linear(300.0), 3, deadline_s=170.0, tenant="other"),
        Entry("c", 60.0, Linear(1.0), 4, deadline_s=1e9),
    ]
    figures = measure(run(policy, *jobs, horizon_s=200.0))
    assert figures["mean_jct_s"] == (110.0 + 140.0) / 2
    assert figures["mean_queueing_s"] == 15.0
    assert figures["mean_response_s"] == (10.0 + 40.0) / 2
    assert figures["mean_waiting_s"] == (0.0 + 30.0 + 140.0) / 3
    assert figures["makespan_s"] == 170.0
    assert (figures["deadlines"], figures["deadlines_met"]) == (3, 1)
    assert figures["deadline_ratio"] == 1 / 3
    assert figures["unfinished"] == 1
    held = 4 * 110 + 3 * 110
    assert figures["utilisation"] == pytest.approx(held / (8 * 200))
    assert figures["effective_utilisation"] == pytest.approx((held - 70) / (8 * 200))
    assert figures["jain_tenants"] == pytest.approx(held**2 / (2 * (440**2 + 330**2)))
    # While c, which wants 4, waits, one GPU of node 1 is free and of no use until 180.
    assert figures["fragmentation"] == pytest.approx(120 / (60 * 1 + 60 * 5 + 20 * 8))


def test_a_job_that_starts_as_it_comes_waited_no_less_than_no_time() -> None:
    out = run(Script({0.0: {"a": {0: 4}}}), entry("a", work=30.0))
    out.start_s -= 4e-12  # moments of a run are rounded
    assert str(measure(out)["mean_queueing_s"]) == "0.0", "a table would show -0"


@pytest.mark.parametrize(
    ("cluster", "asked", "sizes"),
    [
        (Cluster(16, 4), (5,), (1, 2, 3, 4, 5, 6, *range(8, 65, 4))),
        (Cluster(2, 8), (), (1, 2, 3, 4, 6, 8, 12, 16)),
        (Cluster(3, 1), (9,), (1, 2, 3)),
    ],
)
def test_ladder(cluster: Cluster, asked: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    assert ladder(cluster, asked) == sizes


def test_what_is_told_anew_in_mid_segment_is_seen() -> None:
    class Learns(Linear):
        def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
            return Observed(np.full(len(sizes), float(self.stamp or 0)), self.work - progress)

    model = Learns(1000.0, stamp=1)

    class Teacher(Script):
        def plan(self, snapshot: Snapshot) -> Plan:
            model.stamp = int(snapshot.now_s - START_S)
            return super().plan(snapshot)

    policy = Teacher({0.0: {"a": {0: 4}}})
    run(policy, Entry("a", 0.0, model, 4))
    assert [one.jobs.rate[0, 0] for one in policy.seen[:3]] == [1.0, 0.0, 60.0]
    left = [one.jobs.remaining_steps[0] for one in policy.seen[:4]]
    assert left == [1000.0, 800.0, 560.0, 320.0]
