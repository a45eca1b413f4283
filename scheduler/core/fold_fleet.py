"""Folds of facts about nodes, owners, loans, commands and cycles."""

from bisect import bisect_left, insort
from typing import Any

from scheduler.core import facts
from scheduler.core.registry import check_gpus, folds, node_of
from scheduler.core.state import (
    SLOTS,
    ClusterState,
    Leader,
    Lender,
    Node,
    OpenCommand,
    Pool,
    slot_s,
)
from scheduler.core.transitions import (
    COMMAND,
    HOLDING,
    LOAN,
    NODE,
    InvalidTransition,
    LoanState,
    NodeState,
    step,
)

#: An agent that names a higher epoch of a gang is wrong: no command could name one above it.
EPOCH_BELIEVED = 2**52


@folds(facts.LeaderChanged)
def _leader_changed(state: ClusterState, fact: facts.LeaderChanged) -> None:
    before_s = slot_s(state)
    state.leader = Leader(fact.leader, fact.leader_epoch, fact.policy, dict(fact.settings))
    state.standing.unheard.clear()  # while nobody led, nobody listened
    if slot_s(state) != before_s:  # what is remembered is in slots of another length
        for lender in state.lenders.values():
            lender.history, lender.slot = [], -1
    state.dirty = True


# --- nodes -------------------------------------------------------------------------------------


@folds(facts.NodeJoined)
def _node_joined(state: ClusterState, fact: facts.NodeJoined) -> None:
    node = state.nodes.get(fact.node)
    if node is None:
        node = state.nodes[fact.node] = Node(
            fact.node,
            fact.agent,
            fact.pool,
            fact.gpu_count,
            fact.gpu_type,
            fact.gpu_memory_mib,
            fact.speed_factor,
            fact.transfer_mib_per_s,
            fact.bootid,
            holder=[None] * fact.gpu_count,
            epoch=[0] * fact.gpu_count,
            claim=[None] * fact.gpu_count,
            said_s=fact.said_s,
        )
        state.gpus_alive += node.gpu_count
    else:
        after = step(NODE, node.id, node.state, "NodeJoined")
        if node.state is NodeState.DEAD:
            # Nothing is held on a dead node, so that it may come back with another inventory.
            state.gpus_alive += fact.gpu_count
            node.gpu_count = fact.gpu_count
            node.holder, node.epoch = [None] * fact.gpu_count, [0] * fact.gpu_count
            node.claim = [None] * fact.gpu_count
            if node.pool != fact.pool:
                state.pools[node.pool].nodes.remove(node.id)
                node.pool = fact.pool
        node.state, node.lease_end_s = after, None
        node.agent, node.bootid, node.said_s = fact.agent, fact.bootid, fact.said_s
        node.gpu_type, node.gpu_memory_mib = fact.gpu_type, fact.gpu_memory_mib
        node.speed_factor, node.transfer_mib_per_s = fact.speed_factor, fact.transfer_mib_per_s
    pool = state.pools.setdefault(node.pool, Pool(node.pool, fact.pool_kind))
    place = bisect_left(pool.nodes, node.id)
    if pool.nodes[place : place + 1] != [node.id]:
        pool.nodes.insert(place, node.id)
    state.dirty = True


@folds(facts.NodeSilenced)
def _node_silenced(state: ClusterState, fact: facts.NodeSilenced) -> None:
    node = node_of(state, fact)
    node.state = step(NODE, node.id, node.state, "NodeSilenced")
    node.lease_end_s = fact.lease_end_s
    state.dirty = True


@folds(facts.NodeReturned)
def _node_returned(state: ClusterState, fact: facts.NodeReturned) -> None:
    node = node_of(state, fact)
    node.state = step(NODE, node.id, node.state, "NodeReturned")
    node.lease_end_s = None
    state.dirty = True


@folds(facts.NodeLost)
def _node_lost(state: ClusterState, fact: facts.NodeLost) -> None:
    node = node_of(state, fact)
    node.state = step(NODE, node.id, node.state, "NodeLost")
    node.lease_end_s = None
    state.gpus_alive -= node.gpu_count
    state.dirty = True


