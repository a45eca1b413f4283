"""How claims end: carried out, refused with a reason, or given up on agents that do not answer.

A claim waits for gangs to leave its GPUs. Those that were told to leave do so, or their agent does
not answer. One that runs and has a claim of its own runs on until that is carried out, but leaves
at once where another claim waits for its GPUs: so no claim waits for a claim, in a chain or in a
circle, and each waits for saves alone. Any other gang stays, and what waits for it is refused at
once, as is what waits for a node that takes no work.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from scheduler.core.facts import Allocation
from scheduler.core.leave import UP, drop_claim, transfer_s
from scheduler.core.state import ClusterState, Job, Node
from scheduler.core.transitions import LEAVING, JobState, LoanState, NodeState
from scheduler.core.turn import Turn
from scheduler.policies.interface import Figure, Reason, Target


def usable(state: ClusterState, node: Node) -> bool:
    """Whether training may place work on the node now."""
    if node.state is not NodeState.ALIVE or node.id in state.standing.cordons:
        return False
    return state.pools[node.pool].kind == "training" or node.loan_state is LoanState.LENT


def stays(state: ClusterState, node: Node) -> bool:
    """Whether a closed node keeps the gangs that it has: it is not drained and goes to nobody."""
    if node.state is not NodeState.ALIVE or node.id not in state.standing.cordons:
        return False
    if node.id in state.standing.drains:
        return False
    return state.pools[node.pool].kind == "training" or node.loan_state is LoanState.LENT


def may_have(state: ClusterState, job: Job, node: Node, gpus: Collection[int]) -> bool:
    """Whether a job may be given these GPUs of a node, or keep those of a closed one."""
    own = job.allocation.get(node.id, ())
    return usable(state, node) or (stays(state, node) and set(gpus) <= {*own})


def gives_nothing(state: ClusterState, job: Job, target: Target | None) -> bool:
    """Whether a plan takes a gang's GPUs of closed nodes alone, which nobody else may have."""
    if not job.allocation or not all(stays(state, state.nodes[n]) for n in job.allocation):
        return False
    return all(name in job.allocation for name, _ in (() if target is None else target.placement))


def still_there(state: ClusterState) -> set[str]:
    """Name the jobs that wait while a gang of theirs that was given up has GPUs: none may start.

    Only who was told to start a gang is believed that it has one. Each ends: it was told to leave,
    its agent is asked about it, and if that is silent its lease ends.
    """
    found = set[str]()
    for node in (state.nodes[name] for name in state.stray_nodes):
        for job in (state.jobs[who] for who in dict.fromkeys(node.holder) if who in state.jobs):
            if node.agent in job.agents and not (job.allocation or job.leaving):
                found.add(job.id)
    return found


def holders(state: ClusterState, job: Job) -> Iterator[tuple[str, int, str]]:
    """Give (node, GPU, who) of what others still hold of the job's claim."""
    for name, gpus in (job.target or {}).items():
        holder = state.nodes[name].holder
        for gpu in gpus:
            who = holder[gpu]
            if who is not None and who != job.id:
                yield name, gpu, who


def refuse(turn: Turn, job: Job, why: str, lost_to: tuple[str, ...] = ()) -> None:
    """End a claim that cannot be carried out, and say so to the policy and to whoever asks."""
    gpus = Figure("gpus", float(sum(map(len, (job.target or {}).values()))))
    drop_claim(turn, job, why, refused=True)
    verb = "keeps" if job.allocation else "waits"
    turn.explain(Reason(job.id, verb, "plan.refused", (gpus,), lost_to))


# --- what cannot be carried out ----------------------------------------------------------------


class _Outlook(NamedTuple):
    waits: set[str]  #: Running gangs with claims of their own that are in its way.
    why: str = ""  #: Why it can never be carried out; empty while it can.
    lost_to: tuple[str, ...] = ()


def end_hopeless(turn: Turn) -> dict[str, list[str]]:
    """Refuse what can never be carried out; give, by gang in the way, the claims that wait."""
    state, changed_claims, looked = turn.state, turn.changed_claims, dict[str, _Outlook]()
    while True:
        changed_claims.note(turn.facts)
        found = {name: _outlook(state, state.jobs[name]) for name in changed_claims.affected(state)}
        looked.update(found)
        hopeless = {name: outlook for name, outlook in found.items() if outlook.why}
        for name, outlook in hopeless.items():
            refuse(turn, state.jobs[name], outlook.why, outlook.lost_to)
        if not hopeless:
            break
    changed_claims.end_look()
    in_way: dict[str, list[str]] = {}
    for name, outlook in looked.items():
        if state.jobs[name].target is not None:
            for other in outlook.waits:
                in_way.setdefault(other, []).append(name)
    return in_way


