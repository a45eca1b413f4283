"""Desired against observed: a plan's targets become claims on exact GPUs, as far as they may.

What is safe now is done at once (`carry_out`, `loans`), the rest as GPUs come free.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.core import facts
from scheduler.core.carry_out import advance
from scheduler.core.claims import gives_nothing, stays, usable
from scheduler.core.drains import attributed
from scheduler.core.facts import Allocation
from scheduler.core.leave import stop
from scheduler.core.loans import lend, start_reclaims
from scheduler.core.pauses import barred
from scheduler.core.quotas import Ledger
from scheduler.core.set_sizes import resize
from scheduler.core.state import Job, policy_name
from scheduler.core.transitions import JobState, NodeState
from scheduler.core.turn import Turn
from scheduler.policies.checked import MalformedPlan, check_reasons
from scheduler.policies.interface import OF_NODES, Plan, Reason, Target
from schemas.values import MAX_NODES_PER_GANG

#: The most allocations that one plan changes; the next plan changes the others. With what bounds
#: reasons it bounds a decision, of which one entry of the journal holds 64 MiB.
CHANGES_MAX = 8192
#: The most that is said in one decision of jobs that stay as they are; what was left out is told
#: with the next plans. Counted in parts of reasons: rules, figures, names, needs.
REASONS_MAX = 100_000
_ADJUSTABLE = (JobState.QUEUED, JobState.RUNNING)
#: What a plan says of jobs that it does not change.
_STAYS = ("waits", "keeps")


def adopt(turn: Turn, plan: Plan) -> None:
    """Make the plan's targets claims, ask for and call back nodes, then do what is safe now."""
    plan = _first_changes(turn, _as_asked(turn, plan))
    _explain(turn, plan.reasons)
    _note(turn, plan)
    start_reclaims(turn, plan.reclaim)
    _decline(turn, plan.decline)
    if plan.targets:
        _claim(turn, plan)
    for name in plan.lend:
        lend(turn, name)
    _explain(turn, list(resize(turn, plan.limits)))
    advance(turn)


def _claim(turn: Turn, plan: Plan) -> None:
    """Make targets claims, as far as jobs may have them; say of the others why not."""
    wanted = _wanted(turn, plan)
    bars = {job.id: barred(turn.state, job, target.size) for job, target in wanted if target}
    possible = [
        (job, target)
        for job, target in wanted
        if not bars.get(job.id) and _possible(turn, job, target)
    ]
    giving = _giving(possible)
    # Those that give up GPUs first: what they leave is claimed by those after them.
    for job, target in possible:
        if target is None and job.state is JobState.RUNNING:
            stop(turn, job, "preempted")
    refused = {job.id: True for job, _ in wanted}
    ledger, beyond = Ledger(turn.state), dict[str, Reason]()
    for job, target in possible:
        if target is not None and (why := ledger.refusal(job, target.size)) is not None:
            beyond[job.id] = why
            continue
        allocation = {} if target is None else _pick(turn, job, target, giving)
        refused[job.id] = allocation is None
        if target is not None and allocation and allocation != job.allocation:
            pool, before = turn.state.nodes[min(allocation)].pool, ledger.counts(job)
            turn.emit(facts.TargetSet(job.id, pool, allocation, _verb(job, pool, target)))
            ledger.take(job, before)
    turn.explain(*beyond.values())
    for job, target in wanted:
        if target is not None and refused[job.id] and job.id not in beyond:
            verb = "keeps" if job.allocation else "waits"
            turn.because(job.id, verb, bars[job.id] or "plan.refused", gpus=target.size)
    news = {name: new for name, new in refused.items() if turn.state.jobs[name].refused != new}
    if news:
        turn.emit(facts.RefusalsNoted(news))


def _as_asked(turn: Turn, plan: Plan) -> Plan:
    """Leave out what people keep the cell from, with its reasons."""
    standing, jobs = turn.state.standing, turn.state.jobs
    if "loans" in standing.pauses:
        reasons = tuple(reason for reason in plan.reasons if reason.verb != "lends")
        plan = replace(plan, lend=(), reasons=reasons)
    # Why a job keeps its size that is to have another, `resize` says.
    away = {name for name, only in standing.sizes.items() if jobs[name].size != only.gpus}
    if away:
        kept = (one for one in plan.reasons if one.verb != "keeps" or one.subject not in away)
        plan = replace(plan, reasons=tuple(kept))
    if standing.drains:
        plan = replace(plan, reasons=tuple(attributed(turn.state, plan.reasons)))
    # What takes GPUs of closed nodes, which nobody else may have, is not done, nor told.
    vain = {n for n, to in plan.targets.items() if gives_nothing(turn.state, jobs[n], to)}
    if vain:
        told = (*_STAYS, *OF_NODES)
        done = (one for one in plan.reasons if one.subject not in vain or one.verb in told)
        plan = replace(plan, reasons=tuple(done))
    return plan


