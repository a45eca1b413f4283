"""Aryl and DeepBoot: loans, reclaims against the optimum, groups of servers, lives of GPUs."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.interface import (
    Figure,
    Kind,
    LoanPhase,
    Plan,
    Policy,
    Reason,
    Snapshot,
)
from scheduler.policies.literature.aryl import Aryl, group
from scheduler.policies.literature.deepboot import DeepBoot
from scheduler.policies.literature.fifo import Fifo
from scheduler.policies.parts.loans import Decision, Loans, Offer
from tests.snapshots import Job, Pool, decide, snapshot

POLICIES: dict[str, Policy] = {
    "aryl": Aryl(),
    "aryl fraction": Aryl(rules=("fraction",)),
    "deepboot": DeepBoot(),
    "deepboot free": DeepBoot(doubling=False, interval_s=0.0),
}
#: A tide at its ebb: 2 of 32 GPUs needed for two days.
EBB = [2.0] * 600
TRAIN = Pool("train", nodes=1)
SIZES = tuple(range(1, 17))


def lender(owned: int, lent: int = 0, needed: list[float] | None = None) -> Pool:
    loan = [LoanPhase.OWNED] * owned + [LoanPhase.LENT] * lent
    history = EBB if needed is None else needed
    return Pool("infer", Kind.INFERENCE, owned + lent, loan=loan, history=history)


def placed(seen: Snapshot, plan: Plan) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {name: {} for name in seen.jobs.ids}
    held = seen.holdings
    for job, node, gpus in zip(
        held.job.tolist(), held.node.tolist(), held.gpus.tolist(), strict=True
    ):
        found[seen.jobs.ids[job]][seen.nodes.ids[node]] = gpus
    for name, target in plan.targets.items():
        found[name] = dict(target.placement) if target else {}
    return found


# --- loans and reclaims -----------------------------------------------------------------------


def test_only_of_nodes_that_are_lent_it_is_said_why_where_their_lender_stands() -> None:
    def told_of(lender: str) -> Decision:
        asked.append(lender)
        return Decision(figures=(Figure(lender, 1.0),))

    asked: list[str] = []
    offers = [
        Offer([0, 1], lambda: told_of("first"), 1),
        Offer([2], lambda: told_of("second"), 1),
        Offer([3, 4], lambda: told_of("third"), 2),
    ]
    back = [Reason(name, "reclaims", "victims.fewest") for name in ("back-0", "back-1")]
    loans = Loans(lend=[0, 1, 2, 3, 4], reasons=back, offers=offers)
    loans.lend_only([f"n{node}" for node in range(5)], {0, 3, 4})
    assert loans.lend == [0, 3, 4]
    assert [one.subject for one in loans.reasons] == ["back-0", "n0", "back-1", "n3", "n4"]
    assert sorted(asked) == ["first", "third"], "nobody works out what is not said"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_idle_servers_are_asked_for_when_training_is_short(name: str) -> None:
    jobs = [Job(f"job-{n}", sizes=(8,)) for n in range(4)]
    plan = decide(POLICIES[name], snapshot([TRAIN, lender(4)], jobs))
    assert len(plan.lend) == 3
    alone = snapshot([TRAIN, lender(4)], jobs[:1])
    assert POLICIES[name].plan(alone).lend == ()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_job_that_runs_asks_only_for_servers_it_would_be_faster_on(name: str) -> None:
    job = Job("a", sizes=(8, 16), held={"train-000": 8}, power=1.0)
    for speed, asked in ((1.0, 2), (0.6, 2), (0.5, 0)):
        seen = snapshot([TRAIN, replace(lender(4), speed=speed)], [job])
        assert len(POLICIES[name].plan(seen).lend) == asked


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_two_owners_are_not_both_asked_for_the_same(name: str) -> None:
    owners = [replace(lender(4), id=owner) for owner in ("infer-a", "infer-b")]
    jobs = [Job("full", sizes=(8,), held={"train-000": 8}), Job("a", sizes=(8,))]
    assert len(POLICIES[name].plan(snapshot([TRAIN, *owners], jobs)).lend) == 1


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_edge_nodes_are_not_asked_for(name: str) -> None:
    edge = Pool("edge", Kind.EDGE, nodes=3, gpus=1, history=[0.0] * 600)
    jobs = [Job(f"job-{n}", edge_allowed=True) for n in range(20)]
    assert POLICIES[name].plan(snapshot([TRAIN, edge], jobs)).lend == ()


def test_a_reclaim_takes_the_server_that_scaling_in_empties() -> None:
    tide = lender(0, 3, [6.0] * 600)
    jobs = [
        Job("elastic", sizes=(8, 12), held={"infer-001": 8, "infer-002": 4}),
        Job("rigid", sizes=(8,), held={"infer-000": 8}),
    ]
    seen = snapshot([TRAIN, tide], jobs, sizes=SIZES)
    plan = decide(Aryl(), seen)
    assert list(plan.reclaim) == ["infer-002"]
    assert placed(seen, plan) == {"elastic": {"infer-001": 8}, "rigid": {"infer-000": 8}}


# --- Aryl: two phases -------------------------------------------------------------------------


def test_bases_come_before_extra_workers_and_the_short_before_the_long() -> None:
    jobs = [
        Job("big", work_s=1e5, sizes=(2, 4, 8), held={"train-000": 8}),
        Job("long", work_s=9e4, sizes=(4,)),
        Job("short", work_s=100.0, sizes=(4,)),
    ]
    seen = snapshot([TRAIN], jobs)
    plan = decide(Aryl(), seen)
    sizes = {name: sum(nodes.values()) for name, nodes in placed(seen, plan).items()}
    assert sizes == {"big": 4, "long": 0, "short": 4}


def test_what_is_left_goes_where_it_saves_most_time() -> None:
    """T(1) - T(4) of the long one is 7500 s for 3 GPUs; of the short one 750 s."""
    jobs = [
        Job("short", work_s=1000.0, sizes=(1, 4), power=1.0),
        Job("long", work_s=10_000.0, sizes=(1, 4), power=1.0),
    ]
    seen = snapshot([Pool("train", gpus=5)], jobs)
    sizes = {n: sum(p.values()) for n, p in placed(seen, Aryl().plan(seen)).items()}
    assert sizes == {"short": 1, "long": 4}


def test_who_does_not_lend_gives_back_what_another_policy_borrowed() -> None:
    jobs = [Job("runs", sizes=(8,), held={"infer-001": 8})]
    busy = snapshot([Pool("train"), lender(1, 1, [16.0] * 600)], jobs)
    idle = snapshot([Pool("train"), lender(1, 1, [0.0] * 600)], jobs)
    assert list(decide(Fifo(), busy).reclaim) == ["infer-001"]
    assert [one.verb for one in decide(Fifo(), busy).reasons if one.subject == "infer-001"] == [
        "reclaims"
    ]
    assert decide(Fifo(), idle).reclaim == {}


def test_elastic_jobs_prefer_loaned_servers_and_rigid_ones_their_own() -> None:
    jobs = [Job("rigid", sizes=(4,)), Job("elastic", sizes=(2, 4))]
    seen = snapshot([TRAIN, lender(1, 1)], jobs)
    where = placed(seen, Aryl().plan(seen))
    assert where == {"rigid": {"train-000": 4}, "elastic": {"infer-001": 4}}


def test_a_job_has_more_slow_gpus_to_make_up_or_waits_for_its_own() -> None:
    """Three GPUs of the loaned server are one worker; the rigid one may not have so many."""
    own = Job("own", sizes=(8,), held={"train-000": 8})
    jobs = [own, *(Job(name, sizes=(2, 6), power=1.0) for name in ("a", "b"))]
    slow = replace(lender(1, 1), speed=1 / 3)
    seen = snapshot([TRAIN, slow], jobs, sizes=SIZES)
    where = placed(seen, Aryl().plan(seen))
    assert where == {"own": {"train-000": 8}, "a": {"infer-001": 6}, "b": {}}
    rigid = [own, Job("rigid", sizes=(2,))]
    for speed, place in ((1 / 3, {}), (1.0, {"infer-001": 2})):
        seen = snapshot([TRAIN, replace(slow, speed=speed)], rigid, sizes=SIZES)
        assert placed(seen, Aryl().plan(seen))["rigid"] == place


def test_a_reclaim_may_leave_a_job_fewer_slow_gpus_than_make_up() -> None:
    tide = replace(lender(0, 2, [6.0] * 600), speed=1 / 3)
    jobs = [
        Job("elastic", sizes=(2, 4, 6), held={"infer-000": 4, "infer-001": 2}, power=1.0),
        Job("rigid", sizes=(4,), held={"infer-000": 4}),
    ]
    seen = snapshot([Pool("train", gpus=1), tide], jobs, sizes=SIZES)
    plan = decide(Aryl(), seen)
    assert list(plan.reclaim) == ["infer-001"]
    assert placed(seen, plan) == {"elastic": {"infer-000": 4}, "rigid": {"infer-000": 4}}


def test_a_job_that_just_changed_does_not_grow() -> None:
    job = Job("a", sizes=(2, 4, 8), held={"train-000": 4}, changed_s=9_990.0)
    seen = snapshot([TRAIN], [job])
    assert not Aryl().plan(seen).targets
    assert Aryl(interval_s=0.0).plan(seen).targets


def test_bases_and_extra_workers_fill_loaned_servers_from_opposite_ends() -> None:
    jobs = [Job(f"job-{n}", sizes=(2, 10), power=1.0) for n in range(2)]
    seen = snapshot([Pool("train", gpus=1), lender(1, 3)], jobs, sizes=SIZES)
    plan = decide(Aryl(), seen)
    assert placed(seen, plan) == {
        "job-0": {"infer-001": 2, "infer-003": 8},
        "job-1": {"infer-001": 2, "infer-002": 8},
    }


def test_who_shrinks_leaves_the_last_servers_first() -> None:
    free, members = np.full(3, 8), np.arange(3)
    held = {0: 2, 1: 3, 2: 8}
    assert group(free, members, 2, 4, held) == {0: 2, 1: 2}
    assert group(free, members, 2, 15, held) == {0: 2, 1: 5, 2: 8}
    with pytest.raises(RuntimeError, match="given out twice"):
        group(free, members, 2, 25, held)


# --- DeepBoot ---------------------------------------------------------------------------------


def test_deepboot_uses_loaned_servers_and_at_most_doubles() -> None:
    jobs = [Job(f"job-{n}", sizes=SIZES, power=0.9) for n in range(2)]
    seen = snapshot([TRAIN, lender(1, 1)], jobs, sizes=SIZES)
    plan = decide(DeepBoot(doubling=False), seen)
    assert placed(seen, plan) == {"job-0": {"train-000": 8}, "job-1": {"infer-001": 8}}
    assert not plan.notes
    plan = decide(DeepBoot(), seen)
    assert {n: sum(p.values()) for n, p in placed(seen, plan).items()} == {"job-0": 1, "job-1": 1}
    assert dict(plan.notes) == {"job-0": (1.0,), "job-1": (1.0,)}


def test_deepboot_plans_a_size_again_only_after_the_interval() -> None:
    job = Job("a", sizes=SIZES, held={"train-000": 2}, changed_s=9_950.0)
    seen = snapshot([TRAIN], [job], sizes=SIZES)
    assert not DeepBoot(doubling=False).plan(seen).targets
    assert DeepBoot(doubling=False, interval_s=40.0).plan(seen).targets