def _outlook(state: ClusterState, job: Job) -> _Outlook:
    waits: set[str] = set()
    for name, gpus in (job.target or {}).items():
        node = state.nodes[name]
        if not may_have(state, job, node, gpus):
            return _Outlook(waits, f"{name} {_closed(state, node)}")
    for name, gpu, who in holders(state, job):
        other = state.jobs.get(who)
        if other is None or other.state not in UP or gpu not in other.allocation.get(name, ()):
            continue  # it was told to leave
        if other.target is None or gpu in other.target.get(name, ()):
            return _Outlook(waits, f"{name}/{gpu} stays with {who}", (who,))
        waits.add(who)
    return _Outlook(waits)


def _closed(state: ClusterState, node: Node) -> str:
    """Say why a node takes no work."""
    if node.state is not NodeState.ALIVE:
        return "is silent"
    cordon = state.standing.cordons.get(node.id)
    return "goes to its owner" if cordon is None else f"is cordoned by {cordon.by}"


# --- who leaves at once ------------------------------------------------------------------------


def leave_now(turn: Turn, in_way: Mapping[str, Sequence[str]]) -> Iterator[tuple[Job, Allocation]]:
    """Name the gangs that leave before their own claims are carried out, oldest job first.

    With each come the GPUs that it goes on with, see `_cheapest`; none if it is stopped.
    """
    jobs = turn.state.jobs
    for job in sorted((jobs[name] for name in in_way), key=lambda job: job.number):
        if job.state is not JobState.RUNNING or job.target is None or job.leaving:
            continue
        kept = _cheapest(turn, job)
        others = sorted(in_way[job.id], key=lambda name: jobs[name].number)
        verb = "scales_in" if kept else "migrates"
        turn.explain(Reason(job.id, verb, "claims.in_way", (), tuple(others[:3])))
        yield job, kept


def _cheapest(turn: Turn, job: Job) -> Allocation:
    """Give the GPUs that the gang goes on with where that wastes least GPU time; none: it stops.

    A gang that is stopped pauses once, for its save, its fetch and its start, and stands idle while
    those that it waits for save. One that shrinks to what it has and will have trains meanwhile,
    but pauses twice: now, and when it grows. A change of size is a save and a start too, but for
    programs that change it in place. So a gang shrinks if it does that in place, or if the others
    save for longer than it pauses; else it is stopped, which also gets it where it shall be sooner.
    """
    kept, jobs = _kept(job), turn.state.jobs
    if not kept or (job.program is not None and job.program.get("resize") == "in_place"):
        return kept
    saves_s = [jobs[who].checkpoint_cost_s for _, _, who in holders(turn.state, job) if who in jobs]
    idle_s = transfer_s(turn.state, job) + max(saves_s, default=0.0)
    return kept if job.checkpoint_cost_s + job.start_cost_s < idle_s else {}


def _kept(job: Job) -> Allocation:
    """Give what a gang has and will have, if that is a size with a known speed; else nothing."""
    target = job.target or {}
    kept = {
        name: both
        for name, gpus in sorted(job.allocation.items())
        if (both := sorted(set(gpus) & set(target.get(name, ()))))
    }
    size = sum(map(len, kept.values()))
    points = job.rates if job.curve is None else job.curve["points"]
    able = size >= job.gpus_min and any(gpus == size and rate > 0 for gpus, rate in points)
    return kept if able else {}


# --- agents that do not answer -----------------------------------------------------------------


def give_up(turn: Turn) -> None:
    """Drop claims on GPUs that gangs should have left `claim_ttl_s` ago.

    One that only waits for another claim is not dropped here: it is refused if that one is.
    """
    state, ttl_s = turn.state, turn.settings.claim_ttl_s
    left_behind = still_there(state) if state.claimants else set()
    for name in list(state.claimants):
        job = state.jobs[name]
        # One that is on its way off its GPUs keeps what it leaves them for.
        if job.state in LEAVING or job.target_since_s + ttl_s > state.now_s:
            continue
        told = [(who, _told_s(turn, job, node, gpu, who)) for node, gpu, who in holders(state, job)]
        if job.leaving:  # it shrank for others, and its own workers do not go
            told.append((name, job.changed_s or 0.0))
        if name in left_behind:  # nor does what it ran before
            told.append((name, max(job.target_since_s, job.changed_s or 0.0)))
        late = sorted({who for who, told_s in told if told_s + ttl_s <= state.now_s})
        if late:
            drop_claim(turn, job, "its GPUs were not free in time", refused=True, timed_out=True)
            verb = "keeps" if job.allocation else "waits"
            turn.explain(Reason(name, verb, "claims.unanswered", (), tuple(late[:3])))


def _told_s(turn: Turn, job: Job, node: str, gpu: int, who: str) -> float:
    """When the agent of a holder was told that it shall leave the GPU, its work stored."""
    other = turn.state.jobs.get(who)
    if other is None:
        return job.target_since_s
    if gpu in other.leaving.get(node, ()):
        return other.changed_s or 0.0
    if other.state in LEAVING:
        return other.stop_since_s + transfer_s(turn.state, other)
    return math.inf if gpu in other.allocation.get(node, ()) else job.target_since_s
