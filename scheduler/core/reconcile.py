"""Desired against observed: turn a plan into the next commands that are safe now.

A plan's targets become claims on exact GPUs. A claim is carried out only when every GPU in it is
free or already the job's own: so no gang starts half, nobody is evicted for a job that then does
not fit, and what was freed for a job is not given to another.
"""

from collections.abc import Mapping, Sequence

from scheduler.core import facts
from scheduler.core.facts import Cells
from scheduler.core.leave import drop_claim, stop
from scheduler.core.state import Job, Node, policy_name, site_id
from scheduler.core.transitions import JobState, LoanState, NodeState
from scheduler.core.turn import Turn
from scheduler.policies.interface import Plan, Target
from schemas.commands import GangSpec, LendNode, ReturnNode, ScaleGang, StartGang
from schemas.events import RatePoint
from schemas.programs import Program
from schemas.values import NodeGpus

#: The longest time a command can name.
TEN_YEARS_S = 315_360_000.0
_ADJUSTABLE = (JobState.QUEUED, JobState.RUNNING)


def adopt(turn: Turn, plan: Plan) -> None:
    """Make the plan's targets claims, ask for and call back nodes, then do what is safe now."""
    _explain(turn, plan)
    _note(turn, plan)
    _start_reclaims(turn, plan.reclaim)
    _decline(turn, plan.decline)
    wanted = _wanted(turn, plan)
    giving = _giving(wanted)
    # Those that give up GPUs first: what they leave is claimed by those after them.
    for job, target in wanted:
        if target is None and job.state is JobState.RUNNING:
            stop(turn, job, "preempted")
    for job, target in wanted:
        if target is not None:
            cells = _pick(turn, job, target, giving)
            if cells is None:
                turn.because(job.id, "waits", "plan.refused", gpus=target.size)
            elif cells != job.cells:
                pool = turn.state.nodes[min(cells)].pool
                verb = _verb(job, pool, target.size)
                turn.emit(facts.TargetSet(job.id, pool, cells, verb))
    for name in plan.lend:
        _lend(turn, name)
    advance(turn)


def _note(turn: Turn, plan: Plan) -> None:
    jobs, writer = turn.state.jobs, policy_name(turn.state)
    notes = {
        name: list(note)
        for name, note in plan.notes.items()
        if name in jobs and (jobs[name].note, jobs[name].note_by) != (list(note), writer)
    }
    if notes:
        turn.emit(facts.JobsNoted(notes, writer))


def _decline(turn: Turn, names: Sequence[str]) -> None:
    """Let go of waiting jobs that the policy refuses for good."""
    for name in names:
        job = turn.state.jobs.get(name)
        if job is not None and job.state is JobState.QUEUED and job.target is None:
            turn.emit(facts.JobDeclined(name))


def _explain(turn: Turn, plan: Plan) -> None:
    for reason in plan.reasons:
        job = turn.state.jobs.get(reason.subject)
        if job is not None and job.why is not None and reason.verb in ("waits", "keeps"):
            same = (job.why["rule"], job.why["lost_to"]) == (reason.rule, list(reason.lost_to))
            if same and turn.state.now_s - job.why_at_s < 600.0:
                continue
        turn.explain(reason)


def _wanted(turn: Turn, plan: Plan) -> list[tuple[Job, Target | None]]:
    jobs = turn.state.jobs
    named = [(jobs[name], target) for name, target in plan.targets.items() if name in jobs]
    return [
        (job, target)
        for job, target in sorted(named, key=lambda pair: pair[0].number)
        if job.state in _ADJUSTABLE
        and job.target is None
        and not job.leaving
        and all(turn.state.nodes[n].state is NodeState.ALIVE for n in job.cells)
    ]


def _giving(wanted: list[tuple[Job, Target | None]]) -> dict[str, list[int]]:
    """By node, the GPUs that named jobs will have left when the plan is carried out."""
    giving: dict[str, list[int]] = {}
    for job, target in wanted:
        counts = dict(target.placement) if target is not None else {}
        for name, gpus in job.cells.items():
            if left := sorted(gpus)[counts.get(name, 0) :]:
                giving.setdefault(name, []).extend(left)
    return giving


def _pick(turn: Turn, job: Job, target: Target, giving: Mapping[str, list[int]]) -> Cells | None:
    """Choose GPUs for the target: its own, then free ones, then those being given up."""
    state = turn.state
    if not job.gpus_min <= target.size <= job.gpus_max:
        return None
    cells: Cells = {}
    agents = set()
    for name, count in sorted(target.placement):
        node = state.nodes.get(name)
        if node is None or not usable(turn, node):
            return None
        if target.pool not in (node.pool, site_id(node.pool, node.agent)):
            return None
        if count < 1 or name in cells:
            return None
        agents.add(node.agent)
        chosen = sorted(job.cells.get(name, []))[:count]
        free = [
            gpu
            for gpu in range(node.gpu_count)
            if node.holder[gpu] is None and node.claim[gpu] is None
        ]
        leaving = [gpu for gpu in sorted(giving.get(name, [])) if node.claim[gpu] is None]
        for gpu in (*free, *leaving):
            if len(chosen) < count and gpu not in chosen:
                chosen.append(gpu)
        if len(chosen) < count:
            return None
        cells[name] = sorted(chosen)
    if len(agents) != 1:
        return None
    pool = state.pools[state.nodes[min(cells)].pool]
    return cells if len(cells) == 1 or pool.kind != "edge" else None


def _verb(job: Job, pool: str, size: int) -> str:
    if not job.cells:
        return "starts"
    if job.pool != pool:
        return "migrates"
    if size == job.size:
        return "moves"
    return "scales_out" if size > job.size else "scales_in"


