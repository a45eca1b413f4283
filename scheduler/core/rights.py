"""Who may ask for what: role x verb x whose job. Pure; the engine asks here before it does a thing.

Whoever signs a request says who asks, in which role, as whose member; that is believed. What the
role may do is decided here, so that no gateway can allow more.
"""

from collections.abc import Mapping

from scheduler.core.state import ClusterState
from schemas.requests import (
    CancelJob,
    HoldJob,
    ReadLog,
    ReleaseJob,
    Request,
    RequeueJob,
    Role,
    SubmitJob,
)

#: The field of a request that is wrong, and why.
Wrong = tuple[str, str]

_ADMIN: tuple[Role, ...] = ("admin",)
_OPERATE: tuple[Role, ...] = ("operator", "admin")
_EVERYBODY: tuple[Role, ...] = ("tenant", "operator", "admin")
#: By verb, the roles that may ask for it; a tenant for its own jobs alone.
MAY: Mapping[str, tuple[Role, ...]] = {
    "node.cordon": _OPERATE,
    "node.uncordon": _OPERATE,
    "node.drain": _OPERATE,
    "node.accept": _OPERATE,
    "node.refuse": _OPERATE,
    "job.cancel": _EVERYBODY,
    "job.submit": _EVERYBODY,
    "job.hold": _EVERYBODY,
    "job.release": _EVERYBODY,
    "job.requeue": _EVERYBODY,
    "job.priority": _OPERATE,
    "job.scale": _OPERATE,
    "cell.pause": _OPERATE,
    "cell.resume": _OPERATE,
    "job.logs": _EVERYBODY,
    "loans.freeze": _OPERATE,
    "loans.unfreeze": _OPERATE,
    "loans.recall": _OPERATE,
    "quota.set": _ADMIN,
    "quota.clear": _ADMIN,
    "policy.set": _ADMIN,
    "policy.clear": _ADMIN,
}


def forbidden(state: ClusterState, request: Request) -> Wrong | None:
    """Find why the subject may not ask for this; None if it may."""
    args = request.args
    roles = MAY[args.verb]
    if request.role not in roles:
        return "role", f"is {request.role}, but {args.verb} is for {' or '.join(roles)}"
    if request.role != "tenant":
        return None
    if isinstance(args, SubmitJob) and args.spec.tenant != request.tenant:
        why = f"is {args.spec.tenant}, but {request.subject} submits for {request.tenant}"
        return "args.spec.tenant", why
    if isinstance(args, CancelJob | HoldJob | ReadLog | ReleaseJob | RequeueJob):
        job = state.jobs.get(args.job)
        if job is not None and job.tenant != request.tenant:
            return "args.job", f"{job.id} is another tenant's, not {request.tenant}'s"
    if isinstance(args, ReleaseJob):
        return _of_operators(state, args.job)
    return None


def _of_operators(state: ClusterState, job: str) -> Wrong | None:
    """Find whether a tenant may not release its job, since an operator said what is to be."""
    hold, size = state.standing.holds.get(job), state.standing.sizes.get(job)
    if hold is not None and hold.role in _OPERATE:
        return "args.job", f"{job} is held by {hold.by}, an operator; only operators release it"
    if hold is None and size is not None:
        return "args.job", f"{size.by}, an operator, set its size; only operators free it"
    return None
