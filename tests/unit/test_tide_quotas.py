"""Quotas of tenants: what is guaranteed comes first, and nobody has more than its limit."""

import re
from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase, Need, Snapshot
from scheduler.policies.registry import make_policy
from scheduler.policies.tide.commitments import PROMISED
from scheduler.policies.tide.quotas import NO_LIMIT, read
from scheduler.policies.tide.tide import Tide
from tests.markets import noted, opened, plan, reason, sizes
from tests.snapshots import INF, NEVER, Job, Pool, snapshot

NOW_S = 10_000.0
TRAIN = Pool("train")


def see(pools: list[Pool], **jobs: Job) -> Snapshot:
    """Build a snapshot whose jobs are called `TENANT_NAME`."""
    named = [replace(job, id=name) for name, job in jobs.items()]
    return with_tenants(snapshot(pools, named, NOW_S))


def with_tenants(seen: Snapshot) -> Snapshot:
    """Give jobs that are called `TENANT_NAME` their tenants."""
    tenants = tuple(name.partition("_")[0] for name in seen.jobs.ids)
    return replace(seen, jobs=replace(seen.jobs, tenants=tenants))


def out_of_contact(seen: Snapshot) -> Snapshot:
    """Leave out the nodes that gangs are on."""
    of = seen.holdings
    none = replace(of, job=of.job[:0], node=of.node[:0], gpus=of.gpus[:0])
    return replace(seen, holdings=none)


def after(seen: Snapshot, **quotas: str) -> dict[str, int]:
    """Return what jobs have when the plan is carried out, if anything."""
    held = dict(zip(seen.jobs.ids, seen.jobs.size.tolist(), strict=True))
    return {name: gpus for name, gpus in {**held, **sizes(plan(seen, Tide(quotas=quotas)))}.items()
            if gpus}  # fmt: skip


# --- how it is written ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "quota"),
    [("16..32", (16, 32)), ("16..", (16, NO_LIMIT)), ("..32", (0, 32)), (" 0 .. 0 ", (0, 0))],
)
def test_a_quota_is_a_range(text: str, quota: tuple[int, int]) -> None:
    assert read("a", text) == quota


@pytest.mark.parametrize("text", ["16", "..", "", "32..16", "-1..4", "a..b", "1..2..3", "1.5..2"])
def test_what_is_no_range_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("quota of vision: must be GPUs guaranteed")):
        make_policy(f'tide:quotas={{"vision":"{text}"}}')


def test_a_quota_names_its_tenant() -> None:
    with pytest.raises(ValueError, match="a tenant without a name"):
        make_policy("tide:quotas.=1..2")


def test_quotas_are_options_like_others() -> None:
    usual = Tide(quotas={"vision": "16..32", "nlp": "..8"})
    assert make_policy("tide:quotas.vision=16..32:quotas.nlp=..8") == usual
    assert make_policy('tide:quotas={"a.b": "2.."}') == Tide(quotas={"a.b": "2.."})


# --- limits ---------------------------------------------------------------------------------------


def test_a_limit_goes_to_whose_next_gpu_is_worth_most() -> None:
    seen = see([TRAIN], a_short=Job("", 600.0), a_long=Job("", 360_000.0), b_x=Job("", 36_000.0))
    assert after(seen, a="..2") == {"a_short": 2, "b_x": 4}
    assert after(seen, a="..0") == {"b_x": 8}


def test_what_a_job_is_still_to_leave_counts_for_its_limit() -> None:
    moves = Job("", held={"train-000": 4}, moving=True)
    seen = see([TRAIN], a_moves=moves, a_new=Job("", sizes=(2,)))
    fewer = replace(seen, jobs=replace(seen.jobs, size=np.array([2, 0])))
    assert after(fewer, a="..4") == {"a_moves": 2}
    assert after(fewer, a="..6") == {"a_moves": 2, "a_new": 2}
    assert after(out_of_contact(fewer), a="..4") == {"a_moves": 2}, "on nodes out of contact, too"


