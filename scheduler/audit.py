"""Who asked for what, proved from a copy of the log and public keys alone: no scheduler is trusted.

Held for each cell: entries follow each other by their digests; what a request's entry says was
asked is in bytes that a known key signed; what was done fits that; nothing was done by a request
that nobody made. That the scheduler decided as its rules say is for `scheduler.replay` to show.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from bus.contract import Record
from bus.signing import ALG, ALGORITHM, KEY_ID, SIGNATURE, Verifier
from scheduler.core.cell_moments import in_cell_time
from scheduler.core.requests import AHEAD_S, line_of
from scheduler.core.stimuli import SubmittedAhead
from schemas.codec import decode_request
from schemas.events import JobCancelled, JobSubmitted
from schemas.journal import NO_DIGEST, JournalEntry, decode_entry, follows
from schemas.parse import Rejected, first_error
from schemas.requests import Request

_ENDS = ("RequestDone", "RequestRefused")
#: How the id of a request is remembered: nothing that was done.
_KEPT = ("RequestKeptLonger", "RequestCounted")
#: What is asked for so is done part by part.
EVERY_PART = "all"
#: What is asked for without a name is done to each of a kind: fact and field.
_EACH = {("LoansUnfrozen", "lender")}
_JOBS = ("JobAccepted", "JobCancelled")
#: What people ask for by events, as they may while no gateway is trusted: nobody signs those.
_UNSIGNED = tuple(kind.__name__ for kind in (JobSubmitted, SubmittedAhead, JobCancelled))


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with an entry of a cell's journal."""

    cell: str
    entry: int
    field: str
    reason: str


@dataclass(slots=True)
class Audit:
    """Reads a journal in order, and keeps what is wrong with it."""

    verifier: Verifier
    entries: int = 0
    requests: int = 0
    #: Submissions and cancellations by events: who asked for them cannot be proved.
    unsigned: int = 0
    findings: list[Finding] = field(default_factory=list)
    _digests: dict[str, str] = field(default_factory=dict)
    _next: dict[str, int] = field(default_factory=dict)
    #: By cell, the bytes that were taken; one signature is good for one entry.
    _taken: set[tuple[str, str]] = field(default_factory=set)

    def read(self, records: Iterable[Record]) -> None:
        """Take the records of the journal topic."""
        for record in records:
            self._take(record.key, record.value or b"")

    def _take(self, cell: str, value: bytes) -> None:
        entry = decode_entry(value)
        number = self._next.get(cell, 0)
        if isinstance(entry, Rejected):
            self._wrong(cell, number, entry.field, entry.reason)
            self._next[cell] = number + 1
            return
        self.entries += 1
        for name, reason in self._problems(cell, entry):
            self._wrong(cell, entry.number, name, reason)
        self._digests[cell], self._next[cell] = entry.digest, entry.number + 1

    def _problems(self, cell: str, entry: JournalEntry) -> Iterator[tuple[str, str]]:
        number = self._next.get(cell, 0)
        if entry.number != number:
            yield "number", f"is {entry.number}, and {number} should follow: entries are missing"
        elif not follows(entry, self._digests.get(cell, NO_DIGEST)):
            yield "digest", "does not fit: this entry or the one before it was changed"
        data = entry.stimulus.get("data")
        kind = entry.stimulus.get("kind")
        self.unsigned += kind in _UNSIGNED
        asked = kind == "Requested" and isinstance(data, dict)
        request = None
        if asked and data is not None:
            self.requests += 1
            request = yield from self._signed(cell, data)
        try:
            facts: list[tuple[str, dict[str, Any]]] = [
                (str(name), dict(fields)) for name, fields in entry.decision["facts"]
            ]
        except (KeyError, TypeError, ValueError):
            yield "decision.facts", "cannot be read"
            return
        if request is not None and data is not None:
            now_s, ahead_s = entry.at_s, data.get("ahead_s", 0.0)
            # Nobody signed this; but no request is taken long before it was asked.
            most_s = max(0.0, now_s - request.asked_s) + AHEAD_S
            if not isinstance(ahead_s, float) or not 0.0 <= ahead_s <= most_s:
                yield "ahead_s", f"is {ahead_s!r}, and can be {most_s:.0f} s at the most"
                ahead_s = 0.0
            yield from _unfit(in_cell_time(request, now_s, ahead_s), ahead_s, facts)
        elif not asked:
            for name, fields in facts:
                if fields.get("request"):  # empty: its time was up
                    yield f"decision.{name}", f"is by {fields['request']}, which nobody asked here"

    def _signed(
        self, cell: str, data: Mapping[str, Any]
    ) -> Generator[tuple[str, str], None, Request | None]:
        """Hold what was read of a request to the bytes that were signed; give the request."""
        raw, kid = str(data.get("raw", "")), str(data.get("kid", ""))
        headers = {KEY_ID: kid, ALG: ALGORITHM}
        if data.get("signature"):
            headers[SIGNATURE] = str(data["signature"])
        if (problem := self.verifier.problem(raw.encode(), headers)) is not None:
            yield problem
        envelope = decode_request(raw.encode())
        if isinstance(envelope, Rejected):
            yield f"raw.{envelope.field}", envelope.reason
            return None
        try:
            said = Request.model_validate(data.get("request"))
        except ValidationError as error:
            yield f"request.{first_error(error).field}", first_error(error).reason
        else:
            if said != envelope.data:
                yield "request", "is not what the signed bytes say"
        if envelope.cell != cell:
            yield "cell", f"the signed bytes are for {envelope.cell}"
        if (cell, raw) in self._taken:
            yield "id", f"{envelope.data.id} was taken before"
        self._taken.add((cell, raw))
        return envelope.data

    def _wrong(self, cell: str, entry: int, name: str, reason: str) -> None:
        self.findings.append(Finding(cell, entry, name, reason))


def _unfit(
    request: Request, ahead_s: float, facts: list[tuple[str, dict[str, Any]]]
) -> Iterator[tuple[str, str]]:
    """Find what was noted in answer to a request, and does not fit what it asks for."""
    ends = [name for name, _ in facts if name in _ENDS]
    if len(ends) != 1:
        yield "decision", f"has {len(ends)} answers to {request.id}, not one"
    said = {
        **{name: getattr(request.args, name) for name in type(request.args).model_fields},
        "joins": getattr(request.args, "node", None),
        "request": request.id,
        "by": request.subject,
        "role": request.role,
        "expires_s": request.expires_s,
        "ahead_s": ahead_s,
        "counted_as": line_of(request),
    }
    for name, fields in facts:
        if name in _JOBS and (job := fields.get("job")) != request.about:
            yield f"decision.{name}.job", f"is {job}, asked was {request.about}"
        if "request" not in fields:
            continue
        if ends == ["RequestRefused"] and name not in (*_ENDS, *_KEPT):
            yield f"decision.{name}", f"was done, though {request.id} was refused"
        known = said if name in _ENDS else {**said, "reason": request.reason}
        for key in fields.keys() & known.keys():
            empty = all(one in ("", None) for one in (fields[key], known[key]))
            same = fields[key] == known[key] or empty
            every = known[key] == EVERY_PART or (known[key] is None and (name, key) in _EACH)
            if not same and not every:
                yield f"decision.{name}.{key}", f"is {fields[key]!r}, asked was {known[key]!r}"
