"""Holds each column of a snapshot to the books: what it shows is what they say."""

import math
from collections import Counter, defaultdict

import numpy as np

from scheduler.policies.interface import Kind, LoanPhase, Phase, Snapshot
from tests.model.account import INF, Books, Job, Places, gpus

KINDS = {"training": Kind.TRAINING, "inference": Kind.INFERENCE, "edge": Kind.EDGE}
#: Columns of a job that are as its tenant said.
AS_SAID = ("priority", "checkpoint_cost_s", "start_cost_s", "checkpoint_mib", "memory_mib")


def check(books: Books, seen: Snapshot) -> None:
    """Hold every column of a snapshot to the books."""
    nodes = sorted(n for n, node in books.nodes.items() if node.heard and not node.dead)
    held = [(j, n) for j, job in books.jobs.items() for n in sorted(job.allocation) if n in nodes]
    _check_nodes(books, seen, nodes)
    _check_jobs(books, seen, set(nodes))
    of = seen.holdings
    who = [(seen.jobs.ids[j], seen.nodes.ids[n]) for j, n in zip(of.job, of.node, strict=True)]
    assert who == held
    assert of.gpus.tolist() == [len(books.jobs[j].allocation[n]) for j, n in held]
    _check_lenders(books, seen)


def _site(books: Books, name: str) -> tuple[str, str]:
    born = books.nodes[name].born
    return born.pool, "" if born.pool_kind == "edge" else born.agent


def _check_nodes(books: Books, seen: Snapshot, nodes: list[str]) -> None:
    taken: Places = defaultdict(set)
    sites = {_site(books, name) for name in nodes}
    for job in books.jobs.values():
        for places in (job.allocation, job.leaving, job.claim or {}):
            for name, had in places.items():
                taken[name] |= had
        sites |= {_site(books, name) for name in job.claim or job.allocation}
    shared = Counter(pool for pool, _ in sites)
    ids = {(p, a): p if shared[p] == 1 else f"{p}@{a}" for p, a in sorted(sites)}
    assert seen.pools.ids == tuple(ids.values())
    for m, site in enumerate(ids):
        there = [one for name, one in books.nodes.items() if _site(books, name) == site]
        there = [one for one in there if not one.dead]
        there = [one for one in there if one.heard] or there
        assert seen.pools.kind[m] == KINDS[there[0].born.pool_kind]
        for column in ("speed_factor", "gpu_memory_mib", "transfer_mib_per_s"):
            least = min(getattr(one.born, column) for one in there)
            assert getattr(seen.pools, column.removesuffix("_factor"))[m] == least
    assert seen.nodes.ids == tuple(nodes)
    for p, name in enumerate(nodes):
        node, shown = books.nodes[name], seen.nodes
        usable = node.born.pool_kind == "training" or node.loan == LoanPhase.LENT
        free = node.born.gpu_count - len(taken[name]) if usable else 0
        assert seen.pools.ids[shown.pool[p]] == ids[_site(books, name)]
        assert (shown.gpus[p], shown.free[p]) == (node.born.gpu_count, free), name
        assert (shown.usable[p], shown.loan[p]) == (usable, node.loan), name
        assert (shown.lent_since_s[p], shown.returned_s[p]) == (node.lent_s, node.returned_s)


def _phase(books: Books, job: Job, heard: set[str]) -> Phase:
    if job.claim is not None or job.told or job.leaving or not set(job.allocation) <= heard:
        return Phase.MOVING
    if not job.allocation:
        return Phase.WAITING
    return Phase.RUNNING if set(job.allocation) == job.ready else Phase.MOVING


def _not_before_s(job: Job) -> float:
    waits = not (job.allocation or job.leaving or job.told or job.migrates)
    return max(job.backoff_s, job.unsure_s or -math.inf) if waits else job.backoff_s


