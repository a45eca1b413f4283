"""Requests about tenants' quotas and the policy: what each does."""

from scheduler.core import facts, recalls
from scheduler.core.rights import Wrong
from scheduler.core.stimuli import LeaderStarted
from scheduler.core.turn import Turn
from scheduler.policies.registry import gives_back, name_of
from schemas.requests import ClearPolicy, ClearQuota, Request, SetPolicy, SetQuota

#: The most names that a refusal lists.
_NAMED = 5


def set_quota(turn: Turn, request: Request, args: SetQuota) -> Wrong | None:
    """Give a tenant a quota in place of the one that it has, or that is configured."""
    if args.guaranteed > args.gpus:
        return "args.guaranteed", f"is {args.guaranteed}, more than gpus, which is {args.gpus}"
    fact = facts.QuotaSet(
        args.tenant,
        args.gpus,
        args.guaranteed,
        args.jobs,
        request.id,
        request.subject,
        request.reason,
    )
    turn.emit(fact)
    return None


def clear_quota(turn: Turn, request: Request, args: ClearQuota) -> Wrong | None:
    """Remove the quota that was set for a tenant, so that the configured one holds again."""
    if args.tenant not in turn.state.standing.quotas:
        return "args.tenant", f"no quota was set for {args.tenant}; the configuration's holds"
    turn.emit(facts.QuotaCleared(args.tenant, request.id, request.subject))
    return None


def set_policy(turn: Turn, request: Request, args: SetPolicy) -> Wrong | None:
    """Let another policy decide from now on."""
    wrong = _unfit(turn, request, args.line, "args.line", recall=args.recall)
    if wrong is None:
        turn.emit(facts.PolicyChanged(args.line, request.id, request.subject, request.reason))
    return wrong


def clear_policy(turn: Turn, request: Request, args: ClearPolicy) -> Wrong | None:
    """Go back to the policy that the configuration names."""
    chosen = turn.state.standing.policy
    if chosen is None:
        return "args.verb", "no policy was chosen; the one that is configured decides"
    wrong = _unfit(turn, request, chosen.configured, "args.recall", recall=args.recall)
    if wrong is None:
        turn.emit(facts.PolicyCleared(request.id, request.subject))
    return wrong


def chosen_policy(turn: Turn, started: LeaderStarted) -> str:
    """Say which policy decides under a new leader: the one that was chosen, unless pinned."""
    chosen = turn.state.standing.policy
    if chosen is None:
        return started.policy
    if started.pinned:
        turn.emit(facts.PolicyCleared("", ""))
        return started.policy
    if chosen.configured != started.policy:
        turn.emit(facts.PolicyConfigured(started.policy))
    return turn.state.leader.policy


def _unfit(turn: Turn, request: Request, line: str, field: str, *, recall: bool) -> Wrong | None:
    """Find why a policy cannot take over; call loans back first, if that is asked for."""
    try:
        turn.policies(line)
    except ValueError as error:
        return field, str(error)
    out = recalls.outstanding(turn.state)
    if recall:
        recalls.recall(turn, out, request.id, request.subject, recalls.soon_s(turn))
    elif out and not gives_back(name_of(line)):
        names = ", ".join(out[:_NAMED]) + (", ..." if len(out) > _NAMED else "")
        return field, (
            f"{name_of(line)} never gives nodes back that are on loan, and {len(out)} are "
            f"({names}); ask with recall, so that they are called back first"
        )
    return None
