"""From a body and a subject to a request: who asks, in which role, when, and whether they may."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from explain.acts import right_unchecked
from explain.job_file import no_workdir
from explain.moments import is_demo
from explain.reading import newest
from gateway.body import Body, all_taken
from gateway.feed import Feed
from gateway.mailbox import Mailbox
from gateway.outbox import Outbox, Undelivered
from gateway.outcomes import Outcome
from gateway.past import guarded
from gateway.problems import Problem, later, wrong_field
from gateway.sight import TAKEN
from gateway.subjects import Sight, Subject
from scheduler.core.rights import forbidden
from scheduler.core.trial import refused
from schemas.codec import verb_left_out
from schemas.parse import first_error
from schemas.requests import Request, SubmitJob
from schemas.topics import TOPICS
from schemas.values import NAME_PATTERN

#: A request waits so long for a scheduler, in seconds of the log's time.
LIFE_S = 86_400.0
#: What an id looks like (`schemas.values.Name`).
NAME = NAME_PATTERN
_ONLY_READS = (
    "this gateway only reads: it has no key to sign with, or may not write the log; start it with "
    "--sign-key KEY_ID=FILE, or as who may write the file"
)
#: What a subject asks with, by how it proved who it is: a browser has a cookie.
_VIA = {"cookie": "console", "token": "api"}


@dataclass(slots=True)
class _Turnstile:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


def _as_member(args: Any, tenant: str | None) -> Any:
    """Have a submission that names no tenant be of the subject's own."""
    spec = args.get("spec") if isinstance(args, dict) else None
    if not isinstance(spec, dict) or args.get("verb") != "job.submit":
        return args
    return {**args, "spec": {"tenant": tenant or "operator", **spec}}


@dataclass(slots=True)
class Desk:
    """Where requests are made, and sent one at a time for each id."""

    outbox: Outbox | None = None  #: None: this gateway only reads.
    #: By cell, where each cell is written apart, as on Kafka.
    others: Mapping[str, Outbox] = field(default_factory=dict)
    _mailboxes: dict[str, Mailbox] = field(default_factory=dict)
    _busy: dict[str, _Turnstile] = field(default_factory=dict)

    def mailbox(self, feed: Feed) -> Mailbox:
        """Give the mailbox of a cell."""
        return self._mailboxes.setdefault(feed.cell, Mailbox())

    @contextlib.asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[None]:
        """Let nobody else of this gateway look for a request and send it meanwhile."""
        one = self._busy.setdefault(name, _Turnstile())
        one.users += 1
        try:
            async with one.lock:
                yield
        finally:
            one.users -= 1
            if not one.users:
                del self._busy[name]

    async def made(
        self, feed: Feed, who: Subject, body: Body, name: str, real_s: float
    ) -> tuple[Request, float | None]:
        """Make a request, and give the time that its log lives in; None: real time, `real_s`.

        Raises:
            Problem: 422, a field is wrong; 409, nobody goes on with this log.
        """
        log_s = await self._log_s(feed)
        now_s = real_s if log_s is None else log_s
        try:
            asked = Request.model_validate(
                {
                    "id": name,
                    "args": _as_member(body.args, who.tenant),
                    "subject": who.name,
                    "role": who.role.value,
                    "tenant": who.tenant,
                    "reason": body.reason,
                    "via": _VIA.get(who.via, "api"),
                    "asked_s": now_s,
                    "expires_s": now_s + LIFE_S,
                    "cell": feed.cell,
                }
            )
        except ValidationError as error:
            wrong = verb_left_out(first_error(error, "data"))
            raise wrong_field(wrong.field.removeprefix("data."), wrong.reason) from None
        if isinstance(asked.args, SubmitJob):
            all_taken(body.args["spec"], asked.args.spec.model_dump(), "args.spec")
            for relative in no_workdir(body.args["spec"]):
                raise Problem(422, f"args.spec.{relative}",
                              parameter="args.spec.program.workdir")  # fmt: skip
        return asked, log_s

    async def _log_s(self, feed: Feed) -> float | None:
        assert feed.live is not None
        state = feed.live.state
        if feed.closed:
            raise Problem(409, f"{feed.closed}; ask the gateway of a log that a scheduler works on")
        if state.number:
            return float(state.now_s) if feed.reading(state).simulated else None
        # Before the first decision the records tell.
        found_s = await guarded(feed, lambda: newest(feed.log.bus, TOPICS))
        return found_s if is_demo(found_s) else None

    def allowed(self, feed: Feed, who: Subject, asked: Request) -> None:
        """Refuse what the scheduler would refuse for who asks.

        Raises:
            Problem: 403, which role or tenant may; 409, the name is another's.
        """
        assert feed.live is not None
        state = feed.live.state
        wrong = forbidden(state, asked)
        name = None if isinstance(asked.args, SubmitJob) else getattr(asked.args, "job", None)
        if who.sight is Sight.OWN_NAMES and name is not None:
            job = state.jobs.get(name)
            if job is None or not who.owns(job.tenant):
                # The same for another's job and for none: else names could be guessed.
                wrong = "args.job", f"{who.tenant} has no job {name}"
        if who.sight is Sight.OWN_NAMES and isinstance(asked.args, SubmitJob):
            taken = state.jobs.get(asked.args.spec.job)
            if wrong is None and taken is not None and not who.owns(taken.tenant):
                # The scheduler would say whose.
                raise wrong_field("args.spec.job", f"{TAKEN}. Nothing was done", 409)
        if wrong is not None:
            raise wrong_field(*wrong, 403)

    async def send(self, asked: Request, log_s: float | None) -> None:
        """Put a request on the log.

        Raises:
            Problem: 413, 503, 403: it is too large, the log is away, or this gateway only reads.
        """
        outbox = self.others.get(asked.cell, self.outbox)
        if outbox is None:
            raise Problem(403, _ONLY_READS)
        try:
            await outbox.send(asked, log_s)
        except ValueError as error:
            raise Problem(413, f"{error}") from error
        except Undelivered as error:
            away = later(
                f"the log cannot be written now: {error}. Ask again with Idempotency-Key: "
                f"{asked.id}, and it is done once, whether it was written or not",
                2.0,
            )
            away.request = asked.id
            raise away from error

    def preview(self, feed: Feed, asked: Request) -> Outcome:
        """Say what the scheduler would say to a request now, by its own code.

        Which verbs it lets the gateway's key pass on is in its configuration, which no log has.
        """
        assert feed.live is not None
        wrong = refused(feed.live.state, asked)
        if wrong is not None:
            return Outcome(asked, "refused", wrong=wrong)
        outbox, note = self.others.get(asked.cell, self.outbox), ""
        if outbox is None:
            note = f"It would not be passed on from here: {_ONLY_READS}."
        elif outbox.key_id:
            note = right_unchecked(outbox.key_id, asked.args.verb)
        return Outcome(asked, "would_be_done", note=note)

    async def close(self) -> None:
        """Let go of the log."""
        for outbox in (self.outbox, *self.others.values()):
            if outbox is not None:
                await outbox.close()
