"""What verbs ask: a log that is opened here, or the gateway that a context names.

The order is: `--log`, `--context`, `$TIDEGATE_LOG`, the current context, the demo's log. A verb
(`console.forms`) asks a `Source`, and neither knows nor says which of the two it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field as dataclass_field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from console.output import fail
from explain.acts import Act
from explain.cell import CellRules
from explain.loan_history import PastLoan
from explain.metrics import Curves
from explain.overview import Glance
from explain.refusals import Refusal
from explain.rows import JobRow, Jobs, Loans, Nodes
from explain.spans import Stay
from schemas.events import JobCancelled, JobSubmitted
from schemas.logs import LogChunk
from schemas.requests import ReadLog, VerbData

if TYPE_CHECKING:
    from simulator.branch.preview import Preview

Found = TypeVar("Found")
#: So long a request waits for a scheduler where none runs, in seconds.
LIFE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Seen(Generic[Found]):
    """What was found, and of which moment it is."""

    it: Found
    as_of: str
    age: str | None = None  #: That no scheduler spoke for long, if so.


@dataclass(frozen=True, slots=True)
class Told:
    """Why a job is as it is: for programs, and for people."""

    document: Any
    text: Any  #: What is printed: a layout, or text that is laid out already.
    age: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a verb asks for, and what it says once that was asked."""

    args: VerbData | None  #: None: it was asked before; nothing more is to be done.
    said: str
    about: Mapping[str, str]  #: For programs.
    noted: str = ""  #: Said beside it, to people.
    hints: Sequence[str] = ()
    as_event: JobSubmitted | JobCancelled | None = None  #: Over Kafka, where nothing signs.
    life_s: float = LIFE_S
    key: str | None = None  #: Of what is asked with one key, one is done.
    own: bool = False  #: A job is for the tenant of who asks, where that is known.
    first: Callable[[], str] | None = None  #: Done before it is asked; it tells what it did.
    is_so: bool = False  #: It is as wished already: nothing is asked for, and all is well.


@dataclass(frozen=True, slots=True)
class Before:
    """What was asked for with a key before."""

    about: str = ""  #: Such as a job; empty where only that something was asked is known.
    args: Mapping[str, Any] | None = None  #: The verb and its arguments, where they are known.
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """That something was asked: what is said of it, to people and to programs."""

    notes: Sequence[str] = ()
    document: Mapping[str, Any] = dataclass_field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tried:
    """What would come of a wish: it would be done, or be refused, and what follows."""

    field: str = ""  #: What it would be refused for, if so.
    refused_because: str = ""  #: Empty: it would be done.
    document: Mapping[str, Any] = dataclass_field(default_factory=dict)  #: Of whom that is known.
    preview: "Preview | None" = None
    origin_s: float = 0.0  #: When the log began that was simulated from.
    notes: Sequence[str] = ()


class Away(Exception):
    """Who passes on what a worker writes does not answer now; the text says who, and why."""


class Wire(Protocol):
    """Over which what a worker writes is read; each call may raise `Away`."""

    async def job(self) -> JobRow | None:
        """Give the job as it is now."""
        ...

    async def end(self) -> int:
        """Say from where on new pieces come."""
        ...

    async def ask(self, args: ReadLog) -> str:
        """Ask for pieces; give why that is refused, or nothing."""
        ...

    async def pieces(self, after: int, reader: str) -> tuple[Sequence[LogChunk], int]:
        """Give the pieces that came since, and where to go on."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


class Source(Protocol):
    """Where answers come from, and where requests go."""

    @property
    def name(self) -> str:
        """Name it: a log, or a context."""
        ...

    @property
    def now_s(self) -> float:
        """Now in the time that the log lives in, in seconds since the Unix epoch."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...

    def overview(self) -> Seen[Glance]:
        """Give the cell at a glance."""
        ...

    def rules(self) -> Seen[CellRules]:
        """Give what holds in the cell: policy, quotas, pauses, freezes."""
        ...

    def jobs(self, state: str | None, *, every: bool, turns: bool = False) -> Seen[Jobs]:
        """List jobs in a state; without one those that go on, or every one.

        With `turns`, rows of those that wait say when their turn comes.
        """
        ...

    def job(self, name: str) -> JobRow | None:
        """Give a job; None: there is none."""
        ...

    def why(self, job: str, width: int) -> Told:
        """Tell why a job is as it is, in text so many columns wide; end if there is no such job."""
        ...

    def stays(self, job: str) -> Seen[Sequence[Stay]]:
        """Give where a job ran; end if there is no such job."""
        ...

    def curves(self, job: str) -> Curves:
        """Give what a job reported of itself, as `stays` found it."""
        ...

    def nodes(self) -> Seen[Nodes]:
        """List nodes, by pool."""
        ...

    def refusals(self) -> Sequence[Refusal]:
        """List commands that agents refused or left unanswered of late."""
        ...

    def loans(self) -> Seen[Loans]:
        """List nodes on loan, and how lending went so far."""
        ...

    def loan_history(self) -> Seen[Sequence[PastLoan]]:
        """List every loan, in the order in which they began."""
        ...

    def acts(self) -> Seen[Sequence[Act]]:
        """List what people asked for, in order."""
        ...

    def taken(self, key: str) -> Before | None:
        """Give what was asked for with this key, None if nothing was; end if it was refused."""
        ...

    def ask(self, wish: Wish, reason: str) -> Sent:
        """Ask for something, and wait for the answer if there is one; end if it is refused."""
        ...

    def tries(self, wish: Wish, reason: str, hours: float) -> Tried:
        """Say what would come of a wish now, and, simulated for some hours, what would follow.

        Nothing is written. Where hours are 0, or a gateway is asked, nothing is simulated.
        """
        ...

    def wire(self, job: str) -> Wire:
        """Open what a job's worker writes; end if nobody can send it."""
        ...


def already(said: str, about: Mapping[str, str]) -> Wish:
    """Wish for nothing, since it is as wished: it is said, and the command ends well."""
    return Wish(None, said, about, is_so=True)


def job_of(at: Source, name: str) -> JobRow:
    """Give a job, or say that there is none of that name."""
    known = at.job(name)
    if known is None:
        fail(f"{name}: no such job in {at.name}; `tidegate jobs --all` lists those there are.")
    return known
