"""What people's requests left standing, and which requests were taken.

All of it is by name, beside the tables of nodes and jobs, so that it outlives the death of a node;
what is about a job ends with the job.
A part that is empty is left out of the state's canonical form: a state without any request has the
form, and so the hash, that it had before there were requests (`canonical.document_of`).
"""

from dataclasses import asdict, dataclass, field, fields
from heapq import heapify, heappop, heapreplace
from typing import Any, Literal

from schemas.requests import LIFE_MAX_S

#: So many ids of taken requests are remembered without who asked for what...
UNCOUNTED_MAX = 50_000
#: ...and as many more with that. Of yet more, those are forgotten that expire first of whoever
#: asked most for the same...
COUNTED_MAX = 50_000
#: ...so many at once: to look at all ids for each would be slow...
_AT_ONCE = 1_000
#: ...and of so many it is remembered until when what they asked for was forgotten.
LINES_MAX = 10_000
#: What of a cell can be paused.
Part = Literal["starts", "loans"]


@dataclass(slots=True)
class Cordon:
    """A node that takes no new work, since somebody asked for it."""

    request: str
    by: str
    reason: str
    since_s: float


@dataclass(slots=True)
class Drain:
    """A cordoned node that what runs there is leaving."""

    request: str
    by: str
    by_s: float  #: When it ends in any case.
    force: bool  #: What is left then is stopped.
    since_number: int  #: Of the stimulus at which it began: the policy is asked before gangs stop.


@dataclass(slots=True)
class Accepted:
    """What may join besides what the operator's list has: this and nothing else."""

    agent: str  #: Who alone may speak for it.
    node: str | None  #: None: any node of that agent.
    pool: str
    pool_kind: str
    gpu_count: int  #: At most, on a node.
    speed_factor: float
    request: str
    by: str
    reason: str
    since_s: float


@dataclass(slots=True)
class Hold:
    """A job that is not started, since somebody asked for it."""

    request: str
    by: str
    role: str  #: Of who asked: tenants do not release what an operator holds.
    reason: str
    since_s: float


@dataclass(slots=True)
class SetSize:
    """The one number of GPUs that a job may run on."""

    gpus: int
    request: str
    by: str
    reason: str
    since_s: float


@dataclass(slots=True)
class Freeze:
    """Nodes of which nothing is newly borrowed."""

    request: str
    by: str
    reason: str
    since_s: float
    until_s: float | None  #: When it ends by itself.


@dataclass(slots=True)
class Recall:
    """A node on loan that is to be with its owner by then."""

    #: Empty: nobody asked, but the policy in force never gives nodes back, or the owner is unheard.
    request: str
    by: str  #: Without a request: the owner that is unheard, if that is why.
    due_s: float
    since_number: int  #: Of the stimulus at which it began: the policy is asked before gangs stop.


@dataclass(slots=True)
class Quota:
    """What a tenant may have, instead of what the configuration says."""

    gpus: int  #: Held by its jobs at once, at most.
    guaranteed: int
    jobs: int | None  #: That hold GPUs at once, at most.
    request: str
    by: str
    reason: str
    since_s: float


@dataclass(slots=True)
class Pause:
    """A part of what the cell does that it does not do for a time."""

    request: str
    by: str
    reason: str
    since_s: float
    until_s: float | None  #: None: until somebody resumes it.


@dataclass(slots=True)
class ChosenPolicy:
    """The policy that somebody chose, instead of the one that the configuration names."""

    configured: str  #: What the configuration names, as the latest leader said.
    request: str
    by: str
    reason: str
    since_s: float


