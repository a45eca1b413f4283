"""What policies are shown: sites, learned curves, notes, and owners' newest word."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from scheduler.core.stimuli import (
    Cause,
    Curve,
    CurvesLearned,
    LeaderStarted,
    Stimulus,
    TimePassed,
)
from scheduler.policies.interface import SIZES_MOST, Plan, Policy
from scheduler.policies.literature.fifo import Fifo
from scheduler.policies.tide.tide import Tide
from schemas.events import (
    JobCancelled,
    JobSubmitted,
    NodeDied,
    RatePoint,
)
from schemas.requests import CordonNode
from tests.builders import (
    Cell,
    begun_anew,
    load,
    node_born,
    request_of,
    submitted,
    target,
    two_jobs,
)

# --- sites -------------------------------------------------------------------------------------


class _OfFifo(Cell):
    def _make(self, name: str) -> Policy:
        return Fifo()


class _OfAny(Cell):
    def _make(self, name: str) -> Policy:
        return self.policy


def test_a_gang_that_no_agent_could_host_keeps_no_gpu_idle() -> None:
    cell = _OfFifo()
    for name in ("a0", "a1"):
        cell.feed(node_born(f"n-{name}", agent=name))
    cell.feed(submitted("large", gpus_min=8))
    cell.feed(submitted("small", gpus_min=2, gpus_max=2))
    cell.wait(60.0)
    assert (cell.job("large").size, cell.job("small").size) == (0, 2)
    pools, jobs = cell.seen().pools, cell.seen().jobs
    assert pools.ids == ("train@a0", "train@a1")
    assert jobs.pool.tolist() == [-1, 0]


def test_a_site_answers_to_its_own_name() -> None:
    cell = Cell()
    cell.told(node_born("a0", agent="a0"), node_born("a1", agent="a1"))
    cell.told(submitted("j0"), submitted("j1"))
    cell.plan({"j0": target("train@a0", a0=1), "j1": target("train@a1", a1=2)})
    assert [cell.job(job).pool for job in ("j0", "j1")] == ["train", "train"]
    cell.plan({"j0": target("train@a0", a1=1)})
    assert cell.state.totals.policy_failures == 1


def test_a_pool_is_gone_with_its_last_node_and_its_job() -> None:
    cell = Cell().told(node_born("n0"), node_born("e0", pool="edge", kind="edge"))
    cell.feed(NodeDied(node="e0", reason="scrapped"))
    assert (cell.seen().pools.ids, cell.seen().lenders) == (("train",), ())


# --- what was learned --------------------------------------------------------------------------


def curve(points: list[list[float]], left: float | None) -> Curve:
    return {
        "points": points,
        "per_step": 3.0,
        "left": left,
        "measured": [],
        "affinity": {"infer": 0.25},
    }


@pytest.mark.parametrize("left", [None, 900.0])
def test_a_learned_curve_is_shown_instead_of_the_declared_one(left: float | None) -> None:
    cell = Cell()
    for name, pool in (("n0", "train"), ("i0", "infer")):
        cell.feed(node_born(name, pool=pool, kind="training" if pool == "train" else "inference"))
    cell.feed(submitted("j0"))
    cell.run("j0", n0=2)
    points = [[1.0, 5.0], [3.0, 9.0], [4.0, 0.0], [6.0, 12.0], [8.0, 20.0]]
    cell.progress("j0", 100, 0.0)
    cell.feed(CurvesLearned({"j0": curve(points, left)}))
    cell.feed(submitted("j1"))  # declares sizes 1, 2, 4 and 8
    cell.now_s += 10.0
    cell.progress("j0", 110, 20.0)
    cell.wait(15.0)  # two steps a second
    jobs = cell.seen().jobs
    assert jobs.sizes.tolist() == [1, 2, 3, 4, 6, 8]
    assert jobs.rate[0].tolist() == [5.0, 7.0, 9.0, 0.0, 12.0, 20.0]
    assert jobs.remaining_steps[0] == (900.0 - 40 * 3.0 if left else (1000 - 140) * 3.0)
    assert jobs.checkpoint_age_steps[0] == 140 * 3.0
    assert jobs.rate_age_s.tolist() == [25.0, np.inf]
    assert jobs.affinity.tolist() == [[0.25, 1.0], [1.0, 1.0]]
    cell.wait(600.0)
    assert cell.seen().jobs.remaining_steps[0] == 1e-9


# --- notes -------------------------------------------------------------------------------------


def test_notes_are_shown_to_the_policy_that_wrote_them() -> None:
    cell = _OfAny().told(node_born(), submitted("j0"))

    def lead(policy: str) -> list[float]:
        cell.feed(LeaderStarted("test", 1, policy, cell.settings.to_dict()))
        return [float(x) for x in cell.seen().jobs.notes[0] if not np.isnan(x)]

    written = Plan(notes={"j0": (1.0, 2.0)})
    cell.adopt(written)
    assert lead("scripted:far=1") == [1.0, 2.0], "with other options it is the same"
    assert lead("other") == []
    cell.adopt(written)
    assert (lead("other"), lead("scripted")) == ([1.0, 2.0], [])


# --- owners ------------------------------------------------------------------------------------


def test_a_late_word_of_an_owner_does_not_replace_a_newer_one() -> None:
    cell = Cell().told(node_born("i0", pool="infer", kind="inference", gpus=8))

    def says(needed: int, boot: int, sequence: int, agent: str = "agent-infer") -> float:
        cell.now_s += 1.0
        cell.feed(load(needed, "infer"), Cause(f"/agents/{agent}", boot, sequence))
        return cell.state.lenders["infer"].gpus_needed

    assert [says(8, 1, 6), says(0, 1, 5), says(3, 0, 9)] == [8.0, 8.0, 8.0]
    assert says(2, 2, 1) == 2.0, "it counts anew after a restart"
    assert says(5, 1, 1, agent="other") == 5.0, "numbers of two agents say nothing of each other"


def test_slots_in_which_an_owner_said_nothing_are_unknown() -> None:
    cell = Cell().told(node_born("i0", pool="infer", kind="inference"))
    assert cell.seen().lenders[0].history.tolist() == []
    cell.feed(load(3, "infer"))
    cell.wait(900.0)
    np.testing.assert_array_equal(cell.seen().lenders[0].history, [3.0, np.nan, np.nan, 3.0])
    cell.wait(1e6, step_s=1e6)
    assert len(cell.seen().lenders[0].history) == 576


def test_a_restart_counts_whatever_the_number_of_the_stimulus() -> None:
    cell = Cell().told(node_born("n0"))
    for number in range(30):
        cell.feed(submitted(f"j{number}"))
    cell.run("j29", n0=2)
    assert cell.seen().jobs.restarts.tolist() == [0] * 30
    cell.plan({"j29": target(n0=4)})
    assert cell.seen().jobs.restarts.tolist() == [0] * 29 + [1]


def test_rows_of_jobs_that_ended_are_not_kept_for_ever() -> None:
    cell = Cell().told(submitted("stays"))
    cell.seen()
    for number in range(150):
        cell.engine.handle(Stimulus(cell.now_s, submitted(f"j{number}")))
        cell.seen()
        cell.engine.handle(Stimulus(cell.now_s, JobCancelled(job=f"j{number}")))
    cell.engine.handle(Stimulus(cell.now_s, submitted("last")))
    assert cell.seen().jobs.ids == ("stays", "last")
    assert cell.engine._view._rows is not None
    assert len(cell.engine._view._rows[1]._jobs) < 100


def test_between_cycles_an_engine_does_what_the_next_would_have_to_do_first() -> None:
    cell = Cell().told(node_born("n0"), submitted("j0"), submitted("j1"))
    cell.run("j0", n0=2)
    engine, view, agenda = cell.engine, cell.engine._view, cell.engine._agenda
    assert engine._seen < len(engine._turn.facts)
    engine.catch_up()
    assert engine._seen == len(engine._turn.facts)
    heaps = (agenda.jobs, agenda.nodes, agenda.commands)
    assert [len(named) for named in (view._jobs, view._nodes)] == [0, 0]
    assert [len(heap._touched) for heap in heaps] == [0, 0, 0]
    begun_anew(cell.engine)


# --- sizes -------------------------------------------------------------------------------------


class _OfTide(Cell):
    def _make(self, name: str) -> Policy:
        return Tide()


def _odd(number: int, tenant: str = "odd") -> JobSubmitted:
    """A job of 64 sizes that no other job has."""
    sizes = [1 + number * 64 + k for k in range(64)]
    return JobSubmitted(
        job=f"odd-{number:03}",
        tenant=tenant,
        model="m",
        gpus_min=sizes[0],
        gpus_max=sizes[-1],
        total_steps=1000,
        samples_per_step=1.0,
        rates=[RatePoint(gpus=size, samples_per_s=float(size)) for size in sizes],
    )


@pytest.mark.parametrize("kind", [_OfFifo, _OfTide])
def test_odd_sizes_of_one_tenant_slow_down_nobody(kind: type[Cell]) -> None:
    cell = kind()
    cell.feed(node_born("n0", gpus=8))
    for number in range(300):
        cell.engine.handle(Stimulus(cell.now_s, _odd(1 + number)))
    for job in ("plain", "other"):
        cell.engine.handle(Stimulus(cell.now_s, submitted(job, gpus_min=2, gpus_max=4)))
    cell.now_s += 10.0
    cell.engine.handle(Stimulus(cell.now_s, TimePassed()))
    assert (cell.state.totals.policy_failures, cell.job("plain").size > 0) == (0, True)
    jobs = cell.seen().jobs
    assert jobs.rate.shape == (302, SIZES_MOST)
    assert jobs.sizes[:2].tolist() == [2, 4], "tenants take turns"
    able = [job for job, rate in zip(jobs.ids, jobs.rate, strict=True) if np.any(rate > 0)]
    assert able == [*jobs.ids[:254], "plain", "other"], "what jobs ask for comes first"
    why = {job: (cell.job(job).why or {}).get("rule") for job in jobs.ids}
    left_out = [job for job, rule in why.items() if rule == "sizes.too_many"]
    assert left_out == [job for job in jobs.ids if job not in able]
    for job in jobs.ids[:48]:
        cell.engine.handle(Stimulus(cell.now_s, JobCancelled(job=job)))
    jobs = cell.seen().jobs
    assert np.all(np.any(jobs.rate > 0, axis=1)), "there is room for one of each again"


def test_a_tenant_that_comes_with_sizes_of_others_alone_is_shown_some() -> None:
    cell = Cell()
    cell.feed(node_born("n0", gpus=8))
    for number in range(300):
        cell.engine.handle(Stimulus(cell.now_s, _odd(1 + number)))
    assert not cell.seen().jobs.rate[-1].any()
    late = _odd(300, tenant="late").model_copy(update={"job": "late"})
    cell.engine.handle(Stimulus(cell.now_s, late))
    assert cell.seen().jobs.rate[-1].any()


def test_sizes_that_jobs_hold_are_shown_first() -> None:
    cell = Cell()
    cell.feed(node_born("n0", gpus=8))
    cell.feed(submitted("held", gpus_min=1))
    cell.feed(submitted("goes", gpus_min=1))
    cell.run("held", n0=3)  # between two that it declares
    cell.plan({"goes": target(n0=5)})
    for number in range(300):
        cell.engine.handle(Stimulus(cell.now_s, _odd(1 + number, tenant=f"odd-{number}")))
    jobs = cell.seen().jobs
    assert jobs.sizes[:3].tolist() == [1, 3, 5]
    assert jobs.rate[:2, 1:3].tolist() == [[3.0, 5.0]] * 2


def test_no_policy_can_write_what_it_is_shown() -> None:
    cell = Cell().told(node_born("n0"), node_born("e0", pool="edge", kind="edge"), submitted())
    seen = cell.seen()
    parts: list[Any] = [seen.jobs, seen.pools, seen.nodes, seen.holdings, *seen.lenders]
    for part in parts:
        for item in fields(part):
            value = getattr(part, item.name)
            assert not isinstance(value, np.ndarray) or not value.flags.writeable, item.name


def test_a_lent_node_that_is_cordoned_gives_its_owner_all_of_it() -> None:
    cell = Cell().told(node_born("s0", pool="serve", kind="inference"), submitted("j0"))
    cell.plan(lend=["s0"])
    cell.acks()
    cell.run("j0", "serve", s0=1)
    cell.feed(request_of(cell.now_s, CordonNode(node="s0"), "r0"))
    nodes = cell.seen().nodes
    assert (nodes.gpus.tolist(), nodes.free.tolist()) == ([4], [0])


def test_who_may_not_start_yet_rests_until_its_old_order_cannot_be_obeyed() -> None:
    """Policies would keep GPUs for it, that nobody uses meanwhile."""
    cell = two_jobs()
    cell.plan({"j0": target(n0=4)})
    cell.feed(NodeDied(node="n0"))
    ordered_s = cell.now_s
    job = cell.job()
    assert job.backoff_until_s == ordered_s + 60.0
    assert cell.seen().jobs.backoff_until_s.tolist() == [ordered_s + 360.0, -np.inf]
    cell.wait(120.0)
    assert cell.seen().jobs.backoff_until_s[0] == ordered_s + 360.0
    cell.acks(kind="StopGang")  # whoever was given the order to start says that it is void
    assert cell.seen().jobs.backoff_until_s[0] == ordered_s + 60.0
    assert cell.run("j0", n1=4).size == 4
