"""What must hold of a simulated system whatever befell it, by code that shares nothing with it.

All is read from what was written down: the broker's records as JSON, and what the witnesses saw at
the GPUs.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bus.contract import Record
from tests.chaos.ledger import (
    SUBMITTED,
    Cause,
    Entry,
    Said,
    acks_untold,
    delivery,
    jobs,
    read_entry,
    read_said,
)
from tests.chaos.owners import (
    Effect,
    Tenure,
    double_owners,
    double_places,
    read_orders,
    repeated_effects,
    tenures,
)
from tests.whole.laws_gangs import given_up
from tests.whole.laws_quotas import beyond_quotas

#: So many of each finding are named.
SHOWN = 3
#: A lease, the scheduler's margin, and some time to be heard in.
STRAY_S = 1200.0
REQUESTED = "tidegate.request.v1"
CANCELLED = "tidegate.job.cancelled.v1"
DIED = "tidegate.node.died.v1"
LOAD = "tidegate.inference.load.v1"
#: How a job ended whose worker said that it is not to be started again.
HOPELESS = "JobFailed: not_retriable"
#: How a job ended that a policy does not see done in time.
DECLINED = "JobDeclined: "
_ENDED = ("JobCompleted", "JobFailed", "JobCancelled", "JobDeclined", "SubmissionRefused")


@dataclass(slots=True)
class Books:
    """All that was written down."""

    events: list[Record]
    telemetry: list[Record]
    journal: list[Record]
    commands: list[Record]
    dead: list[Record]
    effects: list[Effect]
    deaths: Mapping[str, Sequence[float]]
    accepted: Sequence[str]  #: Jobs whose submission the broker confirmed.
    cancelled: Sequence[str]
    hostile: set[bytes] = field(default_factory=set)  #: What was said that nobody honest says.
    #: What edge agents were told is stored.
    confirmed: Sequence[bytes] = ()
    #: By edge agent, what was said at its own MQTT addresses.
    at_home: Mapping[str, set[bytes]] = field(default_factory=dict)
    #: What the broker confirmed and lost, of any topic, and when it lost that. Everything else
    #: here is what it has now, but for commands: agents may have obeyed those that were lost.
    lost: list[Record] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    #: Jobs of which a worker died that is not to be started again.
    hopeless: frozenset[str] = frozenset()
    #: Jobs with a deadline, which a policy may decline.
    deadlines: Collection[str] = ()
    #: By tenant, the most GPUs that it may have under the policy `rationing`.
    quotas: Mapping[str, int] = field(default_factory=dict)
    rationing: str = ""


def broken(books: Books) -> Iterator[str]:
    """Name the laws that were broken, and by what."""
    said = [one for one in map(_said, [*books.telemetry, *books.events]) if one is not None]
    journal = [read_entry(record.value or b"") for record in books.journal]
    dead = {record.value or b"" for record in books.dead}
    buried = {one.cause for one in map(_said, books.dead) if one is not None}
    confirmed = [read_said(value).cause for value in books.confirmed]
    gone = [one for one in map(_said, books.lost) if one is not None]
    found = delivery(
        [*gone, *said],
        journal,
        confirmed=confirmed,
        buried={one.cause for one in gone}
        | buried
        | _pointless(said, journal)
        | _of_lost_gangs(said, journal, books.losses),
    )
    yield from _shown("confirmed to its agent, and not in Kafka", found.vanished)
    yield from _shown("in Kafka for an edge agent that did not say it", _forged(books))
    yield from _shown("two messages under one id", _under_one_id(books))
    yield from _shown("accepted and never told to the engine", found.untold)
    yield from _shown("told to the engine twice", found.retold)
    yield from _shown("told to the engine, and nobody said it", found.invented)
    yield from _shown("acknowledged, and the engine never learnt", acks_untold(said, journal))
    yield from _shown(
        "a dead letter that nobody can explain",
        [
            str(value[:200])
            for value in sorted(
                dead - books.hostile - _strays(books) - _moved(books.dead, books.journal)
            )
        ],
    )
    unheard = set(filter(None, map(_submits, gone)))
    told = jobs(books.accepted, journal)
    told.lost = [job for job in told.lost if job not in unheard]
    yield from _shown("jobs accepted, and unknown", told.lost)
    yield from _shown("jobs that never ended", told.unfinished)
    yield from _shown("jobs completed twice", told.twice)
    wanted = set(books.cancelled)
    yield from _shown(
        "jobs that ended for no good reason",
        [
            f"{job}: {why}"
            for job, why in told.ended.items()
            if job not in {HOPELESS: books.hopeless, DECLINED: books.deadlines}.get(why, wanted)
        ],
    )
    orders = read_orders(record.value or b"" for record in books.commands)
    yield from _shown("commands with two effects", repeated_effects(books.effects, orders))
    held = tenures(books.effects, books.deaths)
    clear = list(_outside(held, books.losses))
    yield from _shown("GPUs with two owners", double_owners(clear))
    yield from _shown("jobs at two places", double_places(clear))
    # What was lost may have said otherwise: of decisions that nobody knows, gangs may run.
    alive = [] if books.losses else given_up(books.journal, books.effects)
    yield from _shown("gangs that run and were given up", alive)
    found_beyond = beyond_quotas(books.journal, books.quotas, books.rationing)
    yield from _shown("more than the quota says", found_beyond)
    yield from _shown(
        "GPUs never given back", [str(one) for one in held if one.to_s == float("inf")]
    )


def _submits(said: Said) -> str | None:
    """Name the job that is submitted, by an event or by a request."""
    if said.type == SUBMITTED:
        return str(said.data["job"])
    args = said.data.get("args", {}) if said.type == REQUESTED else {}
    return str(args["spec"]["job"]) if args.get("verb") == "job.submit" else None


def _of_lost_gangs(
    said: Sequence[Said], journal: Sequence[Entry], losses: Sequence[float]
) -> set[Cause]:
    """Find what is said of gangs whose start was decided in what was lost: nobody knows them."""
    known = {
        (fields["job"], fields["epoch"])
        for entry in journal
        for name, fields in entry.facts
        if name in ("GangStarting", "GangScaling") and "epoch" in fields
    }
    return {
        one.cause
        for one in said
        if losses and "epoch" in one.data and (one.data["job"], one.data["epoch"]) not in known
    }


def _strays(books: Books) -> set[bytes]:
    """Find dead letters that a loss explains: agents speak of what the scheduler knows no more.

    One that was out of contact says what has waited before it can be asked what it is; one that is
    heard and cannot be asked goes on like that until it is known again, however long that takes.
    """
    joined: dict[str, list[float]] = defaultdict(list)
    for entry in (read_entry(record.value or b"") for record in books.journal if books.losses):
        for name, fields in entry.facts:
            if name == "NodeJoined":
                joined[f"/agents/{fields['agent']}"].append(entry.at_s)
    stored: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in [*books.telemetry, *books.events] if books.losses else ():
        said = _said(record)
        if said is not None and record.value not in books.hostile:
            # What is stored later than the loss may be a copy of what was said before it.
            stored[said.cause[0]].append((min(said.at_s, record.time_s), record.time_s))
    found = set()
    for record in books.dead:
        said = _said(record)
        if said is None or not said.cause[0].startswith("/agents/"):
            continue
        for lost_s in books.losses:
            since = [at_s for said_s, at_s in stored[said.cause[0]] if said_s >= lost_s]
            known_s = min((at_s for at_s in joined[said.cause[0]] if at_s >= lost_s), default=0.0)
            until_s = max(min(since, default=float("inf")) + STRAY_S, known_s)
            if lost_s <= record.time_s < until_s:
                found.add(record.value or b"")
    return found


def _moved(dead: Sequence[Record], journal: Sequence[Record]) -> set[bytes]:
    """Find dead letters that a change of pool explains: loads of a pool in which no node is then.

    What an owner needed while its agent was out of contact comes after the birth in another pool;
    by way of a bridge, what it needs there may come before that birth, also in the same tick.
    """
    pools: dict[str, list[tuple[float, str]]] = defaultdict(list)
    loads = [(record, one) for record in dead if (one := _said(record)) and one.type == LOAD]
    for record in journal if loads else ():
        for name, fields in read_entry(record.value or b"").facts:
            if name == "NodeJoined":
                pools[f"/agents/{fields['agent']}"].append((record.time_s, fields["pool"]))
    found = set()
    for record, said in loads:
        joined, pool = pools[said.cause[0]], said.data["pool"]
        before = [one for at_s, one in joined if at_s < record.time_s][-1:]
        in_it = {*before, *(one for at_s, one in joined if at_s == record.time_s)} == {pool}
        every = {one for _, one in joined}
        if len(every) > 1 and pool in every and not in_it:
            found.add(record.value or b"")
    return found


def _outside(held: Iterable[Tenure], losses: Sequence[float]) -> Iterator[Tenure]:
    """Leave out the time after losses: nobody knows what a lost decision has started.

    Its agent is heard within that, and told to stop it, or the lease ends.
    """
    for tenure in held:
        from_s = tenure.from_s
        for lost_s in sorted(losses):
            if from_s < lost_s < tenure.to_s:
                yield replace(tenure, from_s=from_s, to_s=lost_s)
            if lost_s <= tenure.to_s and from_s < lost_s + STRAY_S:
                from_s = max(from_s, lost_s + STRAY_S)
        if from_s < tenure.to_s:
            yield replace(tenure, from_s=from_s)


def facts(books: Books) -> Counter[str]:
    """Count what the engine found to be so."""
    return Counter(
        name for record in books.journal for name, _ in read_entry(record.value or b"").facts
    )


def _pointless(said: Sequence[Said], journal: Sequence[Entry]) -> set[Cause]:
    """Find what the engine need not be told when it is read.

    That a job shall be cancelled which is unknown or over, or was cancelled before, by whatever
    way; that a node has gone which is known to be dead. An event is read before any entry that one
    behind it caused; a copy of that one may have been told much later.
    """
    begun: dict[str, int] = {}
    over: dict[str, int] = {}
    lives: dict[str, list[tuple[int, bool]]] = defaultdict(list)  #: By node, number and whether.
    for entry in journal:
        if entry.kind == "JobCancelled":
            over.setdefault(entry.data["job"], entry.number)
        for name, fields in entry.facts:
            if name == "JobAccepted":
                begun[fields["job"]] = entry.number
            elif name in (*_ENDED, "CancelRequested"):
                over.setdefault(fields["job"], entry.number)
            elif name in ("NodeJoined", "NodeLost"):
                lives[fields["node"]].append((entry.number, name == "NodeJoined"))
    told = {entry.cause: entry.number for entry in journal if entry.cause is not None}
    found: set[Cause] = set()
    then = never = len(journal)
    first = {one.cause: index for index, one in reversed(list(enumerate(said)))}
    for index, one in reversed(list(enumerate(said))):
        if one.type == CANCELLED:
            job = one.data["job"]
            if over.get(job, never) < then or begun.get(job, never + 1) > then:
                found.add(one.cause)
        elif one.type == DIED:
            before = [lived for number, lived in lives[one.data["node"]] if number < then]
            if not before or not before[-1]:
                found.add(one.cause)
        if first[one.cause] == index:  # a copy is no new word
            then = min(then, told.get(one.cause, then))
    return found


def _under_one_id(books: Books) -> list[str]:
    """Find ids that stand for two messages: the second would be taken for a copy, and be lost.

    Of links it matters only which connection they speak of, and that is in the id.
    """
    first: dict[Cause, bytes] = {}
    found = []
    for record in [*books.events, *books.telemetry]:
        one, value = _said(record), record.value or b""
        if one is None or value in books.hostile or one.cause[0].startswith("/links/"):
            continue
        if first.setdefault(one.cause, value) != value:
            found.append(f"{one.cause}: {one.type}")
    return found


def _forged(books: Books) -> list[str]:
    """Find what passed for an edge agent's and was not said, to the byte, where only it speaks."""
    found = []
    for record in [*books.events, *books.telemetry]:
        one = _said(record)
        if one is None:
            continue
        kind, _, name = one.cause[0].removeprefix("/").partition("/")
        said = books.at_home.get(name)
        if kind in ("agents", "links") and said is not None and record.value not in said:
            found.append(f"{one.cause}: {one.type}")
    return found


def _shown(what: str, found: Iterable[str]) -> Iterator[str]:
    found = list(found)
    if found:
        more = f"; {len(found)} in all" if len(found) > SHOWN else ""
        yield f"{what}: " + "; ".join(found[:SHOWN]) + more


def _said(record: Record) -> Said | None:
    try:
        return read_said(record.value or b"")
    except (ValueError, KeyError, TypeError):
        return None