def _first_changes(turn: Turn, plan: Plan) -> Plan:
    """Leave what is more than one decision may hold, with its reasons, to the next plan."""
    if len(plan.targets) <= CHANGES_MAX:
        return plan
    changes = [
        (target is not None, job.number, job.id)
        for job, target in _wanted(turn, plan)
        if dict(() if target is None else target.placement)
        != {name: len(gpus) for name, gpus in job.allocation.items()}
    ]
    late = {name for _, _, name in sorted(changes)[CHANGES_MAX:]}
    targets = {name: target for name, target in plan.targets.items() if name not in late}
    reasons = tuple(one for one in plan.reasons if one.subject not in late or one.verb in OF_NODES)
    return replace(plan, targets=targets, reasons=reasons)


def _note(turn: Turn, plan: Plan) -> None:
    jobs, writer = turn.state.jobs, policy_name(turn.state)
    notes = {
        name: list(note)
        for name, note in plan.notes.items()
        if (jobs[name].note, jobs[name].note_by) != (list(note), writer)
    }
    if notes:
        turn.emit(facts.JobsNoted(notes, writer))


def _decline(turn: Turn, names: Sequence[str]) -> None:
    """Let go of waiting jobs that the policy refuses for good."""
    for name in names:
        job = turn.state.jobs.get(name)
        if job is not None and job.state is JobState.QUEUED and job.target is None:
            turn.emit(facts.JobDeclined(name))


def _explain(turn: Turn, reasons: Iterable[Reason]) -> None:
    """Record the reasons that are news, if all of them can be.

    Raises:
        MalformedPlan: one cannot; none was recorded.
    """
    jobs, old_s, news = turn.state.jobs, turn.state.now_s - 600.0, []
    room = REASONS_MAX
    try:
        for reason in reasons:
            if reason.verb in _STAYS:
                job = jobs.get(reason.subject)
                if job is not None and (why := job.why) is not None and job.why_at_s > old_s:
                    if why["rule"] == reason.rule and why["lost_to"] == [*reason.lost_to]:
                        continue
                room -= 1 + len(reason.figures) + len(reason.lost_to) + len(reason.needs)
                if room < 0:
                    continue
            news.append(reason)
    except (AttributeError, TypeError) as error:
        raise MalformedPlan(f"reasons: {error}") from None
    check_reasons(news)
    turn.explain(*news)


def _wanted(turn: Turn, plan: Plan) -> list[tuple[Job, Target | None]]:
    jobs, state = turn.state.jobs, turn.state
    named = [(jobs[name], target) for name, target in plan.targets.items()]
    return [
        (job, target)
        for job, target in sorted(named, key=lambda pair: pair[0].number)
        if job.state in _ADJUSTABLE
        and job.target is None
        and not job.leaving
        and all(state.nodes[name].state is NodeState.ALIVE for name in job.allocation)
        and not gives_nothing(state, job, target)
    ]


def _giving(wanted: list[tuple[Job, Target | None]]) -> dict[str, list[int]]:
    """By node, the GPUs that named jobs will have left when the plan is carried out."""
    giving: dict[str, list[int]] = {}
    for job, target in wanted:
        counts = dict(target.placement) if target is not None else {}
        for name, gpus in job.allocation.items():
            if left := sorted(gpus)[counts.get(name, 0) :]:
                giving.setdefault(name, []).extend(left)
    return giving


def _possible(turn: Turn, job: Job, target: Target | None) -> bool:
    """Whether the job may have this on these nodes, whoever holds their GPUs now."""
    state = turn.state
    if target is None:
        return True
    if not job.allocation:
        if state.now_s < job.unsure_until_s:
            return False
    elif dict(target.placement) == {n: len(g) for n, g in job.allocation.items()}:
        return True
    if len(target.placement) > MAX_NODES_PER_GANG:
        return False  # no agent could read the order
    first = state.nodes[target.placement[0][0]]
    pool, size = state.pools[first.pool], 0
    for name, count in target.placement:
        node, size = state.nodes[name], size + count
        if node.agent != first.agent or node.gpu_memory_mib < job.memory_mib:
            return False
        kept = count <= len(job.allocation.get(name, ())) and stays(state, node)
        if not usable(state, node) and not kept:
            return False
    alone = pool.kind != "edge" or (len(target.placement) == 1 and job.edge_allowed)
    runs = job.curve is None or job.curve["affinity"].get(pool.id, 1.0) > 0.0
    return alone and runs and job.gpus_min <= size <= job.gpus_max


def _pick(
    turn: Turn, job: Job, target: Target, giving: Mapping[str, list[int]]
) -> Allocation | None:
    """Choose GPUs for the target: its own, then free ones, then those being given up."""
    allocation: Allocation = {}
    for name, count in sorted(target.placement):
        node = turn.state.nodes[name]
        claim = node.claim
        chosen = sorted(job.allocation[name])[:count] if name in job.allocation else []
        if len(chosen) < count:
            pairs = enumerate(zip(node.holder, claim, strict=True))
            free = [gpu for gpu, (who, by) in pairs if who is None and by is None]
            chosen += free[: count - len(chosen)]
        for gpu in sorted(giving.get(name, ())):
            if len(chosen) < count and claim[gpu] is None and gpu not in chosen:
                chosen.append(gpu)
        if len(chosen) < count:
            return None
        allocation[name] = sorted(chosen)
    return allocation


def _verb(job: Job, pool: str, target: Target) -> str:
    if not job.allocation:
        return "starts"
    if job.pool != pool:
        return "migrates"
    if target.size == job.size:
        return "moves"
    return "scales_out" if target.size > job.size else "scales_in"
