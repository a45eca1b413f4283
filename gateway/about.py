"""What an entry of the journal is about, and slots of the tide: pure functions."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from explain.acts import BY_PEOPLE, act_of
from explain.refusals import ENDED_BADLY

#: Length of a slot of the tide, in seconds.
SLOT_S = 300.0


class Kind(IntEnum):
    """In which way an entry mentions a subject; these numbers are stored."""

    JOB = 1  #: A fact of a job's life, or what somebody said of it.
    STEP = 2  #: A job's progress, its workers and GPUs: many, and no part of its story.
    NODE = 3
    LENDER = 4
    LOAN = 5  #: A node is called back, or its loan ends.
    REASON = 6  #: A reason is about it, and no fact is.
    RULE = 7  #: The rule of a reason.
    ACT = 8  #: Somebody asks for something; the subject is always `ACTS`.
    REQUEST = 9  #: The id of a request.
    ASKER = 10  #: Who asks.
    VERB = 11  #: What is asked for.
    ASKED_OF = 12  #: What it is asked of: a job, a node.
    LEADER = 13  #: Somebody begins to lead; the subject is always `LEADERS`.
    ISSUED = 14  #: A command is issued; the subject is its id.
    REFUSED = 15  #: A command was refused or given up; the subject is always `COMMANDS`.
    MOMENT = 20  #: A landmark for looking back, such as a reclaim; the subject is its kind.


#: The ways in which an entry may be about a job, node or lender.
SUBJECTS = (Kind.JOB, Kind.STEP, Kind.NODE, Kind.LENDER, Kind.REASON)
#: The subject of all that people ask for.
ACTS = "*"
#: The subject of all who lead.
LEADERS = "*"
#: The subject of all commands that were refused or given up.
COMMANDS = "*"
_STEPS = ("JobAdvanced", "CheckpointSaved", "WorkerReady", "GpusReleased")
_LOANS = ("ReclaimStarted", "LoanReturned", "LoanLost")
#: By fact, the kind of landmark that it is.
MOMENTS = {
    "LoanGranted": "lent",
    "ReclaimStarted": "reclaim",
    "LoanReturned": "returned",
    "LoanLost": "lost",
    "LeaderChanged": "leader",
    "DrainStarted": "drain",
    "CellPaused": "pause",
}


def mentions(stimulus: Mapping[str, Any], decision: Mapping[str, Any]) -> list[tuple[Kind, str]]:
    """Give what an entry is about, each once, in a fixed order."""
    found: dict[tuple[Kind, str], None] = {}
    data = stimulus["data"]
    for field, kind in (("job", Kind.JOB), ("node", Kind.NODE)):
        if isinstance(name := data.get(field), str):
            # What an agent reports all the time becomes a fact if it says something new.
            if kind is Kind.NODE or stimulus["kind"] in BY_PEOPLE:
                found[kind, name] = None
    for fact, fields in decision.get("facts", ()):
        if (name := fields.get("job")) is not None:
            found[Kind.STEP if fact in _STEPS else Kind.JOB, name] = None
        if (name := fields.get("node")) is not None:
            found[Kind.NODE, name] = None
            if fact in _LOANS:
                found[Kind.LOAN, name] = None
        if fact in MOMENTS:
            found[Kind.MOMENT, MOMENTS[fact]] = None
        if (name := fields.get("lender")) is not None:
            found |= {(Kind.LENDER, one): None for one in (name, pool_of(name))}
            if fact == "LoadObserved" and isinstance(pool := data.get("pool"), str):
                found[Kind.LENDER, pool] = None  # of an edge server, whose name does not say it
        if fact == "CommandIssued":
            found[Kind.ISSUED, fields["command"]] = None
        if fact in ENDED_BADLY:
            found[Kind.REFUSED, COMMANDS] = None
    for reason in decision.get("reasons", ()):
        found[Kind.RULE, reason["rule"]] = None
        if reason.get("verb") == "reclaims":
            owners = {one: None for name in reason["lost_to"] for one in (name, pool_of(name))}
            found |= {(Kind.LENDER, owner): None for owner in owners}
        name = reason["subject"]
        if not any((kind, name) in found for kind in SUBJECTS):
            found[Kind.REASON, name] = None
    if stimulus["kind"] == "LeaderStarted":
        found[Kind.LEADER, LEADERS] = None
    if (act := act_of(0, 0.0, stimulus, decision)) is not None:
        asked = {
            Kind.ACT: ACTS,
            Kind.REQUEST: act.request,
            Kind.ASKER: act.subject,
            Kind.VERB: act.verb,
            Kind.ASKED_OF: act.about,
        }
        found |= {(kind, name): None for kind, name in asked.items() if name}
    return list(found)


def pool_of(lender: str) -> str:
    """Name the pool of a lender that is one of several agents there; else the lender itself."""
    return lender.partition("@")[0]


def slot_of(at_s: float) -> int:
    """Number the slot of a moment, since the Unix epoch."""
    return int(at_s // SLOT_S)
