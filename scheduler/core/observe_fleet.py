"""What each report of the fleet means: nodes that are born and die, and what owners need.

Reports may come twice, late, or about allocations long gone; those change nothing.
"""

from scheduler.core import facts
from scheduler.core.leave import UP, is_overdue, node_lost, release_parts, saves
from scheduler.core.lenders import agent_of, known_as, lender_id
from scheduler.core.loans import call_back
from scheduler.core.observe import of_gang
from scheduler.core.state import Node
from scheduler.core.stimuli import Cause
from scheduler.core.transitions import LoanState, NodeState
from scheduler.core.turn import Turn
from schemas import commands, events

#: Nodes that are away, or about to leave; those that are called back count as their owner's.
_AWAY = (LoanState.LENDING, LoanState.LENT)


def node_born(turn: Turn, born: events.NodeBorn, cause: Cause) -> None:
    """Take a node in, and square what it says it holds with the ledger."""
    state = turn.state
    node = state.nodes.get(born.node)
    begun: dict[tuple[str, int], list[int]] = {}
    if node is not None:
        if cause.is_before(node.bootid, node.said_s):
            return
        changed = (node.pool, node.gpu_count) != (born.pool, born.gpu_count)
        if changed and node.state is not NodeState.DEAD:
            # Of a gang on several nodes, the order to begin was void with the first of them; while
            # the one to stop has no answer, its agent may be about to read that.
            begun = _on_the_way(turn, node, "StartGang", "ScaleGang", "StopGang")
            node_lost(turn, node, "came back with another inventory")
        elif node.state is NodeState.DEAD:
            begun = _begun_unheard(turn, born, cause.said_s)
    turn.emit(
        facts.NodeJoined(
            node=born.node,
            agent=born.agent,
            pool=born.pool,
            pool_kind=born.pool_kind,
            gpu_count=born.gpu_count,
            gpu_type=born.gpu_type,
            gpu_memory_mib=born.gpu_memory_mib,
            speed_factor=born.speed_factor,
            transfer_mib_per_s=born.transfer_mib_per_s,
            bootid=cause.bootid,
            said_s=cause.said_s,
        )
    )
    node = state.nodes[born.node]
    _drop_what_ended(turn, node, born, cause.said_s)
    for gang in born.held:
        _square(turn, node, gang)
    for (job, epoch), gpus in begun.items():
        _keep_for_stray(turn, node, job, epoch, gpus)
    _square_loan(turn, node, born.loan)


def node_died(turn: Turn, death: events.NodeDied, cause: Cause) -> None:
    """Give a node up, unless it was born again since that was said: its work would be lost."""
    node = turn.state.nodes.get(death.node)
    if node is None or node.state is NodeState.DEAD or cause.is_before(node.bootid, node.said_s):
        return
    node_lost(turn, node, death.reason or "reported dead")


def _drop_what_ended(turn: Turn, node: Node, born: events.NodeBorn, said_s: float) -> None:
    """Release what the agent does not run, unless it may be about to read an order for it.

    Or has read it since: it may have said this long ago, while that order was still to be obeyed.
    """
    said = {(gang.job, gpu) for gang in born.held for gpu in gang.gpus}
    on_the_way = _on_the_way(turn, node, "StartGang", "ScaleGang")
    # An order to begin that is void may still be obeyed, until the one to stop is.
    void, jobs = _on_the_way(turn, node, "StopGang"), turn.state.jobs
    on_the_way |= {
        (job, epoch): gpus
        for (job, epoch), gpus in void.items()
        if job in jobs and said_s < jobs[job].unsure_until_s
    }
    parts: dict[str, list[int]] = {}
    for gpu, holder in enumerate(node.holder):
        if holder is None or (holder, gpu) in said:
            continue
        if (holder, node.epoch[gpu]) not in on_the_way:
            parts.setdefault(holder, []).append(gpu)
    release_parts(turn, node, parts, "its agent no longer runs it")


def _on_the_way(turn: Turn, node: Node, *kinds: str) -> dict[tuple[str, int], list[int]]:
    """Give the GPUs of a node, by job and epoch, that an order of these kinds is open about."""
    orders = {
        (holder, command.data["epoch"])
        for holder in dict.fromkeys(node.holder)
        if holder is not None
        for kind in kinds
        for command in turn.state.opened(kind, holder)
    }
    found: dict[tuple[str, int], list[int]] = {}
    for gpu, (holder, epoch) in enumerate(zip(node.holder, node.epoch, strict=True)):
        if holder is not None and (holder, epoch) in orders:
            found.setdefault((holder, epoch), []).append(gpu)
    return found


