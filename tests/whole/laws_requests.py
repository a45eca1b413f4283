"""What must hold of requests, and of what they left standing, whatever befell the system.

All is read from the broker's records; only the signatures are checked by `scheduler.audit`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

import orjson

from bus.contract import Record
from bus.signing import Verifier
from scheduler.audit import Audit
from tests.chaos.ledger import read_entry
from tests.whole.operators import KEY

_ENDS = ("RequestDone", "RequestRefused")
#: What a job comes to when its gang has left.
_LEFT = ("JobQueued", "JobMigrating", "JobCompleted", "JobCancelled", "JobFailed")


def requests_broken(
    journal: Sequence[Record],
    stored: Sequence[Record],
    letters: Sequence[Record],
    confirmed: Collection[str],
    lost: Collection[Record],
) -> Iterator[tuple[str, str]]:
    """Name the laws that were broken, each with what broke it.

    Args:
        journal: The record of decisions.
        stored: Requests as the broker has them.
        letters: Those that became dead letters.
        confirmed: Ids of which the broker said that it has them.
        lost: What the broker has lost since, of any topic.
    """
    entries = [read_entry(record.value or b"") for record in journal]
    answers = Counter(
        fields["request"] for one in entries for name, fields in one.facts if name in _ENDS
    )
    told = Counter(one.data["request"]["id"] for one in entries if one.kind == "Requested")
    for name, count in (answers | told).items():
        if count > 1 or answers[name] != told[name]:
            yield "requests not acted on once", f"{name}: {count} times"
    asked = {_id(record) for record in stored}
    gone = {_id(record) for record in lost if record.topic.startswith("tidegate.requests")}
    for name in told:
        if name not in asked | gone or name.startswith("forged"):
            yield "requests done that nobody asked", name
    buried = {_id(record): record.headers for record in letters}
    for name in confirmed:
        if name not in told and name not in buried and name not in gone:
            yield "requests that nobody answered", name
    for name, headers in buried.items():
        field = headers["dlq_field"]
        known = field in ("data.expires_s", "data.asked_s") or (field == "data.id" and told[name])
        if not name.startswith("forged") and not known:
            yield "requests buried for no good reason", f"{name}: {field}: {headers['dlq_error']}"
    audit = Audit(Verifier.of({KEY.key_id: KEY.public()}))
    audit.read(journal)
    for one in audit.findings:
        yield "requests that cannot be proved", f"entry {one.entry}: {one.field}: {one.reason}"
    yield from _standing_broken(journal)


def _standing_broken(journal: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Follow cordons and drains through the journal."""
    closed: set[str] = set()
    drains: dict[str, float] = {}
    held: dict[str, set[tuple[str, int]]] = defaultdict(set)  #: By job, nodes and GPUs.
    end_s = 0.0
    for record in journal:
        entry = read_entry(record.value or b"")
        end_s = entry.at_s
        for name, fields in entry.facts:
            at = f"entry {entry.number}"
            if name == "NodeCordoned":
                closed.add(fields["node"])
            elif name == "NodeUncordoned":
                closed.discard(fields["node"])
            elif name == "DrainStarted":
                drains[fields["node"]] = fields["by_s"]
            elif name == "DrainEnded":
                drains.pop(fields["node"], None)
                on = [job for job, has in held.items() if any(n == fields["node"] for n, _ in has)]
                if fields["outcome"] == "empty" and on:
                    yield "a drained node that is not empty", f"{fields['node']} has {on}, {at}"
            elif name in ("GangStarting", "GangScaling"):
                wanted = {(n, gpu) for n, gpus in fields["allocation"].items() for gpu in gpus}
                for node in sorted({n for n, _ in wanted - held[fields["job"]]} & closed):
                    yield "work placed on a cordoned node", f"{fields['job']} on {node}, {at}"
                held[fields["job"]] |= wanted
            elif name == "GpusReleased":
                held[fields["job"]] -= {(fields["node"], gpu) for gpu in fields["gpus"]}
            elif name in _LEFT:
                held.pop(fields["job"], None)
    for node, by_s in drains.items():
        if by_s < end_s:
            yield "a drain without an end", f"{node}, which was to be empty by {by_s:.0f}"


def _id(record: Record) -> str:
    return str(orjson.loads(record.value or b"{}").get("id", ""))
