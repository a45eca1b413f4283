"""The folder that agent and nodes share: whether it is there at all.

A folder that is not mounted looks empty: nothing is held, and all that the cluster runs looks like
strays to be ended. So a file marks it from its first use on. That may be a use before it was first
mounted, so what is held counts too: its folder is made with the first gang. An agent that remembers
gangs and does not find both touches nothing until it does.
"""

from collections.abc import Collection
from pathlib import Path

from cloud_agent.clusters.held import file_of

MARK = "tidegate-folder"
#: The folder in it of the files of what is held.
HELD = "held"
_TEXT = "Tidegate knows by this file that its folder is here. Leave it.\n"


class SharedFolder:
    """The folder of a cluster's runs."""

    def __init__(self, root: Path, remembered: Collection[str]) -> None:
        """Mark it, unless the agent remembers gangs of before: then it must be marked already.

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
        """See whether it is there; mark one that an agent of before marks were made has used.

        Raises:
            OSError: it does not answer.
        """
        held = self._root / HELD
        if not self._mark.exists() and any(file_of(held, job).exists() for job in self._remembered):
            self._mark.write_text(_TEXT)
        if not self._mark.exists():
            self._lacks = f"file {MARK}"
        else:
            self._lacks = f"folder {HELD}" if self._remembered and not held.is_dir() else None
        return self._lacks is None