def usable(turn: Turn, node: Node) -> bool:
    """Whether training may place work on the node now."""
    if node.state is not NodeState.ALIVE:
        return False
    kind = turn.state.pools[node.pool].kind
    return kind == "training" or node.loan_state is LoanState.LENT


def advance(turn: Turn) -> None:
    """Carry out every claim whose GPUs are all free, oldest claim first."""
    state = turn.state
    for name in list(state.claimants):
        job = state.jobs[name]
        if job.target is None or not all(usable(turn, state.nodes[n]) for n in job.target):
            continue
        holders = {state.nodes[n].holder[gpu] for n, gpus in job.target.items() for gpu in gpus}
        if job.state in (JobState.QUEUED, JobState.MIGRATING):
            if holders == {None}:
                _start(turn, job, job.target)
        elif job.state is JobState.RUNNING and not job.leaving:
            agents = {state.nodes[n].agent for n in (*job.target, *job.cells)}
            if len(agents) == 1 and job.pool == job.target_pool:
                if holders <= {None, job.id}:
                    _scale(turn, job, job.target)
            elif holders == {None}:
                stop(turn, job, "migrated")


def _placement(cells: Cells) -> list[NodeGpus]:
    return [
        NodeGpus.model_construct(node=name, gpus=list(gpus)) for name, gpus in sorted(cells.items())
    ]


def _start(turn: Turn, job: Job, cells: Cells) -> None:
    node = turn.state.nodes[next(iter(cells))]
    first = job.checkpoint_step == 0
    transfer_s = 0.0 if first else job.checkpoint_mib / node.transfer_mib_per_s
    transfer_s = min(transfer_s, TEN_YEARS_S)
    order = StartGang.model_construct(
        job=job.id,
        epoch=job.epoch + 1,
        placement=_placement(cells),
        spec=GangSpec.model_construct(
            model=job.model,
            total_steps=job.total_steps,
            samples_per_step=job.samples_per_step,
            rates=[
                RatePoint.model_construct(gpus=int(size), samples_per_s=rate)
                for size, rate in job.rates
            ],
            checkpoint_mib=job.checkpoint_mib,
            checkpoint_cost_s=job.checkpoint_cost_s,
            start_cost_s=job.start_cost_s,
            program=None if job.program is None else Program.model_validate(job.program),
        ),
        step=job.checkpoint_step,
        transfer_s=transfer_s,
    )
    copied = {name: list(gpus) for name, gpus in sorted(cells.items())}
    turn.emit(facts.GangStarting(job.id, job.epoch + 1, node.pool, copied, job.checkpoint_step))
    turn.command(node.agent, order, job.id)


def _scale(turn: Turn, job: Job, cells: Cells) -> None:
    copied = {name: list(gpus) for name, gpus in sorted(cells.items())}
    agent = turn.state.nodes[next(iter(copied))].agent
    order = ScaleGang.model_construct(job=job.id, epoch=job.epoch + 1, placement=_placement(copied))
    turn.emit(facts.GangScaling(job.id, job.epoch + 1, copied))
    turn.command(agent, order, job.id)


# --- loans -------------------------------------------------------------------------------------


def _lend(turn: Turn, name: str) -> None:
    state = turn.state
    node = state.nodes.get(name)
    if node is None or node.loan is not None or node.state is not NodeState.ALIVE:
        return
    if state.pools[node.pool].kind == "training":
        return
    loan = f"loan-{state.loans}"
    turn.emit(facts.LoanRequested(loan, name))
    turn.command(node.agent, LendNode(node=name, loan=loan), name)


def _start_reclaims(turn: Turn, reclaim: Mapping[str, float]) -> None:
    state = turn.state
    for name in sorted(reclaim):
        node = state.nodes.get(name)
        if node is None or node.loan_state is not LoanState.LENT:
            continue
        due_s = max(reclaim[name], state.now_s)
        turn.emit(facts.ReclaimStarted(name, due_s))
        for claimant in list(state.claimants):
            if name in (state.jobs[claimant].target or {}):
                drop_claim(turn, state.jobs[claimant], f"{name} goes back to its owner")


def clear_reclaimed(turn: Turn) -> None:
    """Get gangs that nobody moved off nodes that go back; hand empty nodes over."""
    for name in list(turn.state.on_loan):
        node = turn.state.nodes[name]
        if node.loan is None or node.state is not NodeState.ALIVE:
            continue
        if node.loan_state is LoanState.RECLAIMING:
            _clear(turn, node)
        elif node.loan_state is LoanState.RETURNING:
            if not turn.state.opened("ReturnNode", node.id):
                turn.command(node.agent, ReturnNode(node=node.id, loan=node.loan), node.id)
        elif node.loan_state is LoanState.LENDING and not turn.state.opened("LendNode", node.id):
            loan = node.loan
            turn.emit(facts.LoanRefused(node.id, "never acknowledged"))
            # It may have been heard all the same.
            turn.command(node.agent, ReturnNode(node=node.id, loan=loan), node.id)


def _clear(turn: Turn, node: Node) -> None:
    state = turn.state
    holders = sorted({holder for holder in node.holder if holder is not None})
    # One that waits for GPUs elsewhere may wait until a grace before the owner needs the node.
    pressing = state.now_s + turn.settings.grace_s >= (node.due_s or 0.0)
    for job in (state.jobs[name] for name in holders if name in state.jobs):
        here = node.id in job.cells and (job.target is None or pressing)
        if here and job.state in (JobState.STARTING, JobState.RUNNING):
            turn.because(job.id, "preempts", "loan.reclaimed", due_s=node.due_s or 0.0)
            stop(turn, job, "preempted")
    if not holders and node.loan is not None:
        turn.emit(facts.ReturnOrdered(node.id))
        turn.command(node.agent, ReturnNode(node=node.id, loan=node.loan), node.id)
