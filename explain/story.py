"""The story of one job, from entries of the journal: what happened, with the reasons given then.

Nothing is decided again and nothing is guessed: facts and reasons stand as they were recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from explain.wording import reason_from
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
    "OutputsKept",
    "JobQueued",
    "JobMigrating",
    "JobCompleted",
    "JobFailed",
    "JobCancelled",
    "CancelRequested",
    "JobHeld",
    "JobReleased",
    "JobRequeued",
    "JobPrioritised",
    "JobSizeSet",
    "JobSizeFreed",
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
    drains: tuple[str, ...] = ()  #: Those for which the gang leaves, in words.


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint of a job that the store has; `uri` is the folder that it is in."""

    epoch: int
    step: int
    uri: str
    size_mib: int


@dataclass(slots=True)
class Story:
    """All that the journal says about one job; of several that had its id, about the newest."""

    job: str
    events: list[Event] = field(default_factory=list)
    reasons: list[Given] = field(default_factory=list)
    #: Epochs of which its agent said that no worker was started.
    unstarted: set[int] = field(default_factory=set)
    #: The newest checkpoint that the store has; None: none, or its workers are simulated.
    checkpoint: Stored | None = None
    #: By node of the job's allocation: reclaims that are under way, as of the last entry read.
    reclaims: dict[str, Reclaim] = field(default_factory=dict)
    #: By node, until when it is drained, and by whom and why, in words.
    _drains: dict[str, tuple[float, str]] = field(default_factory=dict)
    _allocation: dict[str, Any] = field(default_factory=dict)
    _started: set[int] = field(default_factory=set)  #: Epochs in which a worker took a step.
    _behind: Reason | None = None
    _end: str = ""  #: How its last gang ended, as the agent said it.

    @property
    def wanted(self) -> tuple[bytes, ...]:
        """An entry that it needs holds one of these, as bytes."""
        # Names hold no character that JSON writes otherwise, so the bytes tell who is concerned.
        loans = b'"ReclaimStarted"', b'"LoanReturned"', b'"LoanLost"'
        return (
            f'"{self.job}"'.encode(),
            *loans,
            b'"DrainStarted"',
            b'"DrainEnded"',
            b'"NodeUncordoned"',
        )

    @property
    def latest(self) -> Given | None:
        """The newest reason given for it."""
        return self.reasons[-1] if self.reasons else None

    @property
    def spec(self) -> Mapping[str, Any]:
        """What its tenant asked for; empty as long as it is not accepted."""
        accepted = self.last("JobAccepted")
        return {} if accepted is None else accepted.fields["spec"]

    def last(self, *kinds: str) -> Event | None:
        """Give the newest event of some kinds."""
        return next((h for h in reversed(self.events) if h.kind in kinds), None)

    def take(self, entry: JournalEntry) -> None:
        """Go on with an entry of the journal."""
        self._take_nodes(entry)
        stimulus, asked_by = entry.stimulus, dict[str, Any]()  # who asks to cancel it, and why
        if stimulus["kind"] == "JobCancelled" and stimulus["data"]["job"] == self.job:
            asked_by = {"by": stimulus["cause"][0], "reason": stimulus["data"]["reason"]}
        elif stimulus["kind"] == "WorkerStarted" and stimulus["data"]["job"] == self.job:
            self._started.add(stimulus["data"]["epoch"])
        elif stimulus["kind"] in ("WorkerStopped", "WorkerFailed"):
            told = stimulus["data"]
            # After a reboot an agent may fail to start what ran before, under the same epoch.
            ran = told.get("ran", True) or told["epoch"] in self._started
            if told["job"] == self.job and not ran:
                self.unstarted.add(told["epoch"])
        elif stimulus["kind"] == "Requested":
            asked = stimulus["data"]["request"]
            if (asked["args"]["verb"], asked["args"].get("job")) == ("job.cancel", self.job):
                asked_by = {"by": asked["subject"], "reason": asked["reason"]}
        for kind, fields in entry.decision.get("facts", ()):
            if fields.get("job") != self.job:
                continue
            if kind == "JobAccepted":
                self._forget()
            if kind == "JobExplained":
                given = Given(entry.at_s, reason_from(fields["reason"]))
                self.reasons.append(given)
                if given.reason.verb not in ("waits", "keeps"):
                    self._behind = given.reason
            elif kind in ("CancelRequested", "JobCancelled"):
                # Who asked is told by what came of that: others ask, too, and are refused.
                self._happened(entry.at_s, kind, {**fields, **asked_by})
                asked_by = {}  # said once
            elif kind == "JobFailed":
                self._happened(entry.at_s, kind, {**fields, "detail": self._end})
            elif kind == "CheckpointSaved" and stimulus["kind"] == "CheckpointCommitted":
                self._stored(stimulus["data"])
            elif kind in LIFE:
                self._happened(entry.at_s, kind, fields)

    def _forget(self) -> None:
        """Leave out what was told of an earlier job of this id, which may have been another's."""
        self.events, self.reasons = [], []
        self._allocation, self._behind, self._end = {}, None, ""
        self.unstarted, self._started = set(), set()
        self.checkpoint = None

    def _stored(self, told: Mapping[str, Any]) -> None:
        found = Stored(told["epoch"], told["step"], told["uri"], told["size_mib"])
        known = self.checkpoint
        # Of an earlier gang one may still be stored when the next has stored a later one.
        older = known is not None and (found.epoch, found.step) < (known.epoch, known.step)
        if not older and not found.uri.startswith("simulated:"):
            self.checkpoint = found

    def _take_nodes(self, entry: JournalEntry) -> None:
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
            elif kind == "DrainStarted" and entry.stimulus["kind"] == "Requested":
                why = entry.stimulus["data"]["request"]["reason"]
                said = f"{fields['node']} is drained by {fields['by']}"
                said = f"{said}: {why}" if why else said
                self._drains[fields["node"]] = fields["by_s"], said
            elif kind == "NodeUncordoned" or fields.get("outcome") == "called_off":
                self._drains.pop(fields["node"], None)  # it ends with either at the latest

    def _drains_behind(
        self, at_s: float, kind: str, fields: Mapping[str, Any], behind: Reason | None
    ) -> list[str]:
        """Say which drains a gang leaves for: a policy says only what it gains elsewhere."""
        left = [node for node in sorted(self._allocation) if node in self._drains]
        if behind is None or behind.rule != "operator.drain":
            moves = kind == "GangScaling" or fields.get("reason") == "migrated"
            kept = fields.get("allocation", ())
            left = [
                node
                for node in left
                if moves and node not in kept and at_s <= self._drains[node][0]
            ]
        return [self._drains[node][1] for node in left]

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
        drains = tuple(self._drains_behind(at_s, kind, fields, behind))
        if drains and not fields.get("detail"):  # a gang may fail as it leaves
            fields = {**fields, "detail": "; ".join(drains)}
        if behind is not None and behind.rule.startswith(("loans.", "loan.", "gang.backfilled")):
            reclaims = tuple(
                self.reclaims[n] for n in sorted(self._allocation) if n in self.reclaims
            )
        self.events.append(Event(at_s, kind, fields, behind, reclaims, drains))
        if kind == "GangStarting":
            self._end = ""
        elif kind == "GangStopping":
            self._end = self._end or fields.get("detail", "")
        if kind in ("GangStarting", "GangScaling"):
            self._allocation = dict(fields["allocation"])
        elif kind in ("JobQueued", "JobMigrating", "JobCompleted", "JobFailed", "JobCancelled"):
            self._allocation = {}
