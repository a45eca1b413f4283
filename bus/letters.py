"""Dead letters: what could not be read, as it came, with the reason beside; any bus takes them."""

from collections.abc import Mapping

from bus.contract import Message, Record
from schemas.values import MAX_MESSAGE_BYTES

#: More headers, or longer ones, than any message of ours has; they must fit beside the message
#: (`schemas.topics.HEADROOM_BYTES`, at four bytes for a character), or Kafka would refuse it.
HEADERS_MAX = 16
HEADERS_MAX_CHARS = 8 * 1024
#: What is kept of a message that is too large, and of a key.
KEPT_BYTES = 1024
_KEY_CHARS = 256


def dead_letter(record: Record, field_name: str, reason: str, group: str) -> Message:
    """Build the dead letter of a record that `group` could not read: same bytes, reason beside.

    It can always be published: headers that some bus could not carry are left out, and of a value
    that is too large the beginning is kept. A letter that no bus takes would be tried for ever.
    """
    value = record.value
    if value is not None and len(value) > MAX_MESSAGE_BYTES:
        value = value[:KEPT_BYTES]
    return Message(
        topic=f"{record.topic}.dlq",
        key=_printable(record.key)[:_KEY_CHARS],
        value=value,
        headers={
            **(record.headers if unfit(record.headers) is None else {}),
            "dlq_field": _printable(field_name)[:200],
            "dlq_error": _printable(reason)[:500],
            "dlq_origin_topic": record.topic,
            "dlq_origin_offset": str(record.offset),
            "dlq_consumer_group": group,
        },
    )


def unfit(headers: Mapping[str, str]) -> str | None:
    """Find why Kafka or MQTT could not carry these headers; None if both can."""
    if not headers:
        return None
    if len(headers) > HEADERS_MAX:
        return f"are {len(headers)}, the limit is {HEADERS_MAX}"
    if sum(len(name) + len(text) for name, text in headers.items()) > HEADERS_MAX_CHARS:
        return f"have more than {HEADERS_MAX_CHARS} characters"
    if not all((name + text).isprintable() for name, text in headers.items()):
        # Kafka's clients or the MQTT broker would cut the connection for some of them.
        return "have a character that cannot be printed"
    return None


def _printable(text: str) -> str:
    """Replace what a header cannot carry; the reason may quote whatever was sent."""
    return "".join(char if char.isprintable() else "?" for char in text)