@folds(facts.StrayFound)
def _stray_found(state: ClusterState, fact: facts.StrayFound) -> None:
    node = node_of(state, fact)
    check_gpus(node, fact.gpus, fact)
    for gpu in fact.gpus:
        if node.holder[gpu] is None:
            node.holder[gpu], node.epoch[gpu] = fact.job, fact.epoch
            state.gpus_held += 1
    state.totals.strays += 1
    if node.id not in state.stray_nodes:
        state.stray_nodes = sorted([*state.stray_nodes, node.id])
    # It may be from before this journal began: only a higher epoch will be obeyed.
    job = state.jobs.get(fact.job)
    if job is not None and job.state not in HOLDING and fact.epoch <= EPOCH_BELIEVED:
        job.epoch = max(job.epoch, fact.epoch)


@folds(facts.LenderRenamed)
def _lender_renamed(state: ClusterState, fact: facts.LenderRenamed) -> None:
    lender = state.lenders.pop(fact.lender, None)
    if lender is None:
        raise InvalidTransition(fact.lender, "unknown", "LenderRenamed")
    if (gone := state.lenders.get(fact.to)) is not None:
        state.gpus_serving -= gone.served
    lender.id = fact.to
    state.lenders[fact.to] = lender
    state.standing.unheard.pop(fact.lender, None)


