"""What people asked for, and what came of it, from entries of the journal: pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_VERBS = {
    "JobSubmitted": "job.submit",
    "SubmittedAhead": "job.submit",
    "JobCancelled": "job.cancel",
}
#: Stimuli that people cause: requests, and the events that they used before.
BY_PEOPLE = ("Requested", *_VERBS)


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody asked for, and what came of it."""

    entry: int
    at_s: float
    subject: str
    role: str
    tenant: str | None
    via: str
    verb: str
    about: str
    result: str  #: `done` or `refused`.
    refused_because: str
    reason: str
    request: str  #: The id; empty for an event.
    key_id: str  #: Of the key that signed; empty if nothing did.


def act_of(
    number: int, at_s: float, stimulus: Mapping[str, Any], decision: Mapping[str, Any]
) -> Act | None:
    """Give what somebody asked for by an entry; None if no person caused the entry."""
    kind, data = stimulus["kind"], stimulus["data"]
    if kind not in BY_PEOPLE:
        return None
    because = refusal(decision)
    common: dict[str, Any] = {
        "entry": number,
        "at_s": at_s,
        "result": "refused" if because else "done",
        "refused_because": because,
    }
    if kind == "Requested":
        asked = data["request"]
        return Act(
            **common,
            subject=asked["subject"],
            role=asked["role"],
            tenant=asked["tenant"],
            via=asked["via"],
            verb=asked["args"]["verb"],
            about=_about(asked["args"]),
            reason=asked["reason"],
            request=asked["id"],
            key_id=data["kid"],
        )
    source = stimulus["cause"][0]
    return Act(
        **common,
        subject=source,
        role="tenant" if source.startswith("/tenants/") else "operator",
        tenant=data.get("tenant"),
        via="event",
        verb=_VERBS[kind],
        about=data["job"],
        reason=data.get("reason", ""),
        request="",
        key_id="",
    )


def refusal(decision: Mapping[str, Any]) -> str:
    """Say why a decision refused what it was about; empty if it did not."""
    field, reason = refused(decision)
    return f"{field.removeprefix('args.').removeprefix('spec.')}: {reason}" if reason else ""


def refused(decision: Mapping[str, Any]) -> tuple[str, str]:
    """Give the field of what was asked that a decision refused, and why; both empty if none."""
    found: dict[str, dict[str, str]] = dict(decision.get("facts", ()))
    if (fields := found.get("RequestRefused")) is not None:
        return fields["field"], fields["reason"]
    if (fields := found.get("SubmissionRefused")) is not None:
        return "job", fields["reason"]
    return "", ""


def right_unchecked(key_id: str, verb: str) -> str:
    """Say what only the scheduler knows of a request that is signed with this key."""
    return (
        f"Whether the scheduler lets key {key_id} pass on {verb} was not looked at: its "
        f"configuration says so, in scheduler.trusted_gateways.{key_id}.may."
    )


def _about(args: Mapping[str, Any]) -> str:
    """Name what a request is about; empty if it is about the whole cell."""
    for name in ("node", "job", "what", "lender", "tenant", "line", "agent"):
        if isinstance(found := args.get(name), str):
            return found
    return str(args.get("spec", {}).get("job", ""))