def _check_jobs(books: Books, seen: Snapshot, heard: set[str]) -> None:
    jobs, now_s = seen.jobs, books.now_s
    assert jobs.ids == tuple(books.jobs)
    sizes: set[int] = set()
    for n, (name, job) in enumerate(books.jobs.items()):
        said, goes = job.said, job.claim or job.allocation
        site = seen.pools.ids[jobs.pool[n]] if goes else None
        assert (site or "").partition("@")[0] == (_site(books, min(goes))[0] if goes else "")
        lost = job.step_now(now_s) - job.saved if job.allocation else 0.0
        unit = 1.0 if job.curve is None else job.curve["per_step"]
        found = {
            "phase": _phase(books, job, heard),
            "submit_s": job.submit_s,
            "deadline_s": said.deadline_s or INF,
            "remaining_steps": max(job.remaining(now_s), 1e-9),
            "attained_gpu_s": job.attained_gpu_s,
            "held_s": job.held_s,
            "first_start_s": job.first_s,
            "restarts": job.restarts,
            "waiting_since_s": job.waits_s,
            "requested": said.gpus or said.gpus_min,
            "size": gpus(goes),
            "held": max(gpus(job.allocation), gpus(job.leaving)),
            "changed_s": job.changed_s,
            "rate_age_s": now_s - job.rate_s,
            "checkpoint_age_steps": max(lost, 0.0) * unit,
            "backoff_until_s": _not_before_s(job),
            "refused": job.refused,
            "leaves": bool(job.told and job.claim is None),
            "edge_allowed": said.edge_allowed,
            **{name: getattr(said, name) for name in AS_SAID},
        }
        for column, value in found.items():
            shown = float(getattr(jobs, column)[n])
            same = math.isclose(shown, value, rel_tol=1e-9, abs_tol=1e-6)
            assert same, f"{name}: {column} is {shown}, not {value}"
        assert jobs.tenants[n] == said.tenant
        note = [*job.note, *[np.nan] * (4 - len(job.note))]
        assert np.array_equal(jobs.notes[n], note, equal_nan=True)
        for size, rate in zip(jobs.sizes.tolist(), jobs.rate[n].tolist(), strict=True):
            assert math.isclose(rate, job.rate(size), rel_tol=1e-9), f"{name} at {size}"
        own = {} if job.curve is None else job.curve["affinity"]
        usual = zip(seen.pools.ids, seen.pools.speed, strict=True)
        speeds = [own.get(pool.partition("@")[0], speed) for pool, speed in usual]
        assert jobs.affinity[n].tolist() == speeds
        points = [(p.gpus, 1.0) for p in said.rates] if job.curve is None else job.curve["points"]
        sizes |= {at for at, rate in points if rate}
    assert jobs.sizes.tolist() == (sorted(sizes) or [1])


def _check_lenders(books: Books, seen: Snapshot) -> None:
    owners: dict[str, list[int]] = defaultdict(list)
    for p, name in enumerate(seen.nodes.ids):
        born = books.nodes[name].born
        if born.pool_kind != "training":
            owners[born.pool if born.pool_kind == "inference" else name].append(p)
    assert [one.id for one in seen.lenders] == sorted(owners)
    slot_s = books.settings.load_slot_s
    for one in seen.lenders:
        said = books.loads.get(one.id, [])
        assert one.nodes.tolist() == owners[one.id]
        assert one.gpus_needed == (said[-1][1] if said else 0.0)
        assert one.load_age_s == (books.now_s - said[-1][0] if said else INF)
        peaks: dict[int, float] = defaultdict(float)
        for at_s, needed in said:
            peaks[int(at_s // slot_s)] = max(peaks[int(at_s // slot_s)], needed)
        if said:
            peaks.setdefault(int(books.now_s // slot_s), said[-1][1])
        slots = range(min(peaks), max(peaks) + 1) if peaks else ()
        history = [peaks.get(slot, np.nan) for slot in slots][-576:]
        assert np.array_equal(one.history, history, equal_nan=True), one.id
