"""Edge servers under deadlines: who goes there, who stays, and that no promise is broken."""

from dataclasses import replace

import numpy as np
import pytest
from scheduler.policies.parts.commitments import PROMISED
from scheduler.policies.timely import has_deadlines

from benchmarks import edge as benchmark
from scheduler.policies.interface import Kind, LoanPhase, Plan, Reason, Snapshot
from scheduler.policies.tide import Tide
from tests.property.test_policies import NOW_S, random_jobs, random_pools
from tests.snapshots import INF, Job, Pool, faults, snapshot

NOW = 10_000.0
QUIET = [0.0] * 60
LINEAR = (1.0, 2.0, 4.0, 8.0)


def job(name: str, work: float, due: float, held: str = "", gpus: int = 1, **more: object) -> Job:
    """A job due so long from now that may go to the edge; starts and changes take 30 s."""
    fixed = Job(
        name,
        work_s=work,
        rates=LINEAR,
        held={held: gpus} if held else {},
        deadline_s=NOW + due,
        edge_allowed=True,
    )
    return replace(fixed, **more)  # type: ignore[arg-type]


def see(jobs: list[Job], servers: int = 1, gpus: int = 1, **edge: object) -> Snapshot:
    """One cloud node of so many GPUs, and edge servers of half its speed that are lent."""
    there = Pool("edge", Kind.EDGE, nodes=servers, gpus=1, speed=0.5, loan=LoanPhase.LENT)
    there = replace(there, **{"history": QUIET, "transfer_mib_per_s": 50.0, **edge})  # type: ignore[arg-type]
    return snapshot([there, Pool("train", gpus=gpus)], jobs, NOW)


def promise(seen: Snapshot, *names: str) -> Snapshot:
    """Note that these were promised to be in time."""
    notes = seen.jobs.notes.copy()
    notes[[seen.jobs.ids.index(name) for name in names], 0] = PROMISED
    return replace(seen, jobs=replace(seen.jobs, notes=notes))


def plan(seen: Snapshot) -> Plan:
    assert has_deadlines(seen)
    found = Tide().plan(seen)
    assert faults(seen, found) == []
    return found


def pools(found: Plan) -> dict[str, str | None]:
    return {name: target.pool if target else None for name, target in found.targets.items()}


def reason(found: Plan, subject: str) -> Reason:
    return next(item for item in found.reasons if item.subject == subject)


def test_whom_the_cloud_has_no_room_for_goes_where_it_is_in_time() -> None:
    seen = promise(see([job("a", 3000, 3100, "train-000"), job("b", 1000, 2031)]), "a")
    found = plan(seen)
    assert pools(found) == {"b": "edge"}
    told = reason(found, "b")
    assert (told.verb, told.rule) == ("starts", "timely.edge")
    figures = {figure.name: figure.value for figure in told.figures}
    assert figures["planned_end_s"] == NOW + 2030
    assert "b" not in found.notes, "what it is promised in the cloud is nothing it needs there"


def test_nobody_goes_to_be_late() -> None:
    seen = promise(see([job("a", 3000, 3100, "train-000"), job("b", 1000, 2029)]), "a")
    assert pools(plan(seen)) == {}


def test_nobody_goes_while_the_cloud_has_room_for_all() -> None:
    found = plan(see([job("a", 3000, 9000), job("b", 1000, 9000)], gpus=2))
    assert pools(found) == {"a": "train", "b": "train"}


def test_the_way_of_a_checkpoint_counts() -> None:
    # b, stopped before, has 1000 MiB to bring: 20 s at 50 MiB/s.
    for due, goes in ((2049.0, False), (2051.0, True)):
        seen = promise(see([job("a", 3000, 3100, "train-000"), job("b", 1000, due)]), "a")
        attained = np.where(np.array(seen.jobs.ids) == "b", 100.0, 0.0)
        seen = replace(seen, jobs=replace(seen.jobs, attained_gpu_s=attained))
        assert (pools(plan(seen)) == {"b": "edge"}) is goes


