"""The story of one job, read from the journal: what happened to it, with the reasons given then.

Nothing is decided again and nothing is guessed: facts and reasons stand as they were recorded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bus.contract import Bus
from console.failures import failure
from console.phrases import reason_from
from console.reading import entries
from scheduler.policies.interface import Reason
from schemas.journal import JournalEntry

#: Facts that tell of a job's life; others about it (progress, commands) are details.
LIFE = (
    "JobAccepted",
    "SubmissionRefused",
    "TargetSet",
    "TargetDropped",
    "GangStarting",
    "GangRunning",
    "GangScaling",
    "GangCheckpointing",
    "GangStopping",
    "CheckpointMissed",
    "JobQueued",
    "JobMigrating",
    "JobCompleted",
    "JobFailed",
    "JobCancelled",
    "CancelRequested",
)
#: Which reasons stand behind what was done.
_BEHIND: Mapping[str, tuple[str, ...]] = {
    "TargetSet": ("starts", "migrates", "moves", "scales_out", "scales_in"),
    "GangStarting": ("starts", "migrates"),
    "GangScaling": ("scales_out", "scales_in", "migrates"),
    "GangCheckpointing": ("preempts", "migrates"),
    "GangStopping": ("preempts", "migrates"),
}


@dataclass(frozen=True, slots=True)
class Given:
    """A reason, and when it was given."""

    at_s: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A node that goes back to its owner."""

    node: str
    at_s: float
    due_s: float
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Event:
    """A fact about the job, with the reason behind it and the reclaims that drove it."""

    at_s: float
    kind: str
    fields: Mapping[str, Any]
    reason: Reason | None = None
    reclaims: tuple[Reclaim, ...] = ()


@dataclass(slots=True)
class Story:
    """All that the journal says about one job."""

    job: str
    events: list[Event] = field(default_factory=list)
    reasons: list[Given] = field(default_factory=list)
    #: By node of the job's allocation: reclaims that are under way, as of the last entry read.
    reclaims: dict[str, Reclaim] = field(default_factory=dict)
    _allocation: dict[str, Any] = field(default_factory=dict)
    _behind: Reason | None = None
    _asked: dict[str, Any] = field(default_factory=dict)  #: Who asked to cancel it, and why.
    _end: str = ""  #: How its last gang ended, as the agent said it.

    @property
    def latest(self) -> Given | None:
        """The newest reason given for it."""
        return self.reasons[-1] if self.reasons else None

    def last(self, *kinds: str) -> Event | None:
        """Give the newest event of some kinds."""
        return next((h for h in reversed(self.events) if h.kind in kinds), None)

    def take(self, entry: JournalEntry) -> None:
        """Go on with an entry of the journal."""
        self._take_loans(entry)
        stimulus = entry.stimulus
        if stimulus["kind"] == "JobCancelled" and stimulus["data"]["job"] == self.job:
            self._asked = {"by": stimulus["cause"][0], "reason": stimulus["data"]["reason"]}
        for kind, fields in entry.decision.get("facts", ()):
            if fields.get("job") != self.job:
                continue
            if kind == "JobExplained":
                given = Given(entry.at_s, reason_from(fields["reason"]))
                self.reasons.append(given)
                if given.reason.verb not in ("waits", "keeps"):
                    self._behind = given.reason
            elif kind in ("CancelRequested", "JobCancelled"):
                self._happened(entry.at_s, kind, {**fields, **self._asked})
                self._asked = {}  # said once
            elif kind == "JobFailed":
                self._happened(entry.at_s, kind, {**fields, "detail": self._end})
            elif kind in LIFE:
                self._happened(entry.at_s, kind, fields)

    def _take_loans(self, entry: JournalEntry) -> None:
        reasons = {
            document["subject"]: reason_from(document)
            for document in entry.decision.get("reasons", ())
            if document["verb"] == "reclaims"
        }
        for kind, fields in entry.decision.get("facts", ()):
            if kind == "ReclaimStarted":
                node = fields["node"]
                behind = reasons.get(node)
                self.reclaims[node] = Reclaim(node, entry.at_s, fields["due_s"], behind)
            elif kind in ("LoanReturned", "LoanLost"):
                self.reclaims.pop(fields["node"], None)

    def _happened(self, at_s: float, kind: str, fields: Mapping[str, Any]) -> None:
        behind = self._behind
        if behind is not None and behind.verb not in _BEHIND.get(kind, ()):
            behind = None
        if kind in ("GangCheckpointing", "GangStopping") and fields["reason"] in (
            "completed",
            "cancelled",
        ):
            behind = None
        reclaims: tuple[Reclaim, ...] = ()
        if behind is not None and behind.rule.startswith(("loans.", "loan.", "gang.backfilled")):
            reclaims = tuple(
                self.reclaims[n] for n in sorted(self._allocation) if n in self.reclaims
            )
        self.events.append(Event(at_s, kind, fields, behind, reclaims))
        if kind == "GangStarting":
            self._end = ""
        elif kind == "GangStopping":
            self._end = self._end or fields.get("detail", "")
        if kind in ("GangStarting", "GangScaling"):
            self._allocation = dict(fields["allocation"])
        elif kind in ("JobQueued", "JobMigrating", "JobCompleted", "JobFailed", "JobCancelled"):
            self._allocation = {}


async def read_story(bus: Bus, cell: str, job: str, end: int) -> Story:
    """Read a cell's journal for one job, before the entry of number `end`.

    Whoever shows the story beside a state gives the state's number: a live log goes on meanwhile.

    Raises:
        Unreadable: an entry that concerns it cannot be read.
    """
    story = Story(job)
    # Names hold no character that JSON writes otherwise, so the bytes tell who is concerned.
    wanted = (f'"{job}"'.encode(), b'"ReclaimStarted"', b'"LoanReturned"', b'"LoanLost"')
    async for entry in entries(bus, cell, wanted, end):
        story.take(entry)
    return story


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a job's history."""

    at_s: float
    what: str  #: In words, such as `started`.
    detail: str
    tone: str  #: `good`, `bad`, `change` or `quiet`.
    event: Event


