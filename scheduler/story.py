"""The story of a job: everything in the journal that is about it, in order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from schemas.journal import RawEntry

Kind = Literal["event", "fact", "command", "reason"]

#: Facts that only repeat what stands beside them: the reason, the command's own line.
_SAID_OTHERWISE = ("JobExplained",)
#: Reasons of others who wait are theirs, even where the subject has what they wait for.
_STAYS = ("waits", "keeps")


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened. `name` is the kind of event, fact or command, or the rule."""

    number: int
    at_s: float
    kind: Kind
    name: str
    fields: dict[str, Any]


class Story:
    """Collects the lines about one job (or node) from the entries of a journal."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.lines: list[Line] = []
        self._needle = orjson.dumps(subject)
        self._commands: dict[str, bytes] = {}  # open ones, each with how its id is written

    def take(self, entry: RawEntry) -> None:
        """Add what an entry says about the subject."""
        texts = (entry.stimulus, entry.decision)
        if any(self._needle in text for text in texts) or any(
            command in text for command in self._commands.values() for text in texts
        ):
            decision = orjson.loads(entry.decision)
            stimulus = orjson.loads(entry.stimulus)
            self.lines += self.told(entry.number, entry.at_s, stimulus, decision)

    def told(
        self, number: int, at_s: float, stimulus: dict[str, Any], decision: dict[str, Any]
    ) -> list[Line]:
        """Give the lines of one stimulus and the decision on it."""
        lines = []
        if self._concerns(stimulus["data"]):
            lines.append(Line(number, at_s, "event", stimulus["kind"], stimulus["data"]))
        if "error" in decision:
            lines.append(Line(number, at_s, "fact", "Error", {"error": decision["error"]}))
            return lines
        lines += [
            Line(number, at_s, "reason", reason["rule"], reason)
            for reason in decision["reasons"]
            if reason["subject"] == self.subject
            or (self.subject in reason["lost_to"] and reason["verb"] not in _STAYS)
        ]
        lines += self._facts(number, at_s, decision)
        return lines

    def _facts(self, number: int, at_s: float, decision: dict[str, Any]) -> Iterator[Line]:
        for name, fields in decision["facts"]:
            if not self._concerns(fields) or name in _SAID_OTHERWISE:
                continue
            if name == "CommandIssued":
                self._commands[fields["command"]] = orjson.dumps(fields["command"])
                yield Line(number, at_s, "command", fields["kind"], fields)
                continue
            yield Line(number, at_s, "fact", name, fields)
            if name in ("CommandDone", "CommandRefused", "CommandExpired"):
                self._commands.pop(fields["command"], None)

    def _concerns(self, fields: dict[str, Any]) -> bool:
        if fields.get("command") in self._commands:
            return True
        return self.subject in (fields.get("job"), fields.get("subject"), fields.get("node"))


def subject_of(fields: dict[str, Any]) -> str | None:
    """Give the job that a fact, reason or event is about, else its node."""
    for name in ("job", "subject", "node"):
        if isinstance(found := fields.get(name), str):
            return found
    return None
