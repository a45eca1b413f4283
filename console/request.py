"""Asking a scheduler for something: a request put on the log, and what the scheduler answers.

On a file nothing is signed: whoever can write it is its owner, and asks as an operator, or as an
administrator for what only those may do. Over Kafka `--sign KEY_ID=FILE` signs, with a key that the
scheduler trusts, for the verbs that this key may pass on.
"""

import asyncio
import getpass
import re
import secrets
import shlex
from dataclasses import dataclass
from typing import Annotated

import typer
from pydantic import ValidationError

from bus.clock import Clock, PacedClock, SystemClock
from bus.contract import Bus, Message
from bus.signing import Signer
from console.kafka import is_kafka
from console.output import fail
from console.reading import ask_log, open_to_write, read_bus
from console.response import ANSWER_S, publish_and_hear
from console.source import Sent, Wish
from explain.acts import right_unchecked
from explain.answer import Reading
from scheduler.core.rights import MAY
from schemas.codec import Rejected, decode_cell, encode, event, request
from schemas.events import JobCancelled, JobSubmitted
from schemas.parse import first_error
from schemas.requests import Request
from schemas.topics import CELLS, EVENTS, REQUESTS

Signed = Annotated[
    str | None,
    typer.Option(
        "--sign",
        metavar="KEY_ID=FILE",
        envvar="TIDEGATE_SIGN",
        help="Sign with this Ed25519 key, which the scheduler trusts; needed over Kafka.",
    ),
]
_NAME_A_KEY = (
    "name a key that the scheduler trusts (scheduler.trusted_gateways), as in "
    "--sign ops=ops-key.pem"
)
WhyAsked = Annotated[str, typer.Option("--reason", help="Why, for those who ask later.")]


