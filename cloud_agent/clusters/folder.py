"""The folder that agent and nodes share: whether it is there at all.

A folder that is not mounted looks empty: nothing is held, and all that the cluster runs looks like
strays to be ended. So a file marks it from its first use on. An agent that remembers gangs and
does not find the mark touches nothing until it does.
"""

from collections.abc import Collection
from pathlib import Path

MARK = "tidegate-folder"
_TEXT = "Tidegate knows by this file that its folder is here. Leave it.\n"


class SharedFolder:
    """The folder of a cluster's runs."""

    def __init__(self, root: Path, remembered: Collection[str]) -> None:
        """Mark it, unless the agent remembers gangs of before: then it must be marked already.

        Raises:
            OSError: it cannot be written.
        """
        self._mark = root / MARK
        self._is_there = False
        if not remembered and not self._mark.exists():
            root.mkdir(parents=True, exist_ok=True)
            self._mark.write_text(_TEXT)

    @property
    def problem(self) -> str | None:
        """What is wrong, as of the last look; None: nothing."""
        if self._is_there:
            return None
        folder = self._mark.parent
        return (
            f"agent.workers.folder: {folder} has no file {MARK}, so what runs is left alone; mount "
            f"the folder, or if it is the right one, make that file in it"
        )

    def look(self) -> bool:
        """See whether it is there.

        Raises:
            OSError: it does not answer.
        """
        self._is_there = self._mark.exists()
        return self._is_there
