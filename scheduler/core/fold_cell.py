"""Folds of facts about freezes and recalls of loans, quotas, and the policy that people chose."""

from scheduler.core import facts
from scheduler.core.registry import folds, lift, node_of
from scheduler.core.standing import ChosenPolicy, Freeze, Quota, Recall
from scheduler.core.state import ClusterState
from scheduler.core.transitions import InvalidTransition


@folds(facts.LoansFrozen)
def _loans_frozen(state: ClusterState, fact: facts.LoansFrozen) -> None:
    freeze = Freeze(fact.request, fact.by, fact.reason, state.now_s, fact.until_s)
    state.standing.freezes[fact.lender] = freeze
    state.dirty = True


@folds(facts.LoansUnfrozen)
def _loans_unfrozen(state: ClusterState, fact: facts.LoansUnfrozen) -> None:
    lift(state, state.standing.freezes, fact.lender, fact, "not frozen")


@folds(facts.LoanRecalled)
def _loan_recalled(state: ClusterState, fact: facts.LoanRecalled) -> None:
    node = node_of(state, fact)
    if node.loan is None:
        raise InvalidTransition(node.id, "not on loan", "LoanRecalled")
    recall = Recall(fact.request, fact.by, fact.due_s, state.number)
    state.standing.recalls[node.id] = recall
    state.dirty = True


@folds(facts.OwnerUnheard)
def _owner_unheard(state: ClusterState, fact: facts.OwnerUnheard) -> None:
    if fact.lender in state.standing.unheard:
        raise InvalidTransition(fact.lender, "unheard", "OwnerUnheard")
    state.standing.unheard[fact.lender] = state.now_s


@folds(facts.OwnerShort)
def _owner_short(state: ClusterState, fact: facts.OwnerShort) -> None:
    if fact.lender not in state.lenders:
        raise InvalidTransition(fact.lender, "unknown", "OwnerShort")
    state.dirty = True


@folds(facts.QuotaSet)
def _quota_set(state: ClusterState, fact: facts.QuotaSet) -> None:
    state.standing.quotas[fact.tenant] = Quota(
        fact.gpus,
        fact.guaranteed,
        fact.jobs,
        fact.request,
        fact.by,
        fact.reason,
        state.now_s,
    )
    state.dirty = True


@folds(facts.QuotaCleared)
def _quota_cleared(state: ClusterState, fact: facts.QuotaCleared) -> None:
    lift(state, state.standing.quotas, fact.tenant, fact, "without a quota")


@folds(facts.PolicyChanged)
def _policy_changed(state: ClusterState, fact: facts.PolicyChanged) -> None:
    before = state.standing.policy
    configured = state.leader.policy if before is None else before.configured
    chosen = ChosenPolicy(configured, fact.request, fact.by, fact.reason, state.now_s)
    state.standing.policy = chosen
    state.leader.policy = fact.line
    state.dirty = True


@folds(facts.PolicyConfigured)
def _policy_configured(state: ClusterState, fact: facts.PolicyConfigured) -> None:
    _chosen(state, fact).configured = fact.line


@folds(facts.PolicyCleared)
def _policy_cleared(state: ClusterState, fact: facts.PolicyCleared) -> None:
    state.leader.policy = _chosen(state, fact).configured
    state.standing.policy = None
    state.dirty = True


def _chosen(state: ClusterState, fact: object) -> ChosenPolicy:
    if state.standing.policy is None:
        raise InvalidTransition("the policy", "as configured", type(fact).__name__)
    return state.standing.policy