def history(story: Story) -> list[Line]:
    """Tell the events shortly: sizes that change in a row are one line."""
    lines: list[Line] = []
    sizes: list[int] = []
    left: Event | None = None
    for event, following in _with_next(_told(story.events)):
        fields = event.fields
        size = sum(map(len, fields.get("allocation", {}).values()))
        starts = following is not None and following.kind == "GangStarting"
        if event.kind == "JobMigrating" and starts:
            left = event
            continue
        if event.kind == "GangStarting":
            sizes = [size]
            if left is not None:
                lines.append(_moved(left, event, size))
                left = None
                continue
        if event.kind == "GangScaling":
            sizes.append(size)
            if following is not None and following.kind == "GangScaling":
                continue
            if len(sizes) > 2 and event.reason and event.reason.rule in _EBB:
                event = replace(event, reason=None)
            path = " → ".join(map(str, sizes)) if len(sizes) < 7 else _shortened(sizes)
            what = "scaled" if sizes[-1] != sizes[0] or len(sizes) > 2 else "re-placed"
            lines.append(Line(event.at_s, what, f"{path} GPUs", "change", event))
            sizes = [size]
            continue
        lines.append(_line(event, size))
    return lines


def _moved(left: Event, started: Event, size: int) -> Line:
    """Tell a move between pools, from the stop in one to the start in the other."""
    line = _line(started, size)
    merged = replace(started, reason=left.reason or started.reason, reclaims=left.reclaims)
    return Line(started.at_s, "migrated", f"to{line.detail[2:]}", "change", merged)


def _told(events: list[Event]) -> list[Event]:
    """Leave out what the next event says as well."""
    found: list[Event] = []
    for event in events:
        kind = event.kind
        if kind in ("GangRunning", "TargetSet"):
            continue
        if kind == "GangStopping" and event.fields["reason"] == "completed":
            continue
        if kind in ("JobQueued", "JobMigrating") and found and found[-1].kind in _LEAVING:
            before = found.pop()
            fields = {**event.fields, "since_s": before.at_s}
            detail = before.fields.get("detail", "")
            reason = before.reason
            event = Event(event.at_s, kind, {**fields, "detail": detail}, reason, before.reclaims)
        elif kind in _LEAVING and found and found[-1].kind in _LEAVING:
            continue
        elif kind == "JobFailed" and found and found[-1].kind in _LEAVING:
            found.pop()
        found.append(event)
    return found


#: A row of changes by such a rule is told without its reason: it is another each time.
_EBB = (
    "elastic.marginal_return",
    "gang.backfilled",
    "market.price",
    "market.outbid",
    "market.quota",
)
_LEAVING = ("GangCheckpointing", "GangStopping")


def _with_next(items: list[Event]) -> Iterator[tuple[Event, Event | None]]:
    return zip(items, [*items[1:], None], strict=True)


def _shortened(sizes: list[int]) -> str:
    return (
        f"{sizes[0]} → {sizes[1]} → … → {sizes[-2]} → {sizes[-1]} "
        f"({len(sizes) - 1} changes, {min(sizes)} to {max(sizes)})"
    )


def _line(event: Event, size: int) -> Line:
    at_s, kind, fields = event.at_s, event.kind, event.fields
    if kind == "JobAccepted":
        return Line(at_s, "submitted", f"by {fields['spec']['tenant']}", "quiet", event)
    if kind == "GangStarting":
        nodes = ", ".join(sorted(fields["allocation"]))
        step = f", from step {fields['step']:,}" if fields["step"] else ""
        gpus = f"{size} GPU{'s' if size != 1 else ''}"
        detail = f"on {gpus} of {fields['pool']} ({nodes}){step}"
        return Line(at_s, "started", detail, "good", event)
    if kind in _LEAVING:
        said = failure(str(fields["reason"]), str(fields.get("detail", "")))
        return Line(at_s, "told to leave", said, "bad", event)
    if kind == "JobQueued":
        why = {"failed": "failed"}.get(fields["reason"], "preempted")
        if fields["reason"] == "migrated":
            why = "move given up"
        detail = f"waits again, goes on from step {fields['step']:,}"
        if fields.get("detail"):
            detail += f"; {fields['detail']}"
        return Line(at_s, why, detail, "bad", event)
    if kind == "JobMigrating":
        detail = f"left its GPUs with step {fields['step']:,} saved"
        return Line(at_s, "migrated", detail, "change", event)
    if kind == "JobCompleted":
        return Line(at_s, "completed", "", "good", event)
    if kind == "JobCancelled":
        return Line(at_s, "cancelled", _asked(fields), "quiet", event)
    if kind == "CancelRequested":
        return Line(at_s, "asked to cancel", _asked(fields), "quiet", event)
    if kind == "JobFailed":
        said = failure(str(fields["reason"]), str(fields["detail"]))
        return Line(at_s, "failed for good", said, "bad", event)
    if kind == "TargetDropped":
        return Line(at_s, "claim given up", str(fields["reason"]), "quiet", event)
    if kind == "CheckpointMissed":
        return Line(at_s, "checkpoint failed", str(fields["error"]), "bad", event)
    return Line(at_s, "refused", str(fields.get("reason", "")), "bad", event)


def _asked(fields: Mapping[str, Any]) -> str:
    """Say who asked for a cancellation, and why."""
    if "by" not in fields:
        return ""
    return f"by {fields['by']}" + (f": {fields['reason']}" if fields["reason"] else "")
