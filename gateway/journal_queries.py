"""Answers that need the journal beside a state: why, story, failures, decisions, dead letters."""

import bisect
import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from bus.contract import Record
from explain.answer import Answer
from explain.documents import ReasonDocument, reason_document
from explain.ends import End, Ends
from explain.loan_history import FACTS, WANTED, PastLoan, loans_in
from explain.metrics import Sample
from explain.story import Given, Story
from explain.wording import Wording, reason_from
from gateway.about import MOMENTS, SUBJECTS, Kind, pool_of
from gateway.feed import Feed
from gateway.index import PLACE_EVERY
from gateway.past import Moment, guarded, mentioning, raw_between, reachable
from gateway.problems import Problem
from gateway.request_context import Asked
from gateway.subjects import Sight
from gateway.views import reading_of
from scheduler.core.state import Job
from schemas.journal import JournalEntry, RawEntry
from schemas.topics import ALL_TOPICS, dead_letters

#: Reasons of one decision that a list gives.
_REASONS = 50
#: Entries that are looked through for a page of decisions that tell something, and at a time.
_LOOKED, _STEP = 5000, 250
#: Names that one is compared with, before and after it in their order; of long ones fewer, since
#: to compare two takes as long as their lengths multiplied.
_NEAR, _NEAR_LETTERS = 250, 100_000
#: Of a dead letter's bytes, so many are shown.
_TEXT_BYTES = 4096
#: Topics that have dead letters, by the name that the API gives them.
LETTER_TOPICS = {
    name.removeprefix("tidegate.").partition(".")[0]: dead_letters(topic).name
    for name, topic in ALL_TOPICS.items()
    if f"{name}.dlq" in ALL_TOPICS
}
_Document = dict[str, Any]


async def story_entries(feed: Feed, job: str, before: int) -> list[JournalEntry]:
    """Give the entries that a job's story is made of.

    Reclaims and drains matter to it only on nodes that it ran on.
    """
    own = await mentioning(feed, [((Kind.JOB,), job)], before)
    nodes = {
        node: None
        for entry in own
        for _, fields in entry.decision.get("facts", ())
        if fields.get("job") == job
        for node in fields.get("allocation", ())
    }
    of_nodes = [((Kind.LOAN, Kind.ASKED_OF), node) for node in nodes]
    loans = await mentioning(feed, of_nodes, before)
    entries = {entry.number: entry for entry in (*own, *loans)}
    return [entries[number] for number in sorted(entries)]


_Told = tuple[Story, list[tuple[int, int]]]


async def told(asked: Asked, job: str) -> tuple[Moment, _Told]:
    """Give a job's story, and by entry how many events it had then.

    Raises:
        Problem: 404, there is no such job.
    """

    async def gather(moment: Moment) -> _Told:
        told, numbers = Story(job), list[tuple[int, int]]()
        for entry in await story_entries(moment.feed, job, moment.entries):
            first = told.events[:1]
            told.take(entry)
            if told.events[:1] != first:  # another job has this id from here on
                numbers.clear()
            numbers.append((entry.number, len(told.events)))
        return told, numbers

    moment, found = await asked.settled(gather)
    await _own(asked, moment, job)
    if not found[0].events and job not in moment.state.jobs:
        raise no_job(asked, moment, job)
    return moment, found


async def why(asked: Asked, job: str) -> tuple[Moment, Answer]:
    """Give what is known of a job.

    Raises:
        Problem: 404, there is no such job.
    """
    moment, (story, _) = await told(asked, job)
    answer = Answer.of(reading_of(moment), story)
    assert answer is not None, "it has events, or the state has it"
    return moment, answer


async def story(asked: Asked, job: str) -> tuple[Moment, list[_Document]]:
    """Give the events of a job's life.

    Raises:
        Problem: 404, there is no such job.
    """
    moment, (known, numbers) = await told(asked, job)
    wording, done = Wording(moment.feed.origin_s), 0
    found: list[_Document] = []
    for number, count in numbers:
        for event in known.events[done:count]:
            because = None
            if event.reason is not None:
                because = reason_document(Given(event.at_s, event.reason), wording)
            found.append(
                {
                    "entry": number,
                    "at_s": event.at_s,
                    "kind": event.kind,
                    "fields": event.fields,
                    "because": because,
                    "reclaimed": [one.node for one in event.reclaims],
                }
            )
        done = count
    return moment, found


