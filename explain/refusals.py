"""Commands that agents refused or left unanswered, as the journal and the state have them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from explain.moments import day_clock
from explain.shares import counted
from scheduler.core.state import ClusterState
from schemas.journal import JournalEntry

#: Of what came longer ago than this nothing is said.
RECENT_S = 3600.0
#: Facts that end a command otherwise than well, and what entries with one hold, as bytes.
ENDED_BADLY = ("CommandRefused", "CommandExpired")
WANTED = tuple(f'"{kind}"'.encode() for kind in ENDED_BADLY)
_HOW = (
    "what no key that it trusts has signed, it does not answer: its log and `tidegate doctor` on "
    "its machine say so"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A command that an agent did not obey."""

    agent: str
    kind: str  #: Of the command, such as `StartGang`.
    subject: str  #: The job or node that it was about.
    at_s: float  #: When it was refused or given up; of one that is open: when it was sent last.
    tries: int  #: How often it was sent, where that is known; else 0.
    reason: str  #: As the agent said it; empty: it did not answer.
    is_open: bool = False  #: It may still be answered.


def unanswered(state: ClusterState) -> list[Refusal]:
    """Give the open commands that were sent more than once: their agents do not answer."""
    return [
        Refusal(one.agent, one.kind, one.subject, one.sent_s, one.tries, "", is_open=True)
        for one in state.commands.values()
        if one.tries > 1
    ]


def ended_badly(entries: Iterable[JournalEntry]) -> dict[str, tuple[float, str]]:
    """Give by id the commands that were refused or given up: when, and why if that was said."""
    found: dict[str, tuple[float, str]] = {}
    for entry in entries:
        for kind, fields in entry.decision.get("facts", ()):
            if kind in ENDED_BADLY:
                found[fields["command"]] = entry.at_s, fields.get("reason", "")
    return found


def refusals(
    ended: Mapping[str, tuple[float, str]], issued: Iterable[JournalEntry]
) -> list[Refusal]:
    """Say whose they were: of each agent's last hour, and one of each kind for the same reason.

    Args:
        ended: The commands that ended badly.
        issued: The entries that issued them.
    """
    found: dict[tuple[str, str, str], Refusal] = {}
    for entry in issued:
        for kind, fields in entry.decision.get("facts", ()):
            if kind == "CommandIssued" and fields["command"] in ended:
                at_s, reason = ended[fields["command"]]
                if reason or fields["expires_s"] <= at_s:  # others were called off
                    agent, command = fields["agent"], fields["kind"]
                    one = Refusal(agent, command, fields["subject"], at_s, 0, reason)
                    found[agent, command, reason] = one
    return list(found.values())


def in_words(refusal: Refusal, origin_s: float) -> str:
    """Say who did not obey what, when, and why; where that is not known, where it may be said."""
    what = f"{refusal.kind} of {refusal.subject}"
    at = day_clock(refusal.at_s, origin_s)
    if refusal.reason:
        return f"Agent {refusal.agent} refused {what} at {at}: {refusal.reason.rstrip('.')}."
    if refusal.is_open:
        sent = f"sent {counted(refusal.tries, 'time')}, last at {at}"
        return f"Agent {refusal.agent} has not answered {what}, {sent}; {_HOW}."
    return f"Agent {refusal.agent} never answered {what}, given up at {at}; {_HOW}."
