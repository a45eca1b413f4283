"""Gandiva: turns, packing, gathering, growth."""

from dataclasses import replace
from functools import partial

from scheduler.policies.interface import Plan, Snapshot
from scheduler.policies.literature.gandiva import Gandiva
from tests import snapshots
from tests.markets import sizes
from tests.snapshots import Pool, decide, snapshot

#: As in the paper, a switch takes a second.
Job = partial(snapshots.Job, checkpoint_cost_s=0.5, start_cost_s=0.5)
NOW = 10_000.0
TRAIN = Pool("train", nodes=2, gpus=4)


def asking(seen: Snapshot, **gpus: int) -> Snapshot:
    """Let jobs ask for a size; the builder has them ask for their smallest."""
    requested = seen.jobs.requested.copy()
    for name, size in gpus.items():
        requested[seen.jobs.ids.index(name)] = size
    return replace(seen, jobs=replace(seen.jobs, requested=requested))


def nodes(plan: Plan, job: str) -> dict[str, int]:
    target = plan.targets[job]
    return dict(target.placement) if target is not None else {}


def test_everyone_gets_the_size_asked_for_and_no_more() -> None:
    seen = asking(snapshot([TRAIN], [Job("a"), Job("b"), Job("c")]), a=4, b=2, c=1)
    plan = decide(Gandiva(), seen)
    assert sizes(plan) == {"a": 4, "b": 2, "c": 1}
    assert set(nodes(plan, "b")) == set(nodes(plan, "c")) == {"train-001"}


def test_a_slice_is_kept_to_its_end() -> None:
    held = {"train-000": 4, "train-001": 4}
    job = Job("a", sizes=(8,), held=held, changed_s=NOW - 59.0)
    waits = Job("b", sizes=(8,), submit_s=1.0, waiting_since_s=NOW - 500.0)
    plan = decide(Gandiva(), snapshot([TRAIN], [job, waits]))
    assert sizes(plan) == {}
    assert [reason.subject for reason in plan.reasons] == ["b"]
    plan = decide(Gandiva(), snapshot([TRAIN], [replace(job, changed_s=NOW - 60.0), waits]))
    assert sizes(plan) == {"a": 0, "b": 8}


def test_a_slice_lasts_until_its_switch_was_worth_it() -> None:
    a, b = snapshots.Job("a", sizes=(8,)), snapshots.Job("b", sizes=(8,), submit_s=1.0)
    held = {"train-000": 4, "train-001": 4}
    for age_s, turns in ((1499.0, {}), (1500.0, {"a": 0, "b": 8})):  # 30 s are 2 % of 1500 s
        running = replace(a, held=held, changed_s=NOW - age_s)
        assert sizes(Gandiva().plan(snapshot([TRAIN], [running, b]))) == turns


def test_turns_go_to_who_waited_longest_from_who_ran_longest() -> None:
    jobs = [
        Job("a", sizes=(4,), held={"train-000": 4}, changed_s=NOW - 100.0),
        Job("b", sizes=(4,), held={"train-001": 4}, changed_s=NOW - 200.0),
        Job("c", sizes=(4,), submit_s=1.0, waiting_since_s=NOW - 30.0),
        Job("d", sizes=(4,), submit_s=2.0, waiting_since_s=NOW - 40.0),
    ]
    plan = Gandiva().plan(snapshot([TRAIN], jobs))
    assert sizes(plan) == {"a": 0, "b": 0, "c": 4, "d": 4}
    jobs = [*jobs[:2], jobs[2]]
    plan = decide(Gandiva(), snapshot([TRAIN], jobs))
    assert sizes(plan) == {"b": 0, "c": 4}


def test_nobody_is_suspended_while_all_fit() -> None:
    jobs = [Job("a", held={"train-000": 1}, changed_s=0.0), Job("b", submit_s=1.0)]
    plan = Gandiva().plan(snapshot([TRAIN], jobs))
    assert sizes(plan) == {"b": 1}


def test_a_spread_gang_moves_to_a_node_that_holds_it_one_per_plan() -> None:
    spread = {"train-000": 1, "train-001": 1}
    jobs = [Job("a", sizes=(2,), held=spread), Job("b", sizes=(2,), held=spread, submit_s=1.0)]
    plan = decide(Gandiva(), snapshot([TRAIN], jobs))
    assert nodes(plan, "a") == {"train-000": 2}
    (reason,) = plan.reasons
    assert (reason.subject, reason.verb, reason.rule) == ("a", "migrates", "gandiva.gather")
    full = [*jobs, Job("c", sizes=(4,), held={"train-000": 2, "train-001": 2}, submit_s=2.0)]
    assert Gandiva().plan(snapshot([TRAIN], full)).targets == {}