def test_a_limit_is_for_all_sites_together() -> None:
    pools = [TRAIN, Pool("infer", Kind.INFERENCE, 2, loan=LoanPhase.LENT, history=[0.0] * 60)]
    seen = see(pools, a_x=Job("", sizes=(4,)), a_y=Job("", sizes=(4,)), a_z=Job("", sizes=(4,)))
    assert len(after(seen)) == 3
    assert sum(after(seen, a="..8").values()) == 8


def test_whoever_has_more_than_its_limit_shrinks_or_stops() -> None:
    seen = see([TRAIN], a_x=Job("", held={"train-000": 8}))
    assert after(seen, a="..3") == {"a_x": 2}
    assert after(see([TRAIN], a_x=Job("", sizes=(8,), held={"train-000": 8})), a="..3") == {}


def test_what_moves_counts() -> None:
    moving = Job("", sizes=(4,), held={"train-000": 4}, moving=True)
    assert after(see([TRAIN], a_x=moving, a_y=Job("")), a="..5") == {"a_x": 4, "a_y": 1}
    assert after(see([TRAIN], a_x=moving, a_y=Job("")), a="..2") == {"a_x": 4}


def test_a_job_that_leaves_stops_no_other_and_lets_none_grow_until_it_has_left() -> None:
    goes = Job("", sizes=(4,), held={"train-000": 4}, moving=True, leaves=True)
    runs = Job("", sizes=(2, 4), held={"train-001": 2})
    pools = [Pool("train", nodes=2)]
    assert after(see(pools, a_goes=goes, a_x=runs), a="..4") == {"a_goes": 4, "a_x": 2}
    assert after(see(pools, a_goes=goes, a_x=Job("")), a="..4") == {"a_goes": 4}
    assert after(see(pools, a_goes=goes, a_x=Job("")), a="..6") == {"a_goes": 4, "a_x": 2}
    silent = out_of_contact(see(pools, a_goes=goes, a_x=Job("")))
    assert after(silent, a="..4") == {"a_goes": 4}, "on nodes out of contact, too"
    whole = replace(runs, held={"train-001": 4})
    assert after(see(pools, a_goes=goes, a_x=whole), a="..4") == {"a_goes": 4, "a_x": 4}
    assert after(see(pools, a_goes=goes, a_x=whole), a="..3") == {"a_goes": 4, "a_x": 2}


def test_what_one_job_cannot_have_another_of_its_tenant_may() -> None:
    """The first is worth most, and no site with room can run it: it keeps nothing from its mate."""
    small = Pool("small", memory_mib=16_000.0)
    seen = see(
        [TRAIN, small],
        b_x=Job("", 600.0, sizes=(8,), memory_mib=50_000.0, held={"train-000": 8}),
        a_first=Job("", 900.0, sizes=(8,), memory_mib=50_000.0),
        a_other=Job("", 360_000.0, sizes=(8,)),
    )
    assert after(seen, a="..8") == {"b_x": 8, "a_other": 8}


def test_who_runs_goes_on_where_nobody_has_what_its_limit_would_take_from_it() -> None:
    """The limit saves half of it for another of its tenant, for whom others pay too much."""
    pools = [TRAIN, Pool("edge", Kind.EDGE, gpus=4, speed=0.5, loan=LoanPhase.LENT)]
    runs = Job("", 36_000.0, (2, 4), held={"edge-000": 4}, edge_allowed=True)
    others = {f"b_{at}": Job("", 600.0 + at, (1,), held={"train-000": 1}) for at in range(8)}
    seen = see(pools, a_runs=runs, a_waits=Job("", 9_000.0, (2,)), **others)
    found = plan(seen, Tide(quotas={"a": "..4"}))
    assert sizes(found) == {}
    assert reason(found, "a_waits").verb == "waits"


def test_no_promise_is_given_beyond_a_limit() -> None:
    due = {"deadline_s": NOW_S + 1000.0, "rates": (1.0, 2.0, 4.0, 8.0)}
    jobs = {name: Job("", 3000.0, **due) for name in ("a_x", "a_y")}  # type: ignore[arg-type]
    seen = see([Pool("train", nodes=2)], **jobs)
    assert opened(seen).promises.bound.tolist() == [0, 0]
    assert opened(seen, Tide(quotas={"a": "..4"})).promises.bound.tolist() == [0, -1]
    assert sum(after(seen, a="..4").values()) == 4
    given = noted(seen, a_x=(PROMISED,), a_y=(PROMISED,))
    assert sum(after(given, a="..4").values()) == 4, "a limit that was lowered holds all the same"


