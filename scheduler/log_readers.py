"""Who reads logs of jobs now, and the commands by which agents send those.

Nothing of it is journalled but the request, which the core authorises. A scheduler that takes over
knows no readers: whoever follows a log asks again within the minute.
"""

from scheduler.core.state import ClusterState
from scheduler.core.stimuli import next_epoch
from schemas.commands import SendLog
from schemas.requests import ReadLog, Request

#: So many logs are read at once in a cell, and so many of them by one subject, or one tenant's.
READERS_MAX, READERS_EACH = 16, 8
#: So many of them by tenants: operators find out what is wrong also while tenants read.
READERS_TENANTS = 12
#: Whoever goes on reading asks again within this.
READ_S = 60.0


class LogReaders:
    """Counts readers, and has agents send them what they ask for."""

    def __init__(self) -> None:
        """Begin with nobody reading."""
        #: By subject and the name that it gave the reading: until when, and for which tenant.
        self._readings: dict[tuple[str, str], tuple[float, str | None]] = {}

    def unready(self, request: Request, now_s: float) -> tuple[str, str] | None:
        """Find whether it asks for a log that cannot be read now; the field, and why."""
        args = request.args
        if not isinstance(args, ReadLog):
            return None
        self._readings = {name: one for name, one in self._readings.items() if one[0] > now_s}
        if (request.subject, args.reader) in self._readings:
            return None
        tenant = _tenant(request)
        readings = self._readings.items()
        mine = [end_s for (who, _), (end_s, _) in readings if who == request.subject]
        ours = [end_s for _, (end_s, of) in readings if of is not None and of == tenant]
        tenants = [end_s for _, (end_s, of) in readings if of is not None]
        if len(mine) >= READERS_EACH:
            whose, ends_s = f"by {request.subject}", mine
        elif len(ours) >= READERS_EACH:
            whose, ends_s = f"by {tenant}", ours
        elif tenant is not None and len(tenants) >= READERS_TENANTS:
            whose, ends_s = "by tenants in this cell", tenants
        elif len(readings) >= READERS_MAX:
            whose, ends_s = "in this cell", [end_s for _, (end_s, _) in readings]
        else:
            return None
        return "data.args.reader", (
            f"{len(ends_s)} logs are being read {whose}, as many as may be; "
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
        reads_s = until_s if args.follow else min(until_s, now_s + 5.0)
        self._readings[request.subject, args.reader] = reads_s, _tenant(request)
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


def _tenant(request: Request) -> str | None:
    """Give for which tenant somebody reads; None: for none, as operators do."""
    return request.tenant if request.role == "tenant" else None
