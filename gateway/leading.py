"""Whether anybody decides in a cell now, as far as its log tells."""

import shlex

from bus.contract import Bus
from explain.answer import Reading
from explain.moments import duration, is_demo
from gateway.log import ServedLog
from scheduler.core.state import ClusterState
from schemas.codec import decode_cell
from schemas.parse import Rejected
from schemas.topics import CELLS, JOURNAL

#: A scheduler says at least once a minute that it leads (`scheduler.heartbeat_s`), so that who was
#: not heard for so long, in seconds, leads no longer.
SILENT_S = 180.0
#: How often it is looked, in seconds.
_APART_S = 1.0


class Leading:
    """What is known of who leads a cell."""

    def __init__(self) -> None:
        """Begin with nothing known, which is nothing to tell."""
        #: Why nobody decides, and what to do; empty while somebody does, or may.
        self.nobody = ""
        self._looked_s: float | None = None
        self._ends: tuple[int, int] | None = None
        self._moved_s = 0.0

    async def look(
        self, log: ServedLog, cell: str, state: ClusterState, origin_s: float, now_s: float
    ) -> None:
        """Look again, if it is time.

        Args:
            log: Where the cell is.
            cell: Its name.
            state: Its newest.
            origin_s: When its log began.
            now_s: The real time.

        Raises:
            BusError: the log cannot be read.
        """
        if self._looked_s is not None and 0.0 <= now_s - self._looked_s < _APART_S:
            return
        self._looked_s, bus = now_s, log.bus
        ends = await bus.end(CELLS.name), await bus.end(JOURNAL.name)
        if ends != self._ends:
            self._ends, self._moved_s = ends, now_s
        self.nobody = await self._told(bus, log, cell, state, origin_s, now_s)

    async def _told(
        self,
        bus: Bus,
        log: ServedLog,
        cell: str,
        state: ClusterState,
        origin_s: float,
        now_s: float,
    ) -> str:
        record = await bus.latest(CELLS.name, cell)
        said_s = 0.0 if record is None else record.time_s
        reading = Reading(cell, state, origin_s, max(said_s, state.now_s), max(said_s, state.now_s))
        word = None if record is None or record.value is None else decode_cell(record.value)
        starts = "`tidegate scheduler` starts one"
        if is_demo(origin_s or said_s) and log.path is not None:
            starts = f"`tidegate demo --log {shlex.quote(log.name)}` goes on with it"
        if word is None or isinstance(word, Rejected):
            return f"no scheduler leads this cell; {starts}"
        if not word.data.online:
            return f"the scheduler that led, {word.data.leader}, has ended; {starts}"
        # The time of a demo is its own: there it counts how long nothing came.
        since_s = self._moved_s if reading.simulated else reading.heard_s
        if now_s - since_s < SILENT_S:
            return ""
        # No length that grows: whoever follows is told when something changes, not each second.
        return f"no scheduler was heard for {duration(SILENT_S)} or longer; {starts}"
