"""Desired against observed: turn a plan into the next commands that are safe now.

A plan's targets become claims on exact GPUs. A claim is carried out only when every GPU in it is
free or already the job's own: so no gang starts half, nobody is evicted for a job that then does
not fit, and what was freed for a job is not given to another. That each ends: `claims`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.core import claims, facts
from scheduler.core.claims import usable
from scheduler.core.facts import Allocation
from scheduler.core.leave import stop
from scheduler.core.orders import gang_spec
from scheduler.core.state import Job, Node, policy_name
from scheduler.core.stimuli import next_epoch
from scheduler.core.transitions import JobState, LoanState, NodeState
from scheduler.core.turn import Turn
from scheduler.policies.checked import MalformedPlan, check_reasons
from scheduler.policies.interface import Plan, Reason, Target
from schemas.commands import LendNode, ReturnNode, ScaleGang, StartGang
from schemas.values import NodeGpus

#: The longest time a command can name.
TEN_YEARS_S = 315_360_000.0
#: The most allocations that one plan changes; the next plan changes the others. With what bounds
#: reasons it bounds a decision, of which one entry of the journal holds 64 MiB.
CHANGES_MAX = 8192
#: The most that is said in one decision of jobs that stay as they are; what was left out is told
#: with the next plans. Counted in parts of reasons: rules, figures, names, needs.
REASONS_MAX = 100_000
_ADJUSTABLE = (JobState.QUEUED, JobState.RUNNING)


def adopt(turn: Turn, plan: Plan) -> None:
    """Make the plan's targets claims, ask for and call back nodes, then do what is safe now."""
    plan = _first_changes(turn, plan)
    _explain(turn, plan.reasons)
    _note(turn, plan)
    _start_reclaims(turn, plan.reclaim)
    _decline(turn, plan.decline)
    wanted = _wanted(turn, plan)
    possible = [(job, target) for job, target in wanted if _possible(turn, job, target)]
    giving = _giving(possible)
    # Those that give up GPUs first: what they leave is claimed by those after them.
    for job, target in possible:
        if target is None and job.state is JobState.RUNNING:
            stop(turn, job, "preempted")
    refused = {job.id: True for job, _ in wanted}
    for job, target in possible:
        allocation = {} if target is None else _pick(turn, job, target, giving)
        refused[job.id] = allocation is None
        if target is not None and allocation and allocation != job.allocation:
            pool = turn.state.nodes[min(allocation)].pool
            turn.emit(facts.TargetSet(job.id, pool, allocation, _verb(job, pool, target)))
    for job, target in wanted:
        if target is not None and refused[job.id]:
            verb = "keeps" if job.allocation else "waits"
            turn.because(job.id, verb, "plan.refused", gpus=target.size)
    news = {name: new for name, new in refused.items() if turn.state.jobs[name].refused != new}
    if news:
        turn.emit(facts.RefusalsNoted(news))
    for name in plan.lend:
        _lend(turn, name)
    advance(turn)


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
    reasons = tuple(reason for reason in plan.reasons if reason.subject not in late)
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
            if reason.verb in ("waits", "keeps"):
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
    jobs, nodes = turn.state.jobs, turn.state.nodes
    named = [(jobs[name], target) for name, target in plan.targets.items()]
    return [
        (job, target)
        for job, target in sorted(named, key=lambda pair: pair[0].number)
        if job.state in _ADJUSTABLE
        and job.target is None
        and not job.leaving
        and not (
            job.allocation and any(nodes[n].state is not NodeState.ALIVE for n in job.allocation)
        )
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
    first = state.nodes[target.placement[0][0]]
    pool, size = state.pools[first.pool], 0
    for name, count in target.placement:
        node, size = state.nodes[name], size + count
        if node.agent != first.agent or node.gpu_memory_mib < job.memory_mib:
            return False
        if not usable(state, node):
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


def advance(turn: Turn, *, anew: bool = True) -> None:
    """Carry out every claim whose GPUs are all free, oldest claim first; see that others end.

    All are looked at, or unless `anew` those alone that may have changed: the outcome is the same.
    """
    if not turn.state.claimants and not turn.state.starts_deferred:
        return
    turn.changed_claims.note(turn.facts)
    _carry_out(turn, turn.changed_claims.begin_look(turn.state, anew=anew))
    for job, kept in claims.leave_now(turn, claims.end_hopeless(turn)):
        if kept:
            _scale(turn, job, kept, keeps_claim=True)
        else:
            stop(turn, job, "migrated")


def _carry_out(turn: Turn, names: Sequence[str]) -> None:
    state, deferred = turn.state, False
    for name in names:
        job = state.jobs[name]
        starts = job.state in (JobState.QUEUED, JobState.MIGRATING)
        if job.target is None or (starts and deferred):
            continue
        if not all(usable(state, state.nodes[n]) for n in job.target):
            continue
        holders = {state.nodes[n].holder[gpu] for n, gpus in job.target.items() for gpu in gpus}
        if starts:
            if holders == {None}:
                # One entry of the journal holds all that a turn decides.
                deferred = turn.starts >= turn.settings.starts_per_cycle
                if not deferred:
                    _start(turn, job, job.target)
        elif job.state is JobState.RUNNING and not job.leaving:
            agents = {state.nodes[n].agent for n in (*job.target, *job.allocation)}
            if len(agents) == 1 and job.pool == job.target_pool:
                if holders <= {None, job.id}:
                    _scale(turn, job, job.target)
            elif holders == {None}:
                stop(turn, job, "migrated")
    if deferred != state.starts_deferred:
        turn.emit(facts.StartsDeferred(deferred))


def _placement(allocation: Allocation) -> list[NodeGpus]:
    return [
        NodeGpus.model_construct(node=name, gpus=list(gpus))
        for name, gpus in sorted(allocation.items())
    ]


def _epoch(turn: Turn, job: Job) -> int:
    """Give the epoch of the job's next allocation: agents may know some that the log has lost."""
    return next_epoch(job.epoch, turn.state.now_s)


def _start(turn: Turn, job: Job, allocation: Allocation) -> None:
    node = turn.state.nodes[next(iter(allocation))]
    epoch, first = _epoch(turn, job), job.checkpoint_step == 0
    transfer_s = 0.0 if first else job.checkpoint_mib / node.transfer_mib_per_s
    transfer_s = min(transfer_s, TEN_YEARS_S)
    order = StartGang.model_construct(
        job=job.id,
        epoch=epoch,
        placement=_placement(allocation),
        spec=gang_spec(job),
        step=job.checkpoint_step,
        transfer_s=transfer_s,
    )
    copied = {name: list(gpus) for name, gpus in sorted(allocation.items())}
    turn.starts += 1
    turn.emit(facts.GangStarting(job.id, epoch, node.pool, copied, job.checkpoint_step))
    turn.command(node.agent, order, job.id)


def _scale(turn: Turn, job: Job, allocation: Allocation, *, keeps_claim: bool = False) -> None:
    copied = {name: list(gpus) for name, gpus in sorted(allocation.items())}
    agent = turn.state.nodes[next(iter(copied))].agent
    epoch = _epoch(turn, job)
    order = ScaleGang.model_construct(job=job.id, epoch=epoch, placement=_placement(copied))
    turn.emit(facts.GangScaling(job.id, epoch, copied, keeps_claim))
    turn.command(agent, order, job.id)


# --- loans -------------------------------------------------------------------------------------


def _lend(turn: Turn, name: str) -> None:
    state = turn.state
    node = state.nodes.get(name)
    if node is None or node.loan is not None or node.state is not NodeState.ALIVE:
        return
    if state.pools[node.pool].kind == "training":
        return
    loan = f"loan-{state.leader.epoch}-{state.loans}"
    turn.emit(facts.LoanRequested(loan, name))
    turn.command(node.agent, LendNode(node=name, loan=loan), name)


def _start_reclaims(turn: Turn, reclaim: Mapping[str, float]) -> None:
    state = turn.state
    for name in sorted(reclaim):
        node = state.nodes.get(name)
        if node is None or node.loan_state is not LoanState.LENT:
            continue
        turn.emit(facts.ReclaimStarted(name, max(reclaim[name], state.now_s)))


def clear_reclaimed(turn: Turn, *, anew: bool = True) -> None:
    """Get gangs that nobody moved off nodes that go back; hand empty nodes over.

    All are looked at, or unless `anew` those alone that this turn has touched: without a fact about
    it, or about a job there, nothing but time gives a node more to do.
    """
    for node in turn.state.changing_loans(None if anew else _touched(turn)):
        if node.loan is None or node.state is not NodeState.ALIVE:
            continue
        if node.loan_state is LoanState.RECLAIMING:
            _clear(turn, node)
        elif node.loan_state is LoanState.RETURNING:
            if not turn.state.is_open("ReturnNode", node.id):
                turn.command(node.agent, ReturnNode(node=node.id, loan=node.loan), node.id)
        elif node.loan_state is LoanState.LENDING and not turn.state.is_open("LendNode", node.id):
            loan = node.loan
            turn.emit(facts.LoanRefused(node.id, "never acknowledged"))
            # It may have been heard all the same.
            turn.command(node.agent, ReturnNode(node=node.id, loan=loan), node.id)


def _touched(turn: Turn) -> set[str]:
    """Name the nodes that the facts of this turn are about, and those of their jobs."""
    found = set[str]()
    for fact in turn.facts:
        if (node := getattr(fact, "node", None)) is not None:
            found.add(node)
        job = turn.state.jobs.get(getattr(fact, "job", ""))
        if job is not None:
            found.update(job.allocation, job.leaving)
    return found


def _clear(turn: Turn, node: Node) -> None:
    state = turn.state
    holders = sorted({holder for holder in node.holder if holder is not None})
    # One that waits for GPUs elsewhere may wait until a grace before the owner needs the node.
    pressing = state.now_s + turn.settings.grace_s >= (node.due_s or 0.0)
    for job in (state.jobs[name] for name in holders if name in state.jobs):
        here = node.id in job.allocation and (job.target is None or pressing)
        if here and job.state in (JobState.STARTING, JobState.RUNNING):
            turn.because(job.id, "preempts", "loan.reclaimed", due_s=node.due_s or 0.0)
            stop(turn, job, "preempted")
    if not holders and node.loan is not None:
        turn.emit(facts.ReturnOrdered(node.id))
        turn.command(node.agent, ReturnNode(node=node.id, loan=node.loan), node.id)
