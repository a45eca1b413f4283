"""Whether the folder that agent and nodes share is mounted.

A folder that is not mounted looks empty, as if there were no gangs, and all that the cluster runs
looks like orphans. So a marker file is written at its first use. That first use may have been
before the folder was mounted, so the folder of gang records, made with the first gang, must be
there too. An agent that remembers gangs and does not find both changes nothing until it does.
"""

from collections.abc import Collection
from pathlib import Path

from cloud_agent.clusters.gang_record import file_of

MARK = "tidegate-folder"
#: The folder in it with the gangs' records.
RECORDS = "held"
_TEXT = "Tidegate knows by this file that its folder is here. Leave it.\n"


class SharedFolder:
    """The folder of a cluster's runs."""

    def __init__(self, root: Path, remembered: Collection[str]) -> None:
        """Mark it, unless the agent remembers gangs: then it must be marked already.

        Raises:
            OSError: it cannot be written.
        """
        self._root, self._mark, self._remembered = root, root / MARK, tuple(remembered)
        self._lacks: str | None = f"file {MARK}"
        if not remembered and not self._mark.exists():
            root.mkdir(parents=True, exist_ok=True)
            self._mark.write_text(_TEXT)

    @property
    def problem(self) -> str | None:
        """What is wrong, as of the last look; None: nothing."""
        if self._lacks is None:
            return None
        return (
            f"agent.workers.folder: {self._root} has no {self._lacks}, so what runs is left alone; "
            "mount the folder, or if it is the right one, make that in it"
        )

    def look(self) -> bool:
        """See whether it is there; mark one that was used before there were marks.

        Raises:
            OSError: it does not answer.
        """
        records = self._root / RECORDS
        if not self._mark.exists() and any(
            file_of(records, job).exists() for job in self._remembered
        ):
            self._mark.write_text(_TEXT)
        if not self._mark.exists():
            self._lacks = f"file {MARK}"
        else:
            self._lacks = f"folder {RECORDS}" if self._remembered and not records.is_dir() else None
        return self._lacks is None
