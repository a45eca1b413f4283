"""Why jobs failed for good, as their agents said it: the journal has it, the state does not."""

from collections.abc import Collection

from bus.contract import Bus
from console.reading import entries

_TOLD_BY = (b'"GangStarting"', b'"GangStopping"', b'"JobFailed"')


def failure(reason: str, detail: str) -> str:
    """Put a failure in words: the scheduler's reason, and what the agent said of it."""
    words = "cannot be run" if reason == "not_retriable" else reason
    return f"{words}: {detail}" if detail else words


async def read_failures(bus: Bus, cell: str, jobs: Collection[str], end: int) -> dict[str, str]:
    """Read why some jobs failed for good, before its cell's entry of number `end`.

    Raises:
        Unreadable: an entry that may concern them cannot be read.
    """
    details: dict[str, str] = {}
    found: dict[str, str] = {}
    async for entry in entries(bus, cell, _TOLD_BY, end):
        for kind, fields in entry.decision.get("facts", ()):
            job = fields.get("job")
            if job not in jobs:
                continue
            if kind == "GangStarting":
                details.pop(job, None)
            elif kind == "GangStopping":
                # What follows the first word of a gang's end says less.
                details[job] = details.get(job) or fields.get("detail", "")
            elif kind == "JobFailed":
                found[job] = failure(fields["reason"], details.get(job, ""))
    return found