def test_a_new_job_leaves_the_cloud_to_one_that_needs_it() -> None:
    """The smaller goes first, but has time for the edge; the other would be late there."""
    found = plan(see([job("small", 1000, 2100), job("tight", 1200, 1300)]))
    assert pools(found) == {"small": "edge", "tight": "train"}


def test_a_promised_job_stays_in_the_cloud() -> None:
    seen = promise(see([job("a", 1000, 5000, "train-000"), job("tight", 4000, 4500)]), "a")
    assert "a" not in pools(plan(seen))


def test_a_job_at_the_edge_stays_and_its_server_is_not_given_again() -> None:
    jobs = [job("a", 1000, 9000, "edge-000"), job("b", 3000, 3100, "train-000")]
    seen = promise(see([*jobs, job("c", 1000, 2500)]), "b")
    assert pools(plan(seen)) == {}


def test_who_does_not_fit_stays() -> None:
    running = job("a", 3000, 3100, "train-000")
    for other in (
        job("b", 1000, 9000, edge_allowed=False),
        job("b", 1000, 9000, memory_mib=20_000.0),
        job("b", 1000, 9000, sizes=(2, 4), rates=(2.0, 4.0)),
    ):
        seen = promise(see([running, other], memory_mib=16_000.0), "a")
        assert "b" not in plan(seen).targets


def test_an_empty_server_takes_a_job_without_a_deadline_until_one_needs_it() -> None:
    timed, best = job("a", 3000, 3100, "train-000"), job("best", 1000, INF)
    found = plan(promise(see([timed, best]), "a"))
    assert pools(found) == {"best": "edge"}
    assert reason(found, "best").rule == "timely.spare_edge"

    best = job("best", 1000, INF, "edge-000")
    assert pools(plan(promise(see([timed, best]), "a"))) == {}
    found = plan(promise(see([timed, best, job("b", 1000, 2500)]), "a"))
    assert pools(found) == {"b": "edge", "best": None}
    late = job("b", 1000, 2035)  # 2030 s at an empty server; this one has to be cleared first
    assert pools(plan(promise(see([timed, best, late]), "a"))) == {}
    told = reason(found, "best")
    assert (told.verb, told.rule, told.lost_to) == ("preempts", "timely.edge_needed", ("b",))


def test_an_empty_server_goes_before_one_that_is_held() -> None:
    jobs = [job("a", 3000, 3100, "train-000"), job("best", 1000, INF, "edge-000")]
    seen = promise(see([*jobs, job("b", 1000, 2500)], servers=2), "a")
    target = plan(seen).targets["b"]
    assert target is not None
    assert target.placement == (("edge-001", 1),)


def test_a_server_that_its_owner_wants_back_is_left() -> None:
    seen = see([job("a", 1000, 9000, "edge-000")], history=[*QUIET, 1.0])
    found = plan(seen)
    assert list(found.reclaim) == ["edge-000"]
    assert pools(found) == {"a": "train"}


def test_idle_servers_are_asked_for() -> None:
    jobs = [job("a", 3000, 3100, "train-000"), job("b", 1000, 2500)]
    found = plan(promise(see(jobs, loan=LoanPhase.OWNED), "a"))
    assert found.lend == ("edge-000",)


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_keeps_every_promise_beside_the_edge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = [pool for pool in random_pools(rng) if pool.kind == Kind.EDGE or pool.id == "train"]
    jobs = [replace(one, priority=0) for one in random_jobs(rng, places)]
    seen = snapshot(places, jobs, now_s=NOW_S)
    assert faults(seen, Tide().plan(seen)) == []


def test_edge_servers_do_not_cost_deadlines() -> None:
    ratios = [
        benchmark.run(benchmark.Point("tide", servers, gpus=16, jobs=40))["deadline_ratio"]
        for servers in (0, 4, 16)
    ]
    assert ratios[0] <= ratios[1] <= ratios[2]
    assert ratios[0] < ratios[2]
