"""Nodes that fail at drawn moments: the same for all, and what a failure costs is bounded."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from runtime.core.state import Limits
from scheduler.core.facts import GangStopping
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.policies.registry import make_policy
from schemas.events import JobProgressed, NodeDied
from simulator.compare import Case, check, run_case
from simulator.driver import START_S
from simulator.failures import failures
from simulator.gang import steps_of
from simulator.generated import Mix
from simulator.layout import Layout
from simulator.log import Recorder
from simulator.options import Options
from simulator.physics.base import Cluster
from simulator.physics.simple import SimplePhysics
from simulator.pools import Failure
from simulator.run import Run
from tests.scripted import replayed

pytestmark = pytest.mark.slow

CLUSTER, MIX = Cluster(3, 8), Mix(days=0.25, jobs=30, load=1.2)
REPAIR_S, CHECKPOINT_S, UNTIL_S = 900.0, 600.0, 2e6
DAY_S = 86_400.0


def drawn(nodes: int, seed: int, mtbf_h: float = 12.0) -> dict[str, list[Failure]]:
    found: dict[str, list[Failure]] = {}
    for one in failures(Layout(Cluster(nodes, 8)), mtbf_h, REPAIR_S, seed, 100 * DAY_S):
        found.setdefault(one.node, []).append(one)
    return found


def test_a_node_fails_as_often_as_was_asked_whoever_is_beside_it() -> None:
    few, many = drawn(4, seed=3), drawn(40, seed=3)
    assert few == {node: many[node] for node in few}
    assert drawn(4, seed=4) != few
    up_s = [
        after.at_s - before.at_s - before.down_s
        for each in many.values()
        for before, after in pairwise(each)
    ]
    assert min(up_s) > 0.0
    assert np.mean(up_s) == pytest.approx(12 * 3600.0, rel=0.05)
    assert np.std(up_s) == pytest.approx(12 * 3600.0, rel=0.1)  # no even beat
    assert drawn(4, seed=3, mtbf_h=float("inf")) == {}


class _Seen:
    """What went between field and engine, as far as failures go."""

    def __init__(self, steps: dict[str, float]) -> None:
        self._steps = steps
        self._said: dict[str, JobProgressed] = {}
        self.died: list[tuple[float, str]] = []
        self.repeats_s: list[float] = []  # of each gang that failed, its work to be done again

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        data = stimulus.data
        if isinstance(data, JobProgressed):
            self._said[data.job] = data
        elif isinstance(data, NodeDied):
            self.died.append((stimulus.at_s, data.node))
            for fact in decision.facts:
                if isinstance(fact, GangStopping):
                    self._failed(self._said.get(fact.job))

    def _failed(self, said: JobProgressed | None) -> None:
        if said is not None and said.samples_per_s > 0.0:
            lost = (said.step - (said.checkpoint_step or 0)) / self._steps[said.job]
            self.repeats_s.append(lost / said.samples_per_s)


@pytest.mark.parametrize("name", ["tide", "fifo", "srtf", "tiresias", "elasticflow"])
def test_failures_cost_every_policy_the_same_moments_and_no_more_than_a_checkpoint(
    name: str, tmp_path: Path
) -> None:
    entries = SimplePhysics(seed=5, mix=MIX).entries(Path("generated"), CLUSTER, adaptive=False)
    moments = failures(Layout(CLUSTER), 3.0, REPAIR_S, 5, UNTIL_S)
    options = Options(
        CLUSTER, on_events=True, failures=moments, checkpoint_every_s=CHECKPOINT_S, stall_s=1e6
    )
    seen = _Seen({one.id: steps_of(one) for one in entries})
    run = Run(entries, make_policy(name), options, line=name)
    with Recorder(tmp_path / "journal", run.driver.engine) as recorder:
        run.driver.watches += [recorder.saw, seen.saw]
        out = run.run()
    assert (np.isfinite(out.end_s) | (out.refused > 0)).all()  # elasticflow refuses some
    assert (out.claims_timed_out, out.invariant_violations) == (0, 0)
    expected = sorted((START_S + one.at_s, one.node) for one in moments if one.at_s <= out.until_s)
    assert sorted(seen.died) == expected
    assert len(seen.died) >= 5
    assert len(seen.repeats_s) >= 3
    assert 0.0 < max(seen.repeats_s) <= CHECKPOINT_S + 1.0
    assert replayed(tmp_path / "journal").first_difference is None


def test_a_case_says_when_nodes_fail_and_a_seed_draws_it() -> None:
    case = Case("fifo", "generated", "simple", cluster=CLUSTER, mix=MIX, seed=5, mtbf_h=3.0)
    row, other = run_case(case).row(), run_case(replace(case, policy="srtf")).row()
    assert (row["mtbf_h"], row["repair_s"]) == (3.0, 1800.0)
    limits = Limits()  # agents draw each job's own interval between these two
    assert row["checkpoint_s"] == (limits.checkpoint_min_s + limits.checkpoint_max_s) / 2
    assert row["failures"]
    assert row["kills"]
    assert other["kills"]
    assert row["completed"] == row["jobs"] == other["completed"]
    never = run_case(replace(case, mtbf_h=float("inf"))).row()
    assert (never["mtbf_h"], never.get("kills")) == (None, None)
    with pytest.raises(ValueError, match="leave out --agents core"):
        check(replace(case, agents="core"))


def test_a_long_job_on_all_nodes_lives_through_more_failures_than_a_broken_one_may_have(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submit_time,num_gpus,duration,deadline\nbig,0,64,200000,\n")
    case = Case("fifo", str(trace), "simple", cluster=Cluster(8, 8), mtbf_h=12.0)
    figures = run_case(case).figures
    assert float(figures["kills"] or 0) > 20  # `failures_max`
    assert figures["completed"] == 1


def test_a_trace_that_counts_from_1970_has_the_figures_of_one_that_counts_from_its_first_day(
    tmp_path: Path,
) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "m.csv").write_text("global_batch_size,1,2,4\n32,10,18,30\n")
    head = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"

    def used(beginning_s: int) -> tuple[object, ...]:
        rows = "".join(
            f"j{n},{beginning_s + 300 * n},36000,m,{beginning_s + 90_000},32,4,1200\n"
            for n in range(6)
        )
        file = tmp_path / "trace.csv"
        file.write_text(head + rows)
        case = Case("fifo", str(file), "elasticflow", profiles=str(tmp_path / "tables"),
                    cluster=Cluster(2, 4), mtbf_h=500.0)  # fmt: skip
        row = run_case(case).row()
        names = ("utilisation", "cluster_usage", "gpu_h", "mean_jct_s", "deadlines_met")
        return tuple(row.get(name) for name in names)

    early = used(7_200)
    assert early[0] is not None
    assert used(7_200 + 365 * 86_400) == early