@dataclass(frozen=True, slots=True)
class Addressed:
    """A log that somebody is about to ask something of, and the cell that it is for."""

    log: str
    reading: Reading
    online: bool  #: A scheduler says that it leads.
    clock: Clock
    now_s: float  #: In the time that the log lives in: simulated logs have their own.

    @classmethod
    def of(cls, log: str, cell: str | None) -> "Addressed":
        """Look at a log that was `located`; say so and end if nobody can go on with it."""
        reading, online = ask_log(log, cell, lambda bus: _look(bus, cell))
        if reading.virtual and reading.state.number:
            fail(f"--log: {log} is the record of a simulation, with which nobody goes on.")
        if reading.simulated:
            now_s = reading.newest_s
            return cls(log, reading, online, PacedClock(now_s, None), now_s)
        clock = SystemClock()
        return cls(log, reading, online, clock, clock.now_s())

    def ask(self, wish: Wish, reason: str, sign: str | None) -> None:
        """Ask for something, and wait for the answer if a scheduler runs; end if it refuses.

        With a key the same may be asked again: it is taken once. Over Kafka, where nothing is
        signed and nothing but an event is taken, an event asks for it if there is one.
        """
        unsigned = is_kafka(self.log) and sign is None and wish.key is None
        if unsigned and wish.as_event is not None:
            self._put(*self._event(wish.as_event, reason))
        else:
            self._put(*self.written(wish, reason, sign), may_repeat=wish.key is not None)

    def written(self, wish: Wish, reason: str, sign: str | None) -> tuple[Message, str]:
        """Write a request of now; give its message, and the source by which it is found again."""
        signer = signer_of(sign)
        if is_kafka(self.log) and signer is None:
            fail(f"--sign is missing: over Kafka requests are signed; {_NAME_A_KEY}.")
        name = f"cli-{secrets.token_hex(8)}"
        asked = self.request(wish, reason, name)
        # A source of its own, by which the journal's entry is found.
        said = request(asked, source=f"/operators/{name}")
        value = encode(said)
        headers = {} if signer is None else signer.headers(value)
        return Message(REQUESTS.name, self.reading.cell, value, headers), said.source

    def request(self, wish: Wish, reason: str, name: str) -> Request:
        """Make a request of now, of this name if it has no key; say so and end if it cannot be."""
        assert wish.args is not None
        now_s = self.now_s if self.reading.simulated else self.clock.now_s()
        try:
            return Request(
                id=name if wish.key is None else wish.key,
                args=wish.args,
                subject=user(),
                role="operator" if "operator" in MAY[wish.args.verb] else "admin",
                reason=reason,
                asked_s=now_s,
                expires_s=now_s + wish.life_s,
                cell=self.reading.cell,
            )
        except ValidationError as error:
            wrong = first_error(error)
            field = "key" if wrong.field == "id" else wrong.field
            fail(f"--{field}: {wrong.reason}.")

    def _event(self, said: JobSubmitted | JobCancelled, reason: str) -> tuple[Message, str]:
        if isinstance(said, JobCancelled):
            try:
                said = JobCancelled(job=said.job, reason=reason)
            except ValidationError as error:
                wrong = first_error(error)
                fail(f"--{wrong.field}: {wrong.reason}.")
        elif reason:
            why = "a job that nobody signs for has none over Kafka; leave it out"
            fail(f"--reason: {why}, or {_NAME_A_KEY}.")
        # A name of its own, so that sequence 0 is fresh whoever said something before.
        source, cell = f"/operators/cli-{secrets.token_hex(8)}", self.reading.cell
        told = event(said, source=source, sequence=0, bootid=0, time_s=self.now_s, cell=cell)
        return Message(EVENTS.name, cell, encode(told)), source

    def _put(self, message: Message, source: str, *, may_repeat: bool = False) -> None:
        async def run() -> str:
            bus = open_to_write(self.log, self.clock, self.reading.cell)
            try:
                wait_s = ANSWER_S if self.online else 0.0
                return await publish_and_hear(bus, message, source, wait_s)
            finally:
                await bus.close()

        refused = asyncio.run(run())
        if refused.startswith("type: "):  # an event, where each job is asked for by a request
            refused += f", which is signed; {_NAME_A_KEY}"
        if refused and not (may_repeat and refused.startswith("id: was taken before")):
            fail(f"The scheduler refused it: {refused}.", code=1)

    def sent(self) -> Sent:
        """Say whether anybody takes it up now, and for programs where it went."""
        notes: tuple[str, ...] = ()
        if not self.online and self.reading.simulated and not is_kafka(self.log):
            again = f"tidegate demo --log {shlex.quote(self.log)}"
            notes = (
                "The demo of this log has ended or stopped. It takes this up if it goes on, by",
                f"its own options and --log, as in: {again}",
            )
        elif not self.online:
            notes = ("No scheduler runs on this log now; it is taken up when one starts.",)
        return Sent(notes, {"log": self.log, "scheduler_online": self.online})


async def _look(bus: Bus, cell: str | None) -> tuple[Reading, bool]:
    """Read the state, and whether a scheduler says that it leads."""
    reading = await read_bus(bus, cell)
    record = await bus.latest(CELLS.name, reading.cell)
    word = None if record is None or record.value is None else decode_cell(record.value)
    online = word is not None and not isinstance(word, Rejected) and word.data.online
    return reading, online


def signer_of(sign: str | None) -> Signer | None:
    """Read a key to sign with; None where none is named."""
    if sign is None:
        return None
    key_id, _, path = sign.partition("=")
    if not key_id or not path:
        fail(f"--sign: {sign!r} is not KEY_ID=FILE, as in ops=ops-key.pem.")
    return Signer.from_file(key_id, path)


def left_unchecked(log: str, wish: Wish, signer: Signer | None) -> tuple[str, ...]:
    """Say what a dry run cannot know of a wish: what only the scheduler's configuration says."""
    if not is_kafka(log) or wish.args is None:
        return ()
    if signer is not None:
        return (right_unchecked(signer.key_id, wish.args.verb),)
    if wish.as_event is not None and wish.key is None:
        return ()
    return (f"To ask for it over Kafka it must be signed; {_NAME_A_KEY}.",)


def user() -> str:
    """Name who asks, as this machine knows them."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "somebody"
    return re.sub(r"[^A-Za-z0-9._:@+/-]", "-", name).lstrip("._:@+/-")[:200] or "somebody"
