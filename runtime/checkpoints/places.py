"""Where the things of a job lie in a store that several cells may use.

Ids of jobs are unique within a cell alone. So whoever first stores something of a job writes down
of which cell it is; where another cell has a job of that name, this one's lies apart.

    <URL>/<job>/.cell       the cell whose job this is; none: of an earlier release
    <URL>/@<cell>/<job>     the job of another cell than that
"""

from runtime.checkpoints.catalogue import Catalogue
from runtime.checkpoints.errors import Damaged
from runtime.checkpoints.filesystem import Filesystem

_CELL = ".cell"
_MAX_BYTES = 1000


class JobPlaces:
    """Finds the place of each job of a cell. Calls block and may come from any thread."""

    def __init__(self, filesystem: Filesystem, cell: str | None) -> None:
        """Look below a URL; without a cell, whoever writes there has the names for itself."""
        self._cell = cell
        self._shared, self._apart = Catalogue(filesystem), Catalogue(filesystem.below(f"@{cell}"))
        self._known: dict[str, Catalogue] = {}

    def of(self, job: str, *, claims: bool = False) -> Catalogue:
        """Give where a job's things are; with `claims`, they are this cell's from now on.

        Raises:
            CheckpointError: the store cannot be asked, or does not take the claim.
        """
        if self._cell is None:
            return self._shared
        if job in self._known:
            return self._known[job]
        cell = self._cell_of(job)
        if cell is None and self._apart.filesystem.entries(job):
            cell = ""  # somebody has cleared away the job of the other cell
        if cell is None and claims:
            self._shared.filesystem.write(f"{job}/{_CELL}", self._cell.encode())
            cell = self._cell_of(job)  # another's claim may have come at the same time
        if cell is None:
            return self._shared
        self._known[job] = self._shared if cell == self._cell else self._apart
        return self._known[job]

    def _cell_of(self, job: str) -> str | None:
        try:
            found = self._shared.filesystem.read(f"{job}/{_CELL}", _MAX_BYTES)
        except Damaged:
            return None
        return found.decode(errors="replace") or None