def test_a_promised_job_comes_when_others_of_its_tenant_have_left_and_its_room_is_kept() -> None:
    """As after a failure: while it waited to be started again, another came under the limit."""
    due = Job("", 3000.0, sizes=(4,), rates=(4.0,), deadline_s=NOW_S + 3000.0)
    holds, waits = Job("", sizes=(4,), held={"train-000": 4}), Job("", sizes=(4,))

    def planned(**jobs: Job) -> dict[str, int]:
        return after(noted(see([TRAIN], a_due=due, **jobs), a_due=(PROMISED,)), a="..4")

    told = noted(see([TRAIN], a_due=due, a_x=holds), a_due=(PROMISED,))
    why = reason(plan(told, Tide(quotas={"a": "..4"})), "a_due")
    assert (why.verb, why.rule, why.needs) == (
        "waits",
        "market.quota",
        (Need("quota_gpus", 4, 8),),
    )
    assert list(planned(a_x=holds, b_x=waits, b_y=waits).values()) == [4]
    leaves = replace(holds, moving=True)
    assert planned(a_x=leaves, b_x=waits) == {"a_x": 4}
    assert planned(b_x=holds) == {"a_due": 4, "b_x": 4}


def test_a_promised_job_that_grows_keeps_what_it_has_until_others_have_left() -> None:
    """As when it is back from lending."""
    due = Job("", 3000.0, sizes=(2, 4), rates=(2.0, 4.0), deadline_s=NOW_S + 1000.0)
    seen = see(
        [TRAIN],
        a_due=replace(due, held={"train-000": 2}),
        a_x=Job("", sizes=(2,), held={"train-000": 2}),
    )
    given = noted(seen, a_due=(PROMISED, 4.0, NOW_S - 1.0))
    assert after(given, a="..4") == {"a_due": 2}
    assert after(given, a="..6") == {"a_due": 4, "a_x": 2}


# --- guarantees -----------------------------------------------------------------------------------


def test_who_is_below_its_guarantee_has_base_sizes_before_anybody_has_more() -> None:
    short = Job("", 3600.0, sizes=(8,), power=0.6, held={"train-000": 8})
    seen = see([TRAIN], a_x=Job("", 360_000.0, sizes=(4, 8)), b_x=short)
    assert after(seen) == {"b_x": 8}
    assert after(seen, a="4..") == {"a_x": 8}, "the other cannot shrink; what is left is anybody's"
    shrinks = see([TRAIN], a_x=Job("", 360_000.0, sizes=(4, 8)), b_x=replace(short, sizes=(4, 8)))
    assert after(shrinks, a="4..") == {"a_x": 4, "b_x": 4}


def test_a_gang_larger_than_the_guarantee_has_no_right() -> None:
    seen = see([TRAIN], a_x=Job("", 360_000.0, sizes=(8,)), b_x=Job("", 60.0, sizes=(8,)))
    assert after(seen, a="7..") == {"b_x": 8}
    assert after(seen, a="8..") == {"a_x": 8}


def test_a_guarantee_is_above_every_priority() -> None:
    seen = see(
        [TRAIN],
        a_x=Job("", 360_000.0, sizes=(8,)),
        b_x=Job("", 60.0, sizes=(8,), priority=8),
    )
    assert after(seen, a="8..") == {"a_x": 8}


def test_within_a_guarantee_the_class_decides_then_the_worth() -> None:
    jobs = {f"a_{n}": Job("", 600.0 * (n + 1), sizes=(4,)) for n in range(3)}
    jobs["a_2"] = replace(jobs["a_2"], priority=1)
    seen = see([TRAIN], **jobs, b_x=Job("", 10.0, sizes=(4,), priority=1))
    assert set(after(seen, a="4..")) == {"a_2", "b_x"}


