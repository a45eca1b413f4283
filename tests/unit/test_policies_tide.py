"""What the default policy and the baseline do in plain situations, and what they say of it."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from scheduler.policies.deadlines import DeadlineOptions, guarantee

from scheduler.policies.interface import Kind, LoanPhase, Plan, Reason, Snapshot
from scheduler.policies.parts.draft import Draft
from scheduler.policies.registry import make_policy
from scheduler.policies.tide import Tide
from tests.snapshots import INF, Job, Pool, faults, snapshot

NOW_S = 10_000.0
QUIET = [0.0] * 60


#: Sharing by right even where nothing but best-effort training is at stake.
BY_RIGHT = Tide(flow=None, timely=None)


def plan(seen: Snapshot, name: str = "tide") -> Plan:
    found = (BY_RIGHT if name == "tide" else make_policy(name)).plan(seen)
    assert faults(seen, found) == []
    return found


def reason(found: Plan, subject: str) -> Reason:
    return next(item for item in found.reasons if item.subject == subject)


def sizes(found: Plan) -> dict[str, int]:
    return {job: target.size if target else 0 for job, target in found.targets.items()}


def test_an_unknown_policy_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'tyde' is not known; choose one of: afs, .*, tiresias$"):
        make_policy("tyde")


def test_nothing_in_nothing_out() -> None:
    assert plan(snapshot([Pool("train")], [])) == Plan()
    assert plan(snapshot([], [])) == Plan()


# --- gangs and sizes ------------------------------------------------------------------------------


def test_a_lone_job_gets_all_that_helps_it() -> None:
    found = plan(snapshot([Pool("train")], [Job("a", work_s=9000)]))
    assert sizes(found) == {"a": 8}
    assert reason(found, "a").verb == "starts"


def test_extras_make_room_for_a_base() -> None:
    jobs = [
        Job("old", sizes=(2, 4, 8), held={"train-000": 8}),
        Job("new", sizes=(4,), submit_s=1.0),
    ]
    found = plan(snapshot([Pool("train")], jobs))
    assert sizes(found) == {"old": 4, "new": 4}
    assert reason(found, "old").verb == "scales_in"
    assert reason(found, "old").lost_to == ("new",)


def test_a_base_is_not_preempted_for_another() -> None:
    jobs = [Job("old", sizes=(8,), held={"train-000": 8}), Job("new", sizes=(4,), submit_s=1.0)]
    found = plan(snapshot([Pool("train")], jobs))
    assert sizes(found) == {}
    waits = reason(found, "new")
    assert (waits.verb, waits.rule, waits.lost_to) == ("waits", "gang.capacity", ("old",))
    assert [(need.name, need.have, need.want) for need in waits.needs] == [
        ("gpus_above_base", 0, 4)
    ]


def test_a_job_that_grew_a_moment_ago_does_not_grow_again() -> None:
    job = Job("a", work_s=90_000, held={"train-000": 2}, changed_s=NOW_S - 30)
    assert sizes(plan(snapshot([Pool("train")], [job]))) == {}
    job = Job("a", work_s=90_000, held={"train-000": 2}, changed_s=NOW_S - 301)
    assert sizes(plan(snapshot([Pool("train")], [job]))) == {"a": 8}


def test_a_job_about_to_end_is_not_disturbed() -> None:
    job = Job("a", work_s=40, held={"train-000": 2})
    assert sizes(plan(snapshot([Pool("train")], [job]))) == {}


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        (Job("a", sizes=()), "gang.size"),
        (Job("a", backoff_until_s=NOW_S + 1), "gang.backoff"),
        (Job("a", memory_mib=90_000), "gang.no_pool"),
        (Job("a", sizes=(16,)), "gang.capacity"),
    ],
)
def test_why_a_job_waits(job: Job, rule: str) -> None:
    found = plan(snapshot([Pool("train")], [job]))
    assert (reason(found, "a").verb, reason(found, "a").rule) == ("waits", rule)
    assert reason(found, "a").needs


def test_the_reason_to_wait_stays_the_same_while_nothing_changes() -> None:
    jobs = [
        Job("x", work_s=50_000, sizes=(4, 8), held={"train-000": 8}),
        Job("y", work_s=50_000, sizes=(8,), held={"train-001": 8}),
        *(Job(f"w{n}", sizes=(8,), submit_s=n + 1.0) for n in range(4)),
    ]
    seen = [
        {
            r.subject: (r.rule, r.lost_to)
            for r in plan(snapshot([Pool("train", nodes=2)], jobs, now_s=NOW_S + at)).reasons
            if r.verb == "waits"
        }
        for at in (0, 60, 120)
    ]
    assert len(seen[0]) == 4
    assert seen[0] == seen[1] == seen[2]


def test_the_starving_go_before_the_short() -> None:
    jobs = [
        Job("long", work_s=90_000, sizes=(8,), waiting_since_s=NOW_S - 4000),
        Job("short", work_s=100, sizes=(8,), waiting_since_s=NOW_S - 10),
    ]
    assert list(plan(snapshot([Pool("train")], jobs)).targets) == ["long"]
    jobs[0] = Job("long", work_s=90_000, sizes=(8,), waiting_since_s=NOW_S - 40)
    assert list(plan(snapshot([Pool("train")], jobs)).targets) == ["short"]


# --- fifo -----------------------------------------------------------------------------------------


def test_waiting_raises_priority_until_a_gang_has_its_turn() -> None:
    humble = Job("humble", sizes=(8,), priority=-10, waiting_since_s=NOW_S - 3 * 3600 - 1)
    proud = Job("proud", sizes=(8,), priority=0, waiting_since_s=NOW_S - 60, submit_s=1.0)
    assert sizes(plan(snapshot([Pool("train")], [humble, proud]))) == {"humble": 8}
    patient = Job("humble", sizes=(8,), priority=-10, waiting_since_s=NOW_S - 3600 - 1)
    assert sizes(plan(snapshot([Pool("train")], [patient, proud]))) == {"proud": 8}


def test_fifo_uses_training_pools_at_base_size() -> None:
    pools = [Pool("infer", Kind.INFERENCE, loan=LoanPhase.LENT, history=QUIET), Pool("train")]
    jobs = [
        Job("a", sizes=(4, 8)),
        Job("b", sizes=(2, 4), submit_s=1),
        Job("c", sizes=(4,), submit_s=2),
    ]
    found = plan(snapshot(pools, jobs), "fifo")
    assert sizes(found) == {"a": 4, "b": 2}
    assert {target.pool for target in found.targets.values() if target} == {"train"}
    assert (found.lend, dict(found.reclaim)) == ((), {})


def test_fifo_backfills_only_what_ends_before_the_head_can_start() -> None:
    jobs = [
        Job("run", work_s=4000, sizes=(4,), power=1.0, held={"train-000": 4}),
        Job("head", sizes=(8,), submit_s=1),
        Job("long", work_s=40_000, sizes=(4,), submit_s=2),
        Job("short", work_s=400, sizes=(4,), submit_s=3),
    ]
    found = plan(snapshot([Pool("train")], jobs), "fifo")
    assert sizes(found) == {"short": 4}
    assert (reason(found, "long").rule, reason(found, "long").lost_to) == (
        "gang.backfill",
        ("head",),
    )


@pytest.mark.parametrize("name", ["tide", "fifo", "fifo:backfill=conservative"])
def test_backfill_knows_that_gangs_take_longer_on_slow_gpus(name: str) -> None:
    jobs = [
        Job("run", work_s=4000, sizes=(4,), power=1.0, held={"train-000": 4}),
        Job("head", work_s=1, sizes=(8,), submit_s=1),
        Job("long", work_s=8_000, sizes=(4,), power=1.0, submit_s=2),
        Job("short", work_s=3_900, sizes=(4,), power=1.0, submit_s=3),
    ]
    # The head may start after 2500 s; then `long` would be there for another 2500 s.
    assert sizes(plan(snapshot([Pool("train", speed=0.4)], jobs), name)) == {"short": 4}


# --- loans ----------------------------------------------------------------------------------------


def infer(loan: LoanPhase | list[LoanPhase], history: list[float], **more: float) -> Pool:
    return Pool("infer", Kind.INFERENCE, nodes=4, loan=loan, history=history, **more)  # type: ignore[arg-type]


HUNGRY = [Job(f"h{n}", work_s=90_000, sizes=(8, 16)) for n in range(4)]


def test_what_the_owner_does_not_need_is_lent() -> None:
    found = plan(snapshot([Pool("train"), infer(LoanPhase.OWNED, [7.0] * 60)], HUNGRY))
    # 7 GPUs and 1 for headroom are one node; three are spare.
    assert found.lend == ("infer-000", "infer-001", "infer-002")
    figures = {figure.name: figure.value for figure in reason(found, "infer-000").figures}
    assert figures["peak_gpus"] == pytest.approx(7.0)
    assert figures["headroom_gpus"] == 1.0


@pytest.mark.parametrize(
    ("pool", "jobs"),
    [
        (infer(LoanPhase.OWNED, QUIET, load_age_s=901.0), HUNGRY),  # a stale report
        (infer(LoanPhase.OWNED, QUIET, returned_s=NOW_S - 100), HUNGRY),  # just returned
        (infer(LoanPhase.OWNED, [32.0] * 60), HUNGRY),  # busy
        (infer(LoanPhase.OWNED, QUIET), []),  # nobody wants it
        (infer(LoanPhase.OWNED, QUIET), [Job("a", memory_mib=1e6)]),  # nobody fits
    ],
)
def test_nothing_is_lent(pool: Pool, jobs: list[Job]) -> None:
    assert plan(snapshot([Pool("train"), pool], jobs)).lend == ()


def test_nodes_go_back_before_they_are_needed() -> None:
    rising = [float(n) for n in range(15)]  # one more GPU every 300 s; 14 needed now
    loan = [LoanPhase.OWNED, LoanPhase.OWNED, LoanPhase.LENT, LoanPhase.LENT]
    pools = [Pool("train"), infer(loan, rising)]
    jobs = [
        Job("base", sizes=(8,), held={"infer-002": 8}),
        Job("extra", sizes=(4, 8, 16), held={"infer-003": 8}),
    ]
    found = plan(snapshot(pools, jobs, now_s=NOW_S))
    ((node, due_s),) = found.reclaim.items()
    assert NOW_S + 120 <= due_s <= NOW_S + 600
    assert reason(found, node).verb == "reclaims"
    assert reason(found, node).lost_to == ("infer",)


def test_a_stale_report_ends_no_loan() -> None:
    pools = [Pool("train"), infer(LoanPhase.LENT, [32.0] * 60, load_age_s=2000.0)]
    assert dict(plan(snapshot(pools, [])).reclaim) == {}


def test_a_young_loan_ends_for_demand_but_not_for_headroom() -> None:
    loan = [LoanPhase.OWNED, LoanPhase.LENT, LoanPhase.LENT, LoanPhase.LENT]
    young = {"lent_since_s": NOW_S - 60}
    assert not plan(snapshot([infer(loan, [8.0] * 60, **young)], [])).reclaim
    assert len(plan(snapshot([infer(loan, [8.0] * 60)], [])).reclaim) == 1
    assert len(plan(snapshot([infer(loan, [9.0] * 60, **young)], [])).reclaim) == 1


def test_a_reclaimed_node_costs_extras_before_bases() -> None:
    loan = [LoanPhase.OWNED, LoanPhase.OWNED, LoanPhase.LENT, LoanPhase.LENT]
    jobs = [
        Job("base", work_s=90_000, sizes=(4,), held={"infer-002": 4}),
        Job("both", work_s=90_000, sizes=(4, 8), held={"infer-002": 4, "infer-003": 4}),
    ]
    found = plan(snapshot([infer(loan, [16.0] * 60)], jobs))
    assert list(found.reclaim) == ["infer-003"]
    assert sizes(found) == {"both": 4}
    assert reason(found, "both").verb == "scales_in"
    assert reason(found, "both").lost_to == ("infer",)


def test_a_base_on_a_reclaimed_node_moves_if_it_can_and_falls_if_not() -> None:
    pool = infer([LoanPhase.RECLAIMING] + [LoanPhase.OWNED] * 3, [32.0] * 60)
    job = Job("a", sizes=(8,), held={"infer-000": 8})
    moved = plan(snapshot([pool, Pool("train")], [job]))
    assert (sizes(moved), reason(moved, "a").verb) == ({"a": 8}, "migrates")
    assert (reason(moved, "a").rule, reason(moved, "a").lost_to) == ("loans.reclaim", ("infer",))
    fallen = plan(snapshot([pool], [job]))
    assert (sizes(fallen), reason(fallen, "a").verb) == ({"a": 0}, "preempts")
    assert reason(fallen, "a").lost_to == ("infer",)


# --- the edge and deadlines -----------------------------------------------------------------------


def edge(loan: LoanPhase, history: list[float], **more: float) -> Pool:
    return Pool("edge", Kind.EDGE, gpus=1, speed=0.5, loan=loan, history=history, **more)  # type: ignore[arg-type]


def test_an_idle_edge_node_is_lent_to_a_job_that_may_go_there() -> None:
    full = Job("full", sizes=(8,), held={"train-000": 8})
    pools = [edge(LoanPhase.OWNED, QUIET), Pool("train")]
    may = [full, Job("w", sizes=(1,), submit_s=1, edge_allowed=True)]
    assert plan(snapshot(pools, may)).lend == ("edge-000",)
    assert plan(snapshot(pools, [full, Job("w", sizes=(1,), submit_s=1)])).lend == ()
    busy = [edge(LoanPhase.OWNED, [*QUIET[1:], 1.0]), Pool("train")]
    assert plan(snapshot(busy, may)).lend == ()


def test_a_waiting_deadline_job_goes_to_the_edge_when_the_cloud_is_full() -> None:
    jobs = [
        Job("full", sizes=(8,), held={"train-000": 8}),
        Job("w", work_s=1000, submit_s=1, deadline_s=NOW_S + 5000, edge_allowed=True),
    ]
    found = plan(snapshot([edge(LoanPhase.LENT, QUIET), Pool("train")], jobs))
    assert reason(found, "w").rule == "edgeflow.rule2"
    assert found.targets["w"] is not None
    assert found.targets["w"].pool == "edge"


def test_an_edge_node_whose_users_come_back_is_reclaimed_and_its_job_returns() -> None:
    job = Job("a", work_s=5000, sizes=(1,), held={"edge-000": 1}, edge_allowed=True)
    found = plan(snapshot([edge(LoanPhase.LENT, [*QUIET, 1.0]), Pool("train")], [job]))
    assert list(found.reclaim) == ["edge-000"]
    assert found.targets["a"] is not None
    assert found.targets["a"].pool == "train"


@pytest.mark.parametrize(
    ("deadline_s", "preempts"), [(NOW_S + 1100, True), (NOW_S + 9000, False), (NOW_S + 500, False)]
)
def test_a_deadline_preempts_only_when_it_is_urgent_and_can_be_made(
    deadline_s: float, preempts: bool
) -> None:
    jobs = [
        Job("best", sizes=(8,), held={"train-000": 8}),
        Job("due", work_s=8000, sizes=(8,), power=1.0, submit_s=1, deadline_s=deadline_s),
    ]
    found = plan(snapshot([Pool("train")], jobs))
    assert sizes(found) == ({"best": 0, "due": 8} if preempts else {})
    if preempts:
        assert reason(found, "best").lost_to == ("due",)


def test_a_deadline_keeps_its_share() -> None:
    """Marginal return alone prefers the shorter job; the deadline needs 6 of 8."""
    jobs = [
        Job("due", work_s=3500, sizes=(1, 2, 4, 6), power=0.7, deadline_s=NOW_S + 1100),
        Job("best", work_s=1000, sizes=(1, 2, 4, 6), power=0.7),
    ]
    found = plan(snapshot([Pool("train")], jobs, sizes=(1, 2, 4, 6, 8)))
    assert sizes(found)["due"] == 6
    jobs[0] = Job("due", work_s=3500, sizes=(1, 2, 4, 6), power=0.7, deadline_s=INF)
    assert sizes(plan(snapshot([Pool("train")], jobs, sizes=(1, 2, 4, 6, 8))))["due"] == 2


@pytest.mark.parametrize("others", [(), (Pool("slow", Kind.INFERENCE, speed=0.5, history=[8.0]),)])
def test_a_pool_that_gives_nothing_does_not_make_a_deadline_late(others: tuple[Pool, ...]) -> None:
    job = Job("a", work_s=4 * 3600.0, power=1.0, sizes=(4,), deadline_s=NOW_S + 3700.0)
    seen = snapshot([Pool("train"), *others], [replace(job, held={"train-000": 4})])
    draft = Draft(seen)
    draft.count_slack()
    found = guarantee(draft, [], DeadlineOptions())
    assert (found.satisfied.tolist(), found.end_s.tolist()) == ([True], [NOW_S + 3600.0])


# --- moves ----------------------------------------------------------------------------------------


def test_a_job_leaves_a_slow_site_when_that_pays() -> None:
    pools = [edge(LoanPhase.LENT, QUIET), Pool("train")]
    for work_s, moves in ((20_000, True), (60, False)):
        job = Job("a", work_s=work_s, sizes=(1, 2), held={"edge-000": 1}, edge_allowed=True)
        found = plan(snapshot(pools, [job]))
        assert reason(found, "a").rule == "moves.sooner" if moves else found.targets == {}


@pytest.mark.parametrize(
    ("deadline_s", "leaves"),
    [(NOW_S + 9000, True), (NOW_S + 20_000, False), (NOW_S + 100, False)],
)
def test_a_deadline_job_leaves_the_edge_only_to_be_in_time(deadline_s: float, leaves: bool) -> None:
    """At the edge it takes 10,000 s, in the cloud 5,000."""
    job = Job("a", work_s=5000, sizes=(1,), held={"edge-000": 1}, edge_allowed=True,
              deadline_s=deadline_s)  # fmt: skip
    found = plan(snapshot([edge(LoanPhase.LENT, QUIET), Pool("train")], [job]))
    assert list(found.targets) == (["a"] if leaves else [])


def test_the_plan_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "from tests.property.test_policies import random_snapshot\n"
        "from scheduler.policies.registry import make_policy\n"
        "print([make_policy('tide').plan(random_snapshot(s)) for s in range(25)])\n"
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


def test_options_are_values() -> None:
    assert Tide() == Tide()
    assert Tide(starving_s=1.0) != Tide()