async def samples(asked: Asked, job: str, most: int) -> tuple[Moment, list[Sample]]:
    """Give what a job reported of itself: at most so many samples, at even distances.

    Raises:
        Problem: 404, there is no such job.
    """

    async def gather(moment: Moment) -> tuple[bool, list[Sample]]:
        async def find() -> tuple[bool, list[Sample]]:
            index, before = moment.feed.index, moment.entries
            known = index.mentioned((Kind.JOB,), job, before=before, newest=1)
            return bool(known), index.samples(job, before, most, since_s)

        since_s, _ = await _accepted(moment, job)
        return await guarded(moment.feed, find)

    moment, (known, found) = await asked.settled(gather)
    await _own(asked, moment, job)
    if not known and job not in moment.state.jobs:
        raise no_job(asked, moment, job)
    return moment, found


async def ends(asked: Asked, moment: Moment, jobs: Sequence[Job]) -> dict[str, End]:
    """Say of jobs that are over what the journal alone says of that: in their programs' words, too.

    Of jobs that the subject does not see whole it says nothing.
    """
    view = asked.view(moment)
    over = [job.id for job in jobs if Ends.tells_of(job) and view.whole(job)]
    told, wanted = Ends(over), [((Kind.JOB,), job) for job in over]
    for entry in await mentioning(moment.feed, wanted, moment.entries):
        told.take(entry)
    return told.found


async def loan_history(moment: Moment) -> list[PastLoan]:
    """Tell all loans until a moment."""
    wanted = [((Kind.MOMENT,), name) for fact, name in MOMENTS.items() if fact in FACTS]
    entries = await mentioning(moment.feed, wanted, moment.entries, WANTED)
    pools = {name: node.pool for name, node in moment.state.nodes.items()}
    return loans_in(entries, pools, moment.state.now_s)


async def _own(asked: Asked, moment: Moment, job: str) -> None:
    """Refuse what is told of another tenant's job to who may not know its name.

    Raises:
        Problem: 403, it is known by its pseudonym alone; 404, or not at all.
    """
    if asked.who.sight is not Sight.OWN_NAMES:
        return
    if not asked.who.owns((await _accepted(moment, job))[1]):
        if asked.view(moment).named(job) is not None:
            raise Problem(403, "this is another tenant's job: its tenant and operators may ask why "
                          "and for its story; jobs/ID gives its row")  # fmt: skip
        raise no_job(asked, moment, job)


async def _accepted(moment: Moment, job: str) -> tuple[float, str | None]:
    """Give when the newest job of an id was accepted, and whose it is; None: there is none."""
    known = moment.state.jobs.get(job)
    if known is not None:  # its entry may be pruned from the log
        return known.submit_s, known.tenant
    found: tuple[float, str | None] = 0.0, None
    for entry in await mentioning(moment.feed, [((Kind.JOB,), job)], moment.entries):
        for kind, fields in entry.decision.get("facts", ()):
            if kind == "JobAccepted" and fields["job"] == job:
                found = entry.at_s, fields["spec"]["tenant"]
    return found


