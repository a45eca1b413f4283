"""Who reads logs of jobs now, and the commands by which agents send those.

Nothing of it is journalled but the request, which the core authorises. A scheduler that takes over
knows no readers: whoever follows a log asks again within the minute.
"""

from scheduler.core.state import ClusterState
from scheduler.core.stimuli import next_epoch
from schemas.commands import SendLog
from schemas.requests import ReadLog, Request

#: So many logs are read at once in a cell, and so many of them by one subject.
READERS_MAX, READERS_EACH = 16, 8
#: Whoever goes on reading asks again within this.
READ_S = 60.0


class LogReaders:
    """Counts readers, and has agents send them what they ask for."""

    def __init__(self) -> None:
        """Begin with nobody reading."""
        #: By subject and the name that it gave the reading.
        self._until_s: dict[tuple[str, str], float] = {}

    def unready(self, request: Request, now_s: float) -> tuple[str, str] | None:
        """Find whether it asks for a log that cannot be read now; the field, and why."""
        args = request.args
        if not isinstance(args, ReadLog):
            return None
        self._until_s = {name: end_s for name, end_s in self._until_s.items() if end_s > now_s}
        if (request.subject, args.reader) in self._until_s:
            return None
        mine = [end_s for (who, _), end_s in self._until_s.items() if who == request.subject]
        if len(mine) >= READERS_EACH:
            many, whose, ends_s = READERS_EACH, f"by {request.subject}", mine
        elif len(self._until_s) >= READERS_MAX:
            many, whose, ends_s = READERS_MAX, "in this cell", [*self._until_s.values()]
        else:
            return None
        return "data.args.reader", (
            f"{many} logs are being read {whose}, as many as may be; "
            f"try again in {min(ends_s) - now_s:.0f} s"
        )

    def orders(
        self, state: ClusterState, request: Request, now_s: float
    ) -> list[tuple[str, SendLog]]:
        """Give, by agent, what those are told who have the log that an allowed request is for."""
        args = request.args
        if not isinstance(args, ReadLog):
            return []
        job = state.jobs[args.job]
        until_s = min(args.until_s, now_s + READ_S)
        self._until_s[request.subject, args.reader] = (
            until_s if args.follow else min(until_s, now_s + 5.0)
        )
        order = SendLog(
            job=job.id,
            epoch=job.epoch,
            first_epoch=next_epoch(0, job.submit_s),
            rank=args.rank,
            reader=args.reader,
            from_byte=args.from_byte,
            max_bytes=args.max_bytes,
            follow=args.follow,
            until_s=until_s,
        )
        return [(agent, order) for agent in job.agents]
