"""What the default policy and the baseline do in plain situations, and what they say of it."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from benchmarks import edge as benchmark
from scheduler.policies.interface import Kind, LoanPhase, Plan, Snapshot
from scheduler.policies.registry import make_policy
from scheduler.policies.tide.commitments import PROMISED
from scheduler.policies.tide.tide import Tide
from tests.markets import noted, plan, pools, reason, sizes
from tests.snapshots import INF, Job, Pool, apply, snapshot

NOW_S = 10_000.0
HOUR_S = 3600.0
QUIET = [0.0] * 60
TRAIN = Pool("train")


def test_an_unknown_policy_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"'tyde' is not known, nearest: tide; choose .* afs, .*, tiresias$"
    ):
        make_policy("tyde")


def test_nothing_in_nothing_out() -> None:
    assert plan(snapshot([TRAIN], [])) == Plan()
    assert plan(snapshot([], [])) == Plan()


def test_options_are_values() -> None:
    assert Tide() == Tide()
    assert Tide(patience_s=1.0) != Tide()


# --- gangs and sizes ------------------------------------------------------------------------------


def test_a_lone_job_gets_all_that_helps_it() -> None:
    found = plan(snapshot([TRAIN], [Job("a", work_s=9000)]))
    assert sizes(found) == {"a": 8}
    assert reason(found, "a").verb == "starts"


def test_jobs_that_scale_badly_share_and_a_short_one_gets_more() -> None:
    seen = snapshot([Pool("train", nodes=2)], [Job(name, power=0.4) for name in "abcd"])
    assert sizes(plan(seen)) == dict.fromkeys("abcd", 4)
    jobs = [Job("long", work_s=50 * HOUR_S), Job("short", work_s=HOUR_S)]
    assert sizes(plan(snapshot([Pool("train", gpus=10)], jobs))) == {"long": 2, "short": 8}


def test_a_change_must_pay_for_its_pause() -> None:
    def after(cost_s: float) -> dict[str, int]:
        held = {"train-000": 4}
        job = Job("a", work_s=20 * HOUR_S, power=0.6, held=held, start_cost_s=cost_s)
        return sizes(plan(snapshot([TRAIN], [job])))

    assert after(30.0) == {"a": 8}
    assert after(200.0) == {}  # twice 216 s within 1,080 s is more than 8 GPUs gain over 4
    about_to_end = Job("a", work_s=40.0, held={"train-000": 2})
    assert sizes(plan(snapshot([TRAIN], [about_to_end]))) == {}


def test_a_running_job_is_stopped_for_one_that_gains_more() -> None:
    old = Job("old", work_s=50 * HOUR_S, sizes=(8,), held={"train-000": 8})
    new = Job("new", work_s=0.1 * HOUR_S, sizes=(8,))
    assert sizes(plan(snapshot([TRAIN], [new, old]))) == {"old": 0, "new": 8}


def test_who_went_without_for_long_goes_before_the_short() -> None:
    def started(hours: float) -> list[str]:
        jobs = [
            Job("long", work_s=10 * HOUR_S, sizes=(8,), submit_s=0.0),
            Job("short", work_s=HOUR_S, sizes=(8,), submit_s=hours * HOUR_S - 10.0),
        ]
        return list(plan(snapshot([TRAIN], jobs, now_s=hours * HOUR_S)).targets)

    assert started(1.0) == ["short"]
    assert started(48.0) == ["long"]


def test_a_higher_priority_runs_before_a_lower_one_has_anything() -> None:
    short = Job("short", work_s=60.0, sizes=(8,), held={"train-000": 8})
    long = Job("long", work_s=500 * HOUR_S, sizes=(8,), priority=1)
    assert sizes(plan(snapshot([TRAIN], [short, long]))) == {"short": 0, "long": 8}
    # At its base size: what is above it, it has to be worth.
    long = Job("long", work_s=500 * HOUR_S, sizes=(1, 8), priority=1)
    assert sizes(plan(snapshot([TRAIN], [Job("short", work_s=HOUR_S), long])))["long"] == 1


def test_a_job_that_backs_off_or_moves_is_left_alone() -> None:
    jobs = [
        Job("a", held={"train-000": 2}, moving=True),
        Job("b", backoff_until_s=NOW_S + 9),
        Job("c"),
    ]
    assert sizes(plan(snapshot([TRAIN], jobs))) == {"c": 4}


# --- fifo -----------------------------------------------------------------------------------------


def test_fifo_uses_training_pools_at_base_size() -> None:
    places = [Pool("infer", Kind.INFERENCE, loan=LoanPhase.LENT, history=QUIET), TRAIN]
    jobs = [
        Job("a", sizes=(4, 8)),
        Job("b", sizes=(2, 4), submit_s=1),
        Job("c", sizes=(4,), submit_s=2),
    ]
    found = plan(snapshot(places, jobs), make_policy("fifo"))
    assert sizes(found) == {"a": 4, "b": 2}
    assert {target.pool for target in found.targets.values() if target} == {"train"}
    # It lends nothing, and leaves the owner what it keeps in reserve.
    assert (found.lend, list(found.reclaim)) == ((), ["infer-000"])


def test_fifo_backfills_only_what_ends_before_the_head_can_start() -> None:
    jobs = [
        Job("run", work_s=4000, sizes=(4,), power=1.0, held={"train-000": 4}),
        Job("head", sizes=(8,), submit_s=1),
        Job("long", work_s=40_000, sizes=(4,), submit_s=2),
        Job("short", work_s=400, sizes=(4,), submit_s=3),
    ]
    found = plan(snapshot([TRAIN], jobs), make_policy("fifo"))
    assert sizes(found) == {"short": 4}
    assert (reason(found, "long").rule, reason(found, "long").lost_to) == (
        "gang.backfill",
        ("head",),
    )


def test_backfill_knows_that_gangs_take_longer_on_slow_gpus() -> None:
    jobs = [
        Job("run", work_s=4000, sizes=(4,), power=1.0, held={"train-000": 4}),
        Job("head", work_s=1, sizes=(8,), submit_s=1),
        Job("long", work_s=8_000, sizes=(4,), power=1.0, submit_s=2),
        Job("short", work_s=3_900, sizes=(4,), power=1.0, submit_s=3),
    ]
    # The head may start after 2500 s; then `long` would be there for another 2500 s.
    seen = snapshot([Pool("train", speed=0.4)], jobs)
    assert sizes(plan(seen, make_policy("fifo"))) == {"short": 4}


# --- the edge -------------------------------------------------------------------------------------

LINEAR = (1.0, 2.0, 4.0, 8.0)


def edge(**more: object) -> Pool:
    usual: dict[str, object] = {"kind": Kind.EDGE, "gpus": 1, "speed": 0.5, "history": QUIET}
    return Pool("edge", **{**usual, "loan": LoanPhase.LENT, "transfer_mib_per_s": 50.0, **more})  # type: ignore[arg-type]


def job(name: str, work: float, due: float, held: str = "", **more: object) -> Job:
    """A job due so long from now that may go to the edge."""
    fixed = Job(
        name,
        work_s=work,
        rates=LINEAR,
        held={held: 1} if held else {},
        deadline_s=NOW_S + due,
        edge_allowed=True,
    )
    return replace(fixed, **more)  # type: ignore[arg-type]


def see(jobs: list[Job], gpus: int = 1, **more: object) -> Snapshot:
    """One cloud node of so many GPUs, and an edge server of half its speed."""
    return snapshot([edge(**more), Pool("train", gpus=gpus)], jobs, NOW_S)


def test_an_idle_edge_node_is_lent_to_a_job_that_may_go_there() -> None:
    full = Job("full", sizes=(8,), held={"train-000": 8})
    may = [full, Job("w", sizes=(1,), submit_s=1, edge_allowed=True)]
    assert plan(see(may, 8, loan=LoanPhase.OWNED)).lend == ("edge-000",)
    assert (
        plan(see([full, replace(may[1], edge_allowed=False)], 8, loan=LoanPhase.OWNED)).lend == ()
    )
    busy = [*QUIET[1:], 1.0]
    assert plan(see(may, 8, loan=LoanPhase.OWNED, history=busy)).lend == ()


@pytest.mark.parametrize("due", [2500.0, INF])
def test_whom_the_cloud_has_no_room_for_goes_to_the_edge(due: float) -> None:
    seen = noted(see([job("a", 3000, 3100, "train-000"), job("b", 1000, due)]), a=(PROMISED,))
    found = plan(seen)
    assert pools(found) == {"b": "edge"}
    assert "b" not in found.notes, "no promise is made on GPUs of others"


def test_nobody_goes_while_the_cloud_has_room_for_all() -> None:
    found = plan(see([job("a", 3000, 9000), job("b", 1000, 9000)], gpus=2))
    assert pools(found) == {"a": "train", "b": "train"}


def test_who_does_not_fit_stays() -> None:
    running = job("a", 3000, 3100, "train-000")
    for other in (
        job("b", 1000, 9000, edge_allowed=False),
        job("b", 1000, 9000, memory_mib=20_000.0),
        job("b", 1000, 9000, sizes=(2, 4), rates=(2.0, 4.0)),
    ):
        assert "b" not in plan(see([running, other], memory_mib=16_000.0)).targets


def test_a_server_that_its_owner_wants_back_is_left() -> None:
    found = plan(see([job("a", 1000, 9000, "edge-000")], history=[*QUIET, 1.0]))
    assert list(found.reclaim) == ["edge-000"]
    assert pools(found) == {"a": "train"}


@pytest.mark.parametrize(("due", "leaves"), [(9000, True), (20_000, False)])
def test_a_deadline_job_leaves_the_edge_to_be_in_time(due: float, leaves: bool) -> None:
    """There it takes 10,000 s, in the cloud 5,000; beside it nobody wants the edge."""
    mine = job("a", 5000, due, "edge-000", sizes=(1,), rates=(1.0,))
    best = Job("best", 100.0, sizes=(1,), submit_s=1.0)
    assert pools(plan(see([mine, best]))).get("a") == ("train" if leaves else None)


@pytest.mark.slow
def test_edge_servers_do_not_cost_deadlines() -> None:
    ratios = [
        benchmark.run(benchmark.Point("tide", servers, gpus=16, jobs=40))["deadline_ratio"]
        for servers in (0, 4, 16)
    ]
    assert ratios[0] <= ratios[1] <= ratios[2]
    assert ratios[0] < ratios[2]


# --- rest and order -------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_it_comes_to_rest_and_never_wastes(seed: int) -> None:
    """Asked again about its own plan it changes nothing; no GPU idles that a job could use."""
    rng = np.random.default_rng(seed)
    pool = Pool("train", nodes=int(rng.integers(1, 5)), gpus=int(rng.choice([4, 8])))
    jobs = [
        Job(f"j{n:02}", work_s=float(rng.uniform(60, 90_000)), power=float(rng.uniform(0.3, 1.0)))
        for n in range(int(rng.integers(1, 20)))
    ]
    for cycle in range(6):
        seen = snapshot([pool], jobs, now_s=NOW_S + 600 * cycle)
        jobs = apply(seen, plan(seen), jobs)
    seen = snapshot([pool], jobs, now_s=NOW_S + 3600)
    assert dict(plan(seen).targets) == {}
    assert not seen.nodes.free.any() or (seen.jobs.size == min(8, seen.nodes.gpus.sum())).all()


@pytest.mark.process
def test_the_plan_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "import numpy as np\n"
        "from tests.property.test_policies import random_snapshot\n"
        "from scheduler.policies.registry import make_policy\n"
        "seen = [random_snapshot(np.random.default_rng(seed)) for seed in range(25)]\n"
        "print([make_policy('tide').plan(one) for one in seen])\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(outputs[0]) > 10_000
    assert outputs[0] == outputs[1]