def _begun_unheard(
    turn: Turn, born: events.NodeBorn, said_s: float
) -> dict[tuple[str, int], list[int]]:
    """Give the GPUs of orders to begin that were void with the node, and that its agent may obey.

    An agent may say goodbye and begin again while nobody hears it. What was ordered in between is
    its next start's, and until that is told to stop it may have begun it.
    """
    found: dict[tuple[str, int], list[int]] = {}
    for job in turn.state.unsure_on(born.node):
        stopped = any(
            order.agent == born.agent and order.data["epoch"] == job.start_epoch
            for order in turn.state.opened("StopGang", job.id)
        )
        if stopped and said_s < job.unsure_until_s and job.unsure_gpus is not None:
            found[job.id, job.start_epoch] = job.unsure_gpus[born.node]
    return found


def _square(turn: Turn, node: Node, gang: events.GangHeld) -> None:
    """Stop a gang that should not run (any more), or that has not heard it."""
    state = turn.state
    job = state.jobs.get(gang.job)
    told = any(
        command.agent == node.agent and command.data["epoch"] >= gang.epoch
        for command in state.opened("StopGang", gang.job)
    )
    if job is not None and of_gang(job, gang.epoch):
        if all(node.holder[gpu] == job.id for gpu in gang.gpus):
            if job.state not in UP and not told:
                # An agent that began anew, or was asked, does not lose for it what it saves.
                may_save = saves(job) and not is_overdue(turn, job)
                turn.stop_gang(job, job.stop_reason, checkpoint=may_save)
            return
    _keep_for_stray(turn, node, gang.job, gang.epoch, gang.gpus)
    if not told:
        order = commands.StopGang(
            job=gang.job, epoch=gang.epoch, reason="superseded", checkpoint=False, grace_s=0.0
        )
        turn.command(node.agent, order, gang.job)


def _keep_for_stray(turn: Turn, node: Node, job: str, epoch: int, gpus: list[int]) -> None:
    """Note what a gang that was given up has: nobody gets it, and its job does not start."""
    fresh = [gpu for gpu in gpus if gpu < node.gpu_count and node.holder[gpu] is None]
    if fresh:
        turn.emit(facts.StrayFound(node.id, job, epoch, fresh))


def _square_loan(turn: Turn, node: Node, said: str | None) -> None:
    """End a loan that the node is not on, and enter the one that it is on, to be called back."""
    ends = node.loan_state in (LoanState.LENT, LoanState.RECLAIMING)
    if node.loan_state is LoanState.RETURNING:
        ends = said is not None  # else the word that it is back is on its way
    if ends and said != node.loan and not any(node.holder):
        turn.emit(facts.LoanLost(node.id))
    if said is not None and node.loan is None:
        call_back(turn, node, said)


def load(turn: Turn, report: events.InferenceLoad, cause: Cause) -> None:
    """Remember what an owner needs; what was overtaken by a later word says nothing any more."""
    state, agent = turn.state, agent_of(cause.source)
    if report.node is not None:
        name, lender = report.node, state.lenders.get(report.node)
    else:
        name = lender_id(state, report.pool, agent)
        lender = known_as(state, name, report.pool, agent)
    if lender is not None and cause.source == lender.source:
        if cause.is_before(lender.bootid, lender.said_s):
            return
        if cause.bootid == lender.bootid and cause.sequence < lender.sequence:
            return
    if lender is not None and lender.id != name:
        turn.emit(facts.LenderRenamed(lender.id, name))
    pool = state.pools.get(report.pool)
    names = [report.node] if report.node is not None else pool.nodes if pool is not None else []
    nodes = [state.nodes[one] for one in names if one in state.nodes]
    shared = name not in (report.node, report.pool)
    theirs = [node for node in nodes if not shared or node.agent == agent]
    owned = sum(node.gpu_count for node in theirs)
    before = 0.0 if lender is None else lender.gpus_needed
    turn.emit(
        facts.LoadObserved(
            lender=name,
            # More than it owns nobody can serve with; what it needs may be more, within reason.
            gpus_needed=float(min(report.gpus_needed, 10 * owned)),
            gpus_serving=float(min(report.gpus_serving, owned)),
            shortfall_gpu_s=report.shortfall_gpu_s,
            bootid=cause.bootid,
            source=cause.source,
            sequence=cause.sequence,
            said_s=cause.said_s,
        )
    )
    alive = [node for node in theirs if node.state is NodeState.ALIVE]
    here = [node.gpu_count for node in alive if node.loan_state not in _AWAY]
    # Once: a policy that does not call back what it could need not be asked at each word.
    short = before <= sum(here) < report.gpus_needed
    if turn.settings.short_owners_at_once and short and len(here) < len(alive):
        turn.emit(facts.OwnerShort(name))
