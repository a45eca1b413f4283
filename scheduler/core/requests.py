"""What a person's request means: taken once, authorised again, done or refused with its reason.

A new verb is a model in `schemas.requests`, a line in `rights.MAY`, and a function in `VERBS` here.
Such a function does the thing, by facts, or gives the field that is wrong and why; it must do
nothing then. What a request leaves standing is in `standing`, and the core holds it: no policy
needs to know of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.core import (
    facts,
    request_cell,
    request_jobs,
    request_loans,
    request_nodes,
    request_settings,
)
from scheduler.core.cell_moments import in_cell_time
from scheduler.core.rights import Wrong, forbidden
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Requested
from scheduler.core.turn import Turn
from schemas import requests
from schemas.requests import Request

#: A request that was asked this much later than now is refused: some clock is wrong.
AHEAD_S = 300.0
#: In a cell that is this much ahead of the clock, ids are remembered as much longer. For less the
#: week is enough for which they are kept in any case (`standing.Standing.take`).
AHEAD_KEPT_S = 86_400.0
#: What does each verb: it is given the request, and its arguments.
VERBS: Mapping[type[requests.Verb], Callable[[Turn, Request, Any], Wrong | None]] = {
    requests.CordonNode: request_nodes.cordon,
    requests.UncordonNode: request_nodes.uncordon,
    requests.DrainNode: request_nodes.drain,
    requests.AcceptNode: request_nodes.accept,
    requests.RefuseNode: request_nodes.refuse,
    requests.CancelJob: request_jobs.cancel,
    requests.SubmitJob: request_jobs.submit,
    requests.HoldJob: request_jobs.hold,
    requests.ReleaseJob: request_jobs.release,
    requests.RequeueJob: request_jobs.requeue,
    requests.PrioritiseJob: request_jobs.prioritise,
    requests.ScaleJob: request_jobs.scale,
    requests.PauseCell: request_cell.pause,
    requests.ResumeCell: request_cell.resume,
    requests.ReadLog: request_jobs.read_log,
    requests.FreezeLoans: request_loans.freeze,
    requests.UnfreezeLoans: request_loans.unfreeze,
    requests.RecallLoans: request_loans.recall,
    requests.SetQuota: request_settings.set_quota,
    requests.ClearQuota: request_settings.clear_quota,
    requests.SetPolicy: request_settings.set_policy,
    requests.ClearPolicy: request_settings.clear_policy,
}


def repeated(state: ClusterState, request: Request) -> Wrong | None:
    """Find whether a request was taken before; then nothing more may come of it."""
    if request.id in state.standing.taken:
        return "id", "was taken before: of requests with one id, one takes effect"
    standing, line = state.standing, line_of(request)
    if request.expires_s <= standing.forgotten.get(line, 0.0):
        who = f"{request.subject} asked so often for {request.args.verb} since"
        return "id", f"may have been taken before: {who} that nobody can tell; ask less often"
    if request.expires_s <= standing.forgotten_s:
        return "id", "may have been taken before: too many have come since to tell; ask anew"
    return None


def line_of(request: Request) -> str:
    """Say who asks for what: what of a request is counted where very many are taken."""
    return f"{request.args.verb} {request.subject}"


def untimely(request: Request, now_s: float, latest_s: float | None = None) -> Wrong | None:
    """Find whether it is too late for a request, or too early.

    Args:
        request: What is asked for.
        now_s: The time.
        latest_s: The latest that it may be, if that is not sure.
    """
    if request.expires_s <= now_s:
        return "expires_s", f"it expired {now_s - request.expires_s:.0f} s ago; ask again"
    early_s = request.asked_s - (now_s if latest_s is None else latest_s)
    if early_s > AHEAD_S:
        return "asked_s", f"is {early_s:.0f} s ahead of the scheduler's clock; correct the clock"
    return None


def requested(turn: Turn, said: Requested) -> None:
    """Do what a person asks for, or refuse it; a request that was taken before changes nothing."""
    now_s, request = turn.state.now_s, said.request
    if repeated(turn.state, request) is not None:
        return
    wrong = untimely(request, now_s - said.ahead_s) or forbidden(turn.state, request)
    request = in_cell_time(request, now_s, said.ahead_s)
    wrong = wrong or VERBS[type(request.args)](turn, request, request.args)
    if wrong is None:
        turn.emit(facts.RequestDone(request.id, request.expires_s))
    else:
        turn.emit(facts.RequestRefused(request.id, request.expires_s, *wrong))
    _remember(turn, said)


def _remember(turn: Turn, said: Requested) -> None:
    """Note of a request that was taken what else its id is remembered by, where that matters."""
    request = said.request
    if said.ahead_s > AHEAD_KEPT_S:
        turn.emit(facts.RequestKeptLonger(request.id, said.ahead_s))
    if turn.state.standing.crowded:
        turn.emit(facts.RequestCounted(request.id, line_of(request)))
