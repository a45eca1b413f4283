"""What a scheduler answers to what a person says: taken, or refused and why."""

import asyncio

from bus.contract import Bus, Message
from explain.acts import refusal
from schemas.codec import Rejected
from schemas.journal import decode_entry
from schemas.topics import ALL_TOPICS, JOURNAL, dead_letters

#: A scheduler that leads has answered within this; else the message waits in the log.
ANSWER_S = 5.0
_LOOK_S = 0.1


async def publish_and_hear(bus: Bus, message: Message, source: str, wait_s: float) -> str:
    """Publish, and wait for the scheduler's word on it.

    Args:
        bus: Where it goes.
        message: What is published.
        source: Whose message it is; of its own, for by it the journal names the message.
        wait_s: How long to wait at most, in seconds; 0: not at all.

    Returns:
        Why it was refused; empty if it was taken, or if nobody has answered yet.
    """
    letters = dead_letters(ALL_TOPICS[message.topic]).name
    letters_end, journal_end = await bus.end(letters), await bus.end(JOURNAL.name)
    await bus.publish(message)
    end_s = asyncio.get_running_loop().time() + wait_s
    while asyncio.get_running_loop().time() < end_s:
        async for record in bus.read(letters, letters_end):
            letters_end = record.offset + 1
            if record.value == message.value:
                field, why = (record.headers.get(f"dlq_{name}", "") for name in ("field", "error"))
                return f"{field.removeprefix('data.')}: {why}" if field else why
        async for record in bus.read(JOURNAL.name, journal_end):
            journal_end = record.offset + 1
            if source.encode() in (record.value or b""):
                entry = decode_entry(record.value or b"")
                if not isinstance(entry, Rejected) and entry.stimulus["cause"][0] == source:
                    return refusal(entry.decision)
        await asyncio.sleep(_LOOK_S)
    return ""