@pytest.mark.parametrize("priority", [0, 2])
def test_who_is_within_a_guarantee_has_its_base_size_before_another_of_them_grows(
    priority: int,
) -> None:
    """There is room for 16: base sizes of 4 and 8, or twice the first and nothing for the other."""
    jobs = {
        "a_short": Job("", 2_000.0, sizes=(4, 8), power=0.99, priority=priority),
        "b_long": Job("", 400_000.0, sizes=(8,), priority=-priority),
        "b_one": Job("", 300.0, sizes=(1,)),
    }
    got = after(see([Pool("train", nodes=2)], **jobs), a="4..", b="9..9")
    assert got == {"a_short": 4, "b_long": 8, "b_one": 1}


@pytest.mark.parametrize("changed_s", [NOW_S - 10.0, NEVER])
def test_who_has_more_than_its_base_size_shrinks_for_another_of_its_guarantee(
    changed_s: float,
) -> None:
    """Though its pause loses more than the other gains: all would be worth more as they are."""
    long = Job("", 600.0, (8, 16), held={"train-000": 8, "train-001": 8}, changed_s=changed_s)
    one = Job("", 12_000.0, sizes=(1,))
    assert after(see([Pool("train", nodes=2)], a_long=long, a_one=one), a="17..") == {
        "a_long": 8,
        "a_one": 1,
    }


def test_nothing_is_promised_to_others_on_guaranteed_gpus() -> None:
    due = Job("", 3000.0, rates=(1.0, 2.0, 4.0, 8.0), deadline_s=NOW_S + 1000.0)
    seen = see([TRAIN], b_x=due, a_x=replace(due, sizes=(8,), rates=(8.0,), deadline_s=INF))
    assert opened(seen).promises.bound.tolist() == [-1, 0]
    for quotas, bound in (({"a": "4.."}, 0), ({"a": "5.."}, -1), ({"a": "8..", "b": "4.."}, 0)):
        assert opened(seen, Tide(quotas=quotas)).promises.bound.tolist() == [-1, bound]
    assert after(seen, a="8..") == {"a_x": 8}


# --- reasons --------------------------------------------------------------------------------------


def test_whom_a_limit_keeps_out_is_told_which_limit_would_do() -> None:
    jobs = {f"a_{n}": Job("", 1000.0 * (n + 1), sizes=(2,)) for n in range(3)}
    told = reason(plan(see([TRAIN], **jobs), Tide(quotas={"a": "..2"})), "a_2")
    assert (told.verb, told.rule, told.lost_to) == ("waits", "market.quota", ("a_0",))
    assert told.needs == (Need("quota_gpus", 2, 6),)


def test_a_limit_that_is_met_stops_nobody_of_a_tenant_whose_limit_is_not() -> None:
    """What `a` may not have in all made prices for a moment at which `b` had nothing."""
    pools = [Pool("fast", nodes=2, gpus=4), Pool("train", gpus=4)]
    timed = Job("b_timed", 46_000, (4,), 0.5, held={"fast-000": 4}, submit_s=1, deadline_s=33_100)
    jobs = [
        timed,
        Job("a_small", 90_000, (1, 2), held={"train-000": 1}, submit_s=2),
        Job("a_third", 50_000, (1, 2, 3, 4), held={"fast-001": 1}, submit_s=3),
        Job("a_high", 90_000, (2, 3), held={"fast-001": 2}, priority=1, submit_s=4),
        Job("a_large", 20_000, (8,), 1.0, priority=1, submit_s=5),
        Job("a_six", 20_000, (6,), 1.0, submit_s=6),
        Job("b_other", 100_000, (2, 3, 4), 1.0, held={"train-000": 2}, submit_s=7),
        Job("c_job", 20_000, (1, 2), held={"fast-001": 1}, submit_s=8),
    ]
    seen = with_tenants(snapshot(pools, jobs, NOW_S, sizes=(1, 2, 3, 4, 6, 8)))
    assert after(seen, a="4..13", b="4..10", c="2..3")["b_other"] == 2


def test_whom_a_limit_makes_smaller_is_told_so() -> None:
    seen = see([TRAIN], a_x=Job("", 1e5, sizes=(2, 4, 8), held={"train-000": 8}))
    told = reason(plan(seen, Tide(quotas={"a": "..5"})), "a_x")
    assert (told.verb, told.rule) == ("scales_in", "market.quota")
    assert told.needs == (Need("quota_gpus", 5, 8),)