def no_job(asked: Asked, moment: Moment, job: str) -> Problem:
    """Say that there is no such job, and which are near."""
    view = asked.view(moment)
    names = sorted(one.id for one in moment.state.jobs.values() if view.whole(one))
    # To compare one with fifty thousand takes a second, in which nobody else is answered.
    place = bisect.bisect(names, job)
    count = min(_NEAR, 1 + _NEAR_LETTERS // max(1, len(job)) ** 2)
    some = names[max(0, place - count) : place + count]
    near = difflib.get_close_matches(job, some, n=3, cutoff=0.5)
    if near:
        text = f"nearest are {', '.join(near)}"
    else:
        text = (
            "GET /api/v1/jobs, or `tidegate jobs --all`, lists them; one that was just submitted "
            "comes with a next entry"
        )
    return Problem(404, f"there is no job {job[:128]!r} at this moment: {text}", parameter="job")


async def decisions(
    feed: Feed, before: int, limit: int, subject: str | None, rule: str | None, telling: bool
) -> tuple[list[_Document], int | None]:
    """Give decisions before an entry, newest first, and before which the next page is.

    With `telling` only those that gave commands or reasons, or failed: of others that come one
    after another so many are looked through for one page, which may then hold fewer rows.
    """
    numbers: Sequence[int] = range(before - 1, feed.index.first - 1, -1)
    step, chosen = _STEP if telling else limit, False

    async def find() -> list[int]:
        reachable(feed, before - feed.index.entries)
        known = [
            {number for number, _ in feed.index.mentioned(kinds, name, before=before)}
            for kinds, name in ((SUBJECTS, subject), ((Kind.RULE,), rule))
            if name is not None
        ]
        return sorted(set.intersection(*known), reverse=True)

    if subject is not None or rule is not None:
        numbers, chosen = await guarded(feed, find), True
    wording, found, looked = Wording(feed.origin_s), list[_Document](), 0
    while looked < min(len(numbers), _LOOKED) and len(found) < limit:
        some = numbers[looked : looked + step]
        if chosen:  # those that are read from the same place, at once
            place = some[0] // PLACE_EVERY
            some = [number for number in some if number // PLACE_EVERY == place]
        for entry in reversed(await raw_between(feed, some[-1], some[0] + 1)):
            if entry.number not in some:
                continue
            looked += 1
            if not telling or _tells(entry):
                found.append(_decided(entry, wording, subject, rule))
            if len(found) == limit:
                break
    return found, numbers[looked - 1] if 0 < looked < len(numbers) else None


def _tells(entry: RawEntry) -> bool:
    # Most do not, as their bytes show: those are not read.
    told = entry.decision
    if b'"commands":[]' in told and b'"reasons":[]' in told and b'"error":' not in told:
        return False
    decision = orjson.loads(told)
    return any(decision.get(name) for name in ("commands", "reasons", "error"))


def _names_in(reason: Mapping[str, Any]) -> set[str]:
    """Give what a reason is about: a lender that shares its pool stands for the pool, too."""
    names = (reason["subject"], *reason["lost_to"])
    return {*names, *map(pool_of, names)}


def _decided(entry: RawEntry, wording: Wording, subject: str | None, rule: str | None) -> _Document:
    stimulus, decision = orjson.loads(entry.stimulus), orjson.loads(entry.decision)
    data = stimulus["data"]
    reasons = [
        reason
        for reason in decision.get("reasons", ())
        if (subject is None or subject in _names_in(reason))
        and (rule is None or reason["rule"] == rule)
    ]
    told: list[ReasonDocument] = [
        reason_document(Given(entry.at_s, reason_from(reason)), wording)
        for reason in reasons[:_REASONS]
    ]
    return {
        "entry": entry.number,
        "at_s": entry.at_s,
        "policy": entry.policy,
        "stimulus": stimulus["kind"],
        "source": stimulus["cause"][0],
        "subject": next((data[name] for name in ("job", "node", "lender") if name in data), None),
        "facts": Counter(kind for kind, _ in decision.get("facts", ())),
        "commands": len(decision.get("commands", ())),
        "reasons": told,
        "reasons_total": len(reasons),
        "error": decision.get("error"),
    }


async def letters(
    moment: Moment, topic: str | None, before: int | None, limit: int
) -> tuple[list[_Document], int | None]:
    """Give dead letters that were there at a moment, newest first, and before which to go on."""
    feed = moment.feed
    names = [LETTER_TOPICS[topic]] if topic else list(LETTER_TOPICS.values())

    async def find() -> tuple[list[Record], int]:
        found: list[Record] = []
        low = 0
        for name in names:
            end = await feed.log.bus.end(name)
            high = end if before is None else min(before, end)
            low = max(0, high - limit)
            found += [record async for record in feed.log.read(name, low, high)]
        return found, low

    found, low = await guarded(feed, find)
    pinned_s = moment.state.now_s if moment.pinned or moment.entries < feed.entries else None
    found = [one for one in found if pinned_s is None or one.time_s <= pinned_s]
    found.sort(key=lambda one: (one.time_s, one.topic, one.offset), reverse=True)
    rows = [_letter(one) for one in found[:limit]]
    return rows, low if topic is not None and low > 0 else None


def _letter(record: Record) -> _Document:
    value = record.value or b""
    return {
        "topic": record.headers.get("dlq_origin_topic", record.topic.removesuffix(".dlq")),
        "offset": record.offset,
        "at_s": record.time_s,
        "key": record.key,
        "field": record.headers.get("dlq_field", ""),
        "reason": record.headers.get("dlq_error", ""),
        "size": len(value),
        "text": value[:_TEXT_BYTES].decode(errors="backslashreplace"),
    }
