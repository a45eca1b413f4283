"""Whose requests are taken over brokers: gateways, each with its key and the verbs it may pass on.

A request is signed over its exact bytes (`bus.signing`), so that a broker, and whoever else can
write the topic, only carries it. A key that may pass on few verbs can do little harm if it is
stolen; what the subject itself may do, the engine decides (`scheduler.core.rights`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from bus.contract import Record
from bus.signing import KEY_ID, SIGNATURE, Verifier
from scheduler.core.rights import Wrong
from schemas.requests import Request

#: What is told of the name of a key that nobody knows.
_KEY_CHARS = 64
_NONE = (
    "no gateway is trusted here: name its key in scheduler.trusted_gateways (docs/configuration.md)"
)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A key that may sign requests."""

    key: str  #: Base64 of the 32 bytes of an Ed25519 public key, or the path of a PEM file.
    may: tuple[str, ...]  #: Names of verbs.


class Gateways:
    """Verifies requests."""

    def __init__(self, trusted: Mapping[str, Gateway]) -> None:
        """Trust these, by key id; nobody, if there are none.

        Raises:
            BusError: one of the keys is none; it is named.
        """
        self._may = {key_id: frozenset(gateway.may) for key_id, gateway in trusted.items()}
        self._verifier = Verifier.of({key_id: one.key for key_id, one in trusted.items()})

    def problem(self, record: Record) -> Wrong | None:
        """Find why a record's bytes do not count: the header, and the reason."""
        if not self._may:
            return SIGNATURE, _NONE
        wrong = self._verifier.problem(record.value or b"", record.headers)
        if wrong is None or wrong[0] != KEY_ID:
            return wrong
        return KEY_ID, (
            f"is {record.headers.get(KEY_ID, '')[:_KEY_CHARS] or 'missing'}, which "
            "scheduler.trusted_gateways does not name (any more); sign with a key that it names, "
            "or name this one there and start the scheduler again"
        )

    def beyond(self, record: Record, request: Request) -> Wrong | None:
        """Find whether a request is none that the key of a record may pass on."""
        key_id, verb = record.headers[KEY_ID], request.args.verb
        if verb in self._may[key_id]:
            return None
        return "data.args.verb", (
            f"is {verb}, which key {key_id} may not pass on; if it shall, add it to "
            f"scheduler.trusted_gateways.{key_id}.may and start the scheduler again"
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """A request as it travels: its bytes, and what vouches for them."""

    raw: str
    kid: str
    signature: str

    @classmethod
    def of(cls, record: Record, *, signed: bool) -> Self:
        """Take the frame of a record that was read; if nobody verified it, the bytes alone."""
        raw, headers = (record.value or b"").decode(), record.headers
        if not signed:
            return cls(raw, "", "")
        return cls(raw, headers[KEY_ID], headers[SIGNATURE])