@dataclass(slots=True)
class Standing:
    """What requests left standing."""

    #: By id, when a request expires that was taken, whether it was done or refused; in a cell that
    #: is far ahead of the clock, what the cell's time was to be then.
    taken: dict[str, float] = field(default_factory=dict)
    #: By id, who asked for what (`line_of`), where it is counted.
    lines: dict[str, str] = field(default_factory=dict)
    #: Of requests that expire no later than this, nobody knows any more which were taken: by who
    #: asks for what, and of all.
    forgotten: dict[str, float] = field(default_factory=dict)
    forgotten_s: float = 0.0
    cordons: dict[str, Cordon] = field(default_factory=dict)  #: By node.
    drains: dict[str, Drain] = field(default_factory=dict)  #: By node; each is cordoned, too.
    #: By node, or by agent where any node of it is accepted.
    accepted: dict[str, Accepted] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)  #: By job.
    sizes: dict[str, SetSize] = field(default_factory=dict)  #: By job.
    #: By job, until it is forgotten: the priority that it was submitted with, where an operator
    #: has set another.
    priorities: dict[str, int] = field(default_factory=dict)
    pauses: dict[Part, Pause] = field(default_factory=dict)
    #: By node or pool; of every lender: by the empty name.
    freezes: dict[str, Freeze] = field(default_factory=dict)
    recalls: dict[str, Recall] = field(default_factory=dict)  #: By node, until its loan is over.
    #: By lender: since when it is noted that nothing is heard of its load (`core/recalls.py`).
    unheard: dict[str, float] = field(default_factory=dict)
    quotas: dict[str, Quota] = field(default_factory=dict)  #: By tenant.
    policy: ChosenPolicy | None = None

    def take(self, request: str, expires_s: float, now_s: float) -> None:
        """Remember a request until a week after it expires, by the cell's time.

        It expires by the leader's clock, which may be behind the cell's time, and the next leader's
        may be further behind: ids go once it has expired by each that is less than a week behind.
        """
        if len(self.taken) % 256 == 255:  # now and then: to look at all each time would be slow
            since_s = now_s - LIFE_MAX_S
            self.taken = {name: end_s for name, end_s in self.taken.items() if end_s > since_s}
            if self.lines or self.forgotten:
                self.lines = {name: line for name, line in self.lines.items() if name in self.taken}
                past = self.forgotten.items()
                self.forgotten = {line: end_s for line, end_s in past if end_s > since_s}
        self.taken[request] = expires_s

    @property
    def crowded(self) -> bool:
        """Whether so many requests were taken that it matters who asked for what."""
        return len(self.taken) - len(self.lines) > UNCOUNTED_MAX

    def count(self, request: str, line: str) -> None:
        """Remember who asked for what by a request that was taken; make room if there is none.

        Nobody's requests have those of others refused, nor submissions, which are good for a week
        and may be many, what else their tenant asks for.
        """
        self.lines[request] = line
        if len(self.lines) > COUNTED_MAX:
            self._forget_some()

    def _forget_some(self) -> None:
        found: dict[str, list[tuple[float, str]]] = {}
        for request, line in self.lines.items():
            found.setdefault(line, []).append((self.taken[request], request))
        for ends in found.values():
            heapify(ends)
        longest = [(-len(ends), line) for line, ends in found.items()]
        heapify(longest)
        for _ in range(min(_AT_ONCE, COUNTED_MAX)):
            left, line = longest[0]
            heapreplace(longest, (left + 1, line))
            end_s, request = heappop(found[line])
            del self.taken[request], self.lines[request]
            self.forgotten[line] = max(self.forgotten.get(line, 0.0), end_s)
        for line in sorted(self.forgotten, key=lambda line: (self.forgotten[line], line)):
            if len(self.forgotten) <= LINES_MAX:
                return
            self.forgotten_s = max(self.forgotten_s, self.forgotten.pop(line))

    def forget(self, job: str) -> None:
        """Let go of what stands about a job, which has ended."""
        self.holds.pop(job, None)
        self.sizes.pop(job, None)


def standing_from(document: dict[str, Any]) -> Standing:
    """Read what was written; parts that were left out are empty."""
    found = Standing(**document)
    found.cordons = {name: Cordon(**one) for name, one in document.get("cordons", {}).items()}
    found.drains = {name: Drain(**one) for name, one in document.get("drains", {}).items()}
    accepted = document.get("accepted", {})
    found.accepted = {name: Accepted(**one) for name, one in accepted.items()}
    found.holds = {name: Hold(**one) for name, one in document.get("holds", {}).items()}
    found.sizes = {name: SetSize(**one) for name, one in document.get("sizes", {}).items()}
    found.pauses = {name: Pause(**one) for name, one in document.get("pauses", {}).items()}
    found.freezes = {name: Freeze(**one) for name, one in document.get("freezes", {}).items()}
    found.recalls = {name: Recall(**one) for name, one in document.get("recalls", {}).items()}
    found.quotas = {name: Quota(**one) for name, one in document.get("quotas", {}).items()}
    if (chosen := document.get("policy")) is not None:
        found.policy = ChosenPolicy(**chosen)
    return found


def standing_document(standing: Standing) -> dict[str, Any]:
    """Give the parts that are not empty."""
    whole = asdict(standing)
    return {item.name: whole[item.name] for item in fields(standing) if whole[item.name]}