@folds(facts.LoadObserved)
def _load_observed(state: ClusterState, fact: facts.LoadObserved) -> None:
    lender = state.lenders.get(fact.lender)
    if lender is None:
        lender = state.lenders[fact.lender] = Lender(fact.lender)
    if fact.bootid != lender.bootid:
        lender.bootid, lender.shortfall_gpu_s = fact.bootid, 0.0
    lender.source, lender.sequence, lender.said_s = fact.source, fact.sequence, fact.said_s
    state.totals.inference_shortfall_gpu_s += max(
        0.0, fact.shortfall_gpu_s - lender.shortfall_gpu_s
    )
    lender.shortfall_gpu_s = max(lender.shortfall_gpu_s, fact.shortfall_gpu_s)
    lender.gpus_needed, lender.at_s = fact.gpus_needed, state.now_s
    state.standing.unheard.pop(fact.lender, None)
    slot = int(state.now_s // slot_s(state))
    if slot != lender.slot:
        missing = 0 if lender.slot < 0 else min(SLOTS, slot - lender.slot - 1)
        lender.history = [*lender.history, *([None] * missing), fact.gpus_needed][-SLOTS:]
        lender.slot = slot
    elif (peak := lender.history[-1]) is None or fact.gpus_needed > peak:
        lender.history[-1] = fact.gpus_needed
    state.gpus_serving += min(fact.gpus_needed, fact.gpus_serving) - lender.served
    lender.served = min(fact.gpus_needed, fact.gpus_serving)


# --- loans and commands ------------------------------------------------------------------------


@folds(facts.LoanRequested)
def _loan_requested(state: ClusterState, fact: facts.LoanRequested) -> None:
    node = node_of(state, fact)
    if node.loan is not None:
        raise InvalidTransition(node.id, f"on loan {node.loan}", "LoanRequested")
    node.loan, node.loan_state = fact.loan, LoanState.LENDING
    state.note_loan(node)
    insort(state.on_loan, node.id)
    node.loan_since_s, node.due_s = state.now_s, None
    state.loans += 1


def _loan(state: ClusterState, fact: Any) -> Node:
    node = node_of(state, fact)
    if node.loan_state is None:
        raise InvalidTransition(node.id, "not on loan", type(fact).__name__)
    node.loan_state = step(LOAN, node.id, node.loan_state, type(fact).__name__)
    state.note_loan(node)
    return node


@folds(facts.LoanGranted)
def _loan_granted(state: ClusterState, fact: facts.LoanGranted) -> None:
    node = _loan(state, fact)
    node.loan_since_s = state.now_s
    state.dirty = True
    state.totals.loans_granted += 1
    state.gpus_loaned += node.gpu_count


@folds(facts.ReclaimStarted)
def _reclaim_started(state: ClusterState, fact: facts.ReclaimStarted) -> None:
    _loan(state, fact).due_s = fact.due_s


@folds(facts.ReturnOrdered)
def _return_ordered(state: ClusterState, fact: facts.ReturnOrdered) -> None:
    _loan(state, fact)


@folds(facts.LoanReturned)
def _loan_returned(state: ClusterState, fact: facts.LoanReturned) -> None:
    node = _loan(state, fact)
    state.totals.loans_reclaimed += 1
    state.totals.reclaims_late += node.due_s is not None and state.now_s > node.due_s
    state.gpus_loaned -= node.gpu_count
    _loan_over(state, node)


@folds(facts.LoanRefused)
def _loan_refused(state: ClusterState, fact: facts.LoanRefused) -> None:
    _loan_over(state, _loan(state, fact))


@folds(facts.LoanLost)
def _loan_lost(state: ClusterState, fact: facts.LoanLost) -> None:
    before = node_of(state, fact).loan_state
    node = _loan(state, fact)
    if before is not LoanState.LENDING:
        state.gpus_loaned -= node.gpu_count
    _loan_over(state, node)


def _loan_over(state: ClusterState, node: Node) -> None:
    node.loan, node.loan_state, node.due_s = None, None, None
    state.standing.recalls.pop(node.id, None)
    state.note_loan(node)
    state.dirty = True
    state.on_loan.remove(node.id)
    node.returned_s = state.now_s


@folds(facts.CommandIssued)
def _command_issued(state: ClusterState, fact: facts.CommandIssued) -> None:
    if fact.command in state.commands:
        raise InvalidTransition(fact.command, "open", "CommandIssued")
    state.open(
        OpenCommand(
            fact.command,
            fact.kind,
            fact.agent,
            fact.subject,
            fact.data,
            fact.expires_s,
            sent_s=state.now_s,
        )
    )
    state.totals.commands += 1


@folds(facts.CommandRepeated)
def _command_repeated(state: ClusterState, fact: facts.CommandRepeated) -> None:
    command = _command(state, fact)
    command.tries, command.sent_s = command.tries + 1, state.now_s


@folds(facts.CommandDone)
@folds(facts.CommandRefused)
@folds(facts.CommandExpired)
def _command_closed(state: ClusterState, fact: Any) -> None:
    command = _command(state, fact)
    job = state.jobs.get(command.subject)
    match command.kind, fact:
        case "StartGang", facts.CommandExpired() if job is not None:
            job.unsure_until_s = command.expires_s  # it may be void before its time is up
            placement = command.data["placement"]
            state.note_unsure(job, {part["node"]: list(part["gpus"]) for part in placement})
        case "StopGang", facts.CommandDone() if job is not None:
            # Only whoever was given the order to start it can say that nothing of it begins.
            if command.agent in job.agents and command.data["epoch"] >= job.start_epoch:
                job.unsure_until_s = 0.0
                state.note_unsure(job, None)
        case _:
            pass
    state.close(command)


def _command(state: ClusterState, fact: Any) -> OpenCommand:
    command = state.commands.get(fact.command)
    if command is None:
        raise InvalidTransition(fact.command, "closed", type(fact).__name__)
    command.state = step(COMMAND, command.id, command.state, type(fact).__name__)
    return command


@folds(facts.CycleRan)
def _cycle_ran(state: ClusterState, fact: facts.CycleRan) -> None:
    state.dirty, state.next_cycle_s = False, fact.next_s
    state.last_cycle_s, state.cycle_number = state.now_s, state.number


@folds(facts.PolicyFailed)
def _policy_failed(state: ClusterState, _: facts.PolicyFailed) -> None:
    state.totals.policy_failures += 1
