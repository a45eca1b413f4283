"""What the default policy borrows, and what it gives back."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from scheduler.policies.interface import Kind, LoanPhase, Snapshot
from scheduler.policies.tide import tide
from scheduler.policies.tide.tide import Tide
from tests.markets import plan, reason, sizes
from tests.snapshots import Job, Pool, snapshot

NOW_S = 10_000.0
QUIET = [0.0] * 60
TRAIN = Pool("train")


def infer(loan: LoanPhase | list[LoanPhase], history: list[float], **more: float) -> Pool:
    return Pool("infer", Kind.INFERENCE, nodes=4, loan=loan, history=history, **more)  # type: ignore[arg-type]


HUNGRY = [Job(f"h{n}", work_s=90_000, sizes=(8, 16)) for n in range(4)]


def lent(history: list[float], **more: float) -> Snapshot:
    return snapshot([Pool("train"), infer(LoanPhase.LENT, history, **more)], [])


def test_an_owner_gets_its_nodes_back_though_nobody_trains() -> None:
    found = plan(lent([20.0] * 60, lent_since_s=NOW_S - 100))
    # 20 GPUs and 1 for headroom are three nodes of four; the loans are too young for the fourth.
    assert len(found.reclaim) == 3


ONE_AT_HOME = [LoanPhase.OWNED, *[LoanPhase.LENT] * 3]


def test_a_lent_node_that_nobody_wants_goes_back() -> None:
    seen = snapshot([Pool("train"), infer(ONE_AT_HOME, QUIET)], [])
    found = plan(seen)
    assert list(found.reclaim) == ["infer-001", "infer-002", "infer-003"]
    told = reason(found, "infer-001")
    assert (told.verb, told.rule) == ("reclaims", "loans.unused")


@pytest.mark.parametrize("own", [[], [Pool("train", nodes=1, gpus=4)]])
def test_it_goes_back_too_where_training_has_fewer_gpus_than_one_node(own: list[Pool]) -> None:
    pools = [*own, infer(ONE_AT_HOME, QUIET)]
    assert len(plan(snapshot(pools, [])).reclaim) == 3


def test_an_empty_node_that_is_drained_goes_back_whoever_waits() -> None:
    seen = snapshot([Pool("train", nodes=1), infer(ONE_AT_HOME, QUIET)], HUNGRY)
    assert plan(seen).reclaim == {}
    usable, free = seen.nodes.usable.copy(), seen.nodes.free.copy()
    usable[2], free[2] = False, 0
    drained = replace(seen, nodes=replace(seen.nodes, usable=usable, free=free))
    found = plan(drained)
    assert list(found.reclaim) == [seen.nodes.ids[2]]
    assert reason(found, seen.nodes.ids[2]).rule == "loans.unused"


HALF = Job("a", work_s=90_000, sizes=(4,), held={"train-000": 4})


@pytest.mark.parametrize(("jobs", "stay"), [(HUNGRY, 3), ([HALF], 1)])
def test_lent_nodes_stay_that_who_comes_next_might_need(jobs: list[Job], stay: int) -> None:
    room = [Pool("train", nodes=1), infer(ONE_AT_HOME, QUIET)]
    assert len(plan(snapshot(room, jobs)).reclaim) == 3 - stay


def test_an_edge_server_that_nobody_wants_goes_back() -> None:
    edge = Pool("edge", Kind.EDGE, nodes=2, gpus=1, loan=LoanPhase.LENT, history=QUIET)
    assert len(plan(snapshot([Pool("train"), edge], [])).reclaim) == 2
    driven = [Job(f"w{n}", sizes=(1,), edge_allowed=True, deadline_s=NOW_S + 9e5) for n in range(9)]
    assert plan(snapshot([edge], driven)).reclaim == {}


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


@pytest.mark.parametrize(
    ("work_s", "sizes", "speed", "lent"),
    [
        (60.0, (4, 8), 1.0, 0),  # it is about to end, so that a change does not pay
        (60.0, (4, 8), 1.5, 0),
        (90_000.0, (4, 8), 1.0, 0),  # it has as much at home
        (90_000.0, (4, 8), 1.5, 1),  # it would be faster there
        (90_000.0, (4, 16), 1.0, 2),  # training is too small for it
    ],
)
def test_what_would_be_used_is_lent_and_a_node_for_who_comes_next(
    work_s: float, sizes: tuple[int, ...], speed: float, lent: int
) -> None:
    job = Job("a", work_s=work_s, sizes=sizes, held={"train-000": 4})
    room = [Pool("train", nodes=1), infer(LoanPhase.OWNED, QUIET, speed=speed)]
    assert len(plan(snapshot(room, [job])).lend) == lent + bool(lent)


@pytest.mark.parametrize("name", ["a", "z"])
@pytest.mark.parametrize("held", [{}, {"train-000": 8}])
def test_nothing_is_lent_to_who_has_as_much_at_home(name: str, held: dict[str, int]) -> None:
    """Whatever the owner is called."""
    job = Job("j", work_s=90_000, sizes=(8, 16), held=held)
    pools = [Pool("train", nodes=2), replace(infer(LoanPhase.OWNED, QUIET), id=name)]
    found = plan(snapshot(sorted(pools, key=lambda pool: pool.id), [job]))
    assert (found.lend, sizes(found)) == ((), {"j": 16})


def test_nothing_is_lent_for_a_gang_that_has_no_use_for_it() -> None:
    def lent(nodes: int) -> tuple[str, ...]:
        owner = replace(infer(LoanPhase.OWNED, QUIET), nodes=nodes)  # it keeps one of them
        return plan(snapshot([Pool("train", nodes=1), owner], [Job("gang", sizes=(16,))])).lend

    assert len(lent(3)) == 2  # its GPUs must all be in one pool
    assert lent(2) == ()


def test_a_gang_too_large_for_what_is_left_has_more_lent() -> None:
    """What is left goes unused while it waits, and no GPU has a price: it is not enough."""
    busy = Job("busy", work_s=9e5, sizes=(8,), held={"train-000": 8})
    gang = Job("gang", work_s=9e5, sizes=(16,))
    owner = infer([LoanPhase.LENT] + [LoanPhase.OWNED] * 3, QUIET)
    room = [Pool("train", nodes=1), owner]
    assert plan(snapshot(room, [busy, gang])).lend == ("infer-001", "infer-002")
    assert plan(snapshot(room, [busy, replace(gang, memory_mib=1e6)])).lend == ()
    assert plan(snapshot(room, [busy, replace(gang, sizes=(64,))])).lend == ()


def test_nothing_is_lent_beyond_what_a_tenant_may_have() -> None:
    """Nobody is at home where there is no site yet: the limit counts all the same."""
    seen = snapshot([infer(LoanPhase.OWNED, QUIET)], [Job(f"w{n}", sizes=(8,)) for n in range(9)])
    assert len(plan(seen).lend) == 3
    for most, lent in ((0, 0), (8, 2)):  # with a node for who comes next
        assert len(plan(replace(seen, quotas={"tenant": (0, most)})).lend) == lent
        assert len(plan(seen, Tide(quotas={"tenant": f"..{most}"})).lend) == lent


def test_a_node_on_its_way_is_not_asked_for_twice() -> None:
    waits = [Job("w", work_s=90_000, sizes=(8,))]
    asked = [LoanPhase.OWNED, LoanPhase.OWNED, LoanPhase.LENDING, LoanPhase.LENDING]
    assert len(plan(snapshot([infer(LoanPhase.OWNED, QUIET)], waits)).lend) == 2  # one to spare
    assert plan(snapshot([infer(asked, QUIET)], waits)).lend == ()
    two = [*waits, replace(waits[0], id="v")]
    assert len(plan(snapshot([infer(asked, QUIET)], two)).lend) == 1


@pytest.mark.parametrize(("needs", "back"), [(15.0, 0), (23.0, 1), (31.0, 2), (1000.0, 2)])
def test_a_node_that_its_owner_needs_again_is_asked_for_no_longer(needs: float, back: int) -> None:
    """Nodes that it is only asked for come before those that training has, which stay."""
    asked = [LoanPhase.OWNED, LoanPhase.OWNED, LoanPhase.LENDING, LoanPhase.LENDING]
    found = plan(snapshot([infer(asked, [needs] * 60)], HUNGRY))
    assert (found.lend, len(found.reclaim)) == ((), back)
    some = [LoanPhase.OWNED, LoanPhase.LENT, LoanPhase.OWNED, LoanPhase.LENDING]
    found = plan(snapshot([infer(some, [needs] * 60)], HUNGRY))
    assert sorted(found.reclaim) == sorted(["infer-003", "infer-001"][:back])


def test_who_waits_for_a_node_of_one_owner_is_lent_none_of_others() -> None:
    """Each has one to spare; the one that is on its way is enough."""
    owners = [replace(infer(LoanPhase.OWNED, QUIET), id=name, nodes=2) for name in "abc"]
    waits = Job("w", work_s=90_000, sizes=(8,))
    assert plan(snapshot(owners, [waits])).lend == ("a-000",)
    owners[0] = replace(owners[0], loan=[LoanPhase.LENDING, LoanPhase.OWNED])
    assert plan(snapshot(owners, [waits])).lend == ()


def asked_twice(*_: object) -> None:
    raise AssertionError("all was shared out once more")


def test_where_many_wait_or_enough_is_left_nothing_is_shared_out_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.policies.tide.tide.as_lent", asked_twice)
    many = [Job(f"w{n}", sizes=(8,)) for n in range(9)]
    owner = infer(LoanPhase.OWNED, QUIET)
    assert len(plan(snapshot([Pool("train", nodes=1), owner], many)).lend) == 3
    # They wait, but may not go there.
    big = [replace(job, memory_mib=1e6) for job in many]
    with pytest.raises(AssertionError, match="once more"):
        plan(snapshot([Pool("train", nodes=1), owner], big))
    # Who is outbid at home would be slower there: a node on loan is free.
    slow = infer([LoanPhase.OWNED] * 3 + [LoanPhase.LENT], QUIET, speed=0.01)
    runs = Job("runs", work_s=9e4, sizes=(8, 16), held={"train-000": 8})
    assert plan(snapshot([Pool("train", nodes=1), slow], [runs])).lend == ()


@pytest.mark.parametrize(("servers", "jobs", "lent"), [(3, 2, 2), (3, 9, 3), (3, 0, 0)])
def test_servers_of_the_edge_are_lent_to_a_gang_each(servers: int, jobs: int, lent: int) -> None:
    edge = Pool("edge", Kind.EDGE, nodes=servers, gpus=1, loan=LoanPhase.OWNED, history=QUIET)
    waits = [Job(f"w{n}", sizes=(1,), edge_allowed=True) for n in range(jobs)]
    assert len(plan(snapshot([edge], waits)).lend) == lent


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
    assert dict(plan(snapshot(pools, HUNGRY)).reclaim) == {}


def test_a_young_loan_ends_for_demand_but_not_for_headroom() -> None:
    loan = [LoanPhase.OWNED, LoanPhase.LENT, LoanPhase.LENT, LoanPhase.LENT]
    young = {"lent_since_s": NOW_S - 60}
    assert not plan(snapshot([infer(loan, [8.0] * 60, **young)], HUNGRY)).reclaim
    assert len(plan(snapshot([infer(loan, [8.0] * 60)], HUNGRY)).reclaim) == 1
    assert len(plan(snapshot([infer(loan, [9.0] * 60, **young)], HUNGRY)).reclaim) == 1


@pytest.mark.parametrize("room", [8, 0])
def test_a_node_that_goes_back_is_empty_in_the_plan(room: int) -> None:
    """Who was there goes elsewhere if it can, shrinks to what is left, or is stopped."""
    back = infer([LoanPhase.RECLAIMING, LoanPhase.LENT] + [LoanPhase.OWNED] * 2, [16.0] * 60)
    full = Job("full", work_s=60.0, sizes=(8,), held={} if room else {"train-000": 8})
    jobs = [
        Job("base", work_s=90_000, sizes=(4,), held={"infer-000": 4}, memory_mib=1e4),
        Job("both", work_s=90_000, sizes=(4, 8), held={"infer-000": 4, "infer-001": 4}),
        full,
    ]
    found = plan(snapshot([back, TRAIN], jobs[: 2 if room else 3]))
    assert {"base", "both"} <= set(found.targets)
    for target in found.targets.values():
        assert target is None or "infer-000" not in dict(target.placement)
    assert sum(sizes(found).values()) >= 8


@example(seed=1270)  # of 16 GPUs of half the speed it would make no more than of its 8
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_where_nobody_would_be_faster_no_more_is_lent_than_by_sharing_out(seed: int) -> None:
    """By sharing out a job may go there that has as much at home: to grow is a change, too."""
    rng = np.random.default_rng(seed)
    owner = infer(LoanPhase.OWNED, QUIET, speed=float(rng.choice([0.5, 1.0, 1.5])))
    held = {f"train-{n:03d}": int(rng.choice([2, 4, 8])) for n in range(int(rng.integers(0, 5)))}
    jobs = [
        Job(
            f"j{number}",
            work_s=float(rng.uniform(60, 90_000)),
            sizes=tuple(sorted({gpus, int(rng.choice([gpus, 16]))})),
            held={node: gpus},
            deadline_s=float(rng.choice([np.inf, NOW_S + 9000.0])),
        )
        for number, (node, gpus) in enumerate(held.items())
    ]
    seen = snapshot([Pool("train", nodes=4), owner], jobs, now_s=NOW_S)
    found = plan(seen)
    with patch.object(tide, "content", lambda *_: False):
        other = plan(seen)
    assert found.targets == other.targets
    assert found.lend in ((), other.lend)
    if found.lend != other.lend:
        size = [sizes(found).get(job.id, sum(job.held.values())) for job in jobs]
        has = seen.jobs.rate[np.arange(len(jobs)), seen.jobs.sizes.searchsorted(size)]
        there = seen.pools.speed[seen.pools.ids.index("infer")] * seen.jobs.rate.max(axis=1)
        assert (has >= there).all()


def test_nothing_is_shared_out_twice_where_nobody_would_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.policies.tide.tide.as_lent", asked_twice)
    job = Job("a", work_s=90_000, sizes=(4, 8), held={"train-000": 8})
    for speed, memory_mib in ((0.5, 0.0), (1.0, 0.0), (1.5, 1e6)):
        one = replace(job, memory_mib=memory_mib) if memory_mib else job
        room = [Pool("train", nodes=1), infer(LoanPhase.OWNED, QUIET, speed=speed)]
        assert plan(snapshot(room, [one])).lend == ()
    with pytest.raises(AssertionError, match="once more"):
        plan(snapshot([Pool("train", nodes=1), infer(LoanPhase.OWNED, QUIET, speed=1.5)], [job]))
