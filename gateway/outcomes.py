"""What came of requests: from the journal through the index, and of those on their way."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal

import orjson

from explain.acts import Act, act_of, refused
from gateway.about import ACTS, Kind
from gateway.feed import Feed
from gateway.mailbox import Mailbox
from gateway.past import guarded, mentioning, picked
from gateway.problems import Problem, later
from gateway.sight import refusal_seen
from gateway.subjects import Subject
from schemas.codec import decode_request
from schemas.journal import JournalEntry
from schemas.parse import Rejected
from schemas.requests import Request
from schemas.topics import REQUESTS

Result = Literal["pending", "done", "refused", "dead_letter", "would_be_done"]
_Document = dict[str, Any]
#: What is the same where a request is asked again.
_same = attrgetter("subject", "tenant", "cell", "reason", "args")


class Outcome:
    """A request, and what came of it so far."""

    def __init__(
        self,
        asked: Request,
        result: Result,
        entry: int | None = None,
        wrong: tuple[str, str] = ("", ""),
        note: str = "",
    ) -> None:
        """`wrong`: the field that it was refused for, and why; `note`: what nobody looked at."""
        self.asked, self.result, self.entry = asked, result, entry
        self.field, self.because = wrong
        self.note = note

    def is_of(self, asked: Request) -> bool:
        """Whether it is of the same request, asked again."""
        return _same(self.asked) == _same(asked)

    def seen_by(self, who: Subject) -> "Outcome":
        """Give it as somebody sees it."""
        why = refusal_seen(who, self.asked.args.verb, self.field, self.because)
        return Outcome(self.asked, self.result, self.entry, (self.field, why))

    def document(self, nobody: str = "") -> _Document:
        """Write it; of what is pending, with why nobody takes it now."""
        asked, waits = self.asked, self.result == "pending"
        return {
            "cell": asked.cell,
            "request": asked.id,
            "result": self.result,
            "entry": self.entry,
            "field": self.field,
            "refused_because": self.because,
            "subject": asked.subject,
            "role": asked.role,
            "tenant": asked.tenant,
            "via": asked.via,
            "verb": asked.args.verb,
            "about": asked.about,
            "args": asked.args.model_dump(mode="json"),
            "reason": asked.reason,
            "asked_s": asked.asked_s,
            "expires_s": asked.expires_s,
            "nobody_leads": nobody or None if waits else None,
            "note": self.note or None,
        }


async def outcome(feed: Feed, mailbox: Mailbox, name: str) -> Outcome | None:
    """Find what came of a request; None if nobody knows of it.

    Raises:
        Problem: it cannot be told now.
    """
    if (found := await _journalled(feed, name)) is not None:
        return found

    async def look() -> Request | None:
        await mailbox.look(feed)
        for offset in mailbox.offsets(name):
            record = await feed.log.record(REQUESTS.name, offset)
            read = None if record is None else decode_request(record.value or b"")
            if read is not None and not isinstance(read, Rejected):
                return read.data
        return None

    asked = await guarded(feed, look)
    if asked is None:
        return None
    letter = mailbox.letter(name)
    if letter is None or feed.live is None or feed.live.offset < letter.journal_end:
        return Outcome(asked, "pending")
    # Of two records with one id the first is taken, and the other becomes a dead letter.
    taken = await _journalled(feed, name)
    return taken or Outcome(asked, "dead_letter", wrong=(letter.field, letter.reason))


async def _journalled(feed: Feed, name: str) -> Outcome | None:
    async def find() -> list[JournalEntry]:
        rows = feed.index.mentioned((Kind.REQUEST,), name, before=feed.entries, newest=1)
        return [entry async for entry in picked(feed, [offset for _, offset in rows])]

    found = await guarded(feed, find)
    if not found and feed.index.entries < feed.entries:
        # The index is being built: what is after it is read through.
        wanted = [((Kind.REQUEST,), name)]
        found = [one for one in await mentioning(feed, wanted, feed.entries) if _is(one, name)]
    if not found:
        return None
    entry = found[-1]
    asked = Request.model_validate_json(orjson.dumps(entry.stimulus["data"]["request"]))
    wrong = refused(entry.decision)
    return Outcome(asked, "refused" if wrong[1] else "done", entry.number, wrong)


def _is(entry: JournalEntry, name: str) -> bool:
    act = act_of(entry.number, entry.at_s, entry.stimulus, entry.decision)
    return act is not None and act.request == name


async def acts(
    feed: Feed, who: Subject, before: int, limit: int, wanted: Mapping[Kind, str]
) -> tuple[list[Act], int | None]:
    """Give what people asked for before an entry, newest first, and before which to go on.

    Raises:
        Problem: it cannot be told now.
    """
    if feed.index.entries < before:
        raise later(
            f"the index of the log is being built and is at {feed.done:.0%}; ask again once "
            "GET /api/v1/health says that it is done",
            2.0,
        )
    chosen = [(kind, name) for kind, name in wanted.items() if name] or [(Kind.ACT, ACTS)]
    newest = limit + 1 if len(chosen) == 1 else None

    async def find() -> list[JournalEntry]:
        places: dict[int, int] | None = None
        for kind, name in chosen:
            rows = dict(feed.index.mentioned((kind,), name, before=before, newest=newest))
            if places is not None:
                rows = {number: rows[number] for number in rows if number in places}
            places = rows
        newest_of = sorted((places or {}).items())[-limit - 1 :]
        return [entry async for entry in picked(feed, [offset for _, offset in newest_of])][::-1]

    found = await guarded(feed, find)
    told = [act_of(one.number, one.at_s, one.stimulus, one.decision) for one in found]
    rows = [_act_seen(who, one) for one in told if one is not None]
    return rows[:limit], rows[limit - 1].entry if len(rows) > limit else None


def _act_seen(who: Subject, act: Act) -> Act:
    field, colon, why = act.refused_because.partition(": ")
    seen = refusal_seen(who, act.verb, field, why)
    return replace(act, refused_because=f"{field}{colon}{seen}")


def refusal(found: Outcome) -> Problem:
    """Say that the scheduler refused a request."""
    where = f"{found.field}: " if found.field else ""
    written = found.entry is not None or found.result == "dead_letter"
    return Problem(
        409,
        f"the scheduler refused it: {where}{found.because}. Nothing was done; correct it and ask "
        "anew, with another Idempotency-Key",
        parameter=found.field or None,
        headers={"Location": f"/api/v1/requests/{found.asked.id}"} if written else None,
        request=found.asked.id if written else None,
        entry=found.entry,
    )
