"""The folder that agent and nodes share: whether it is mounted, whose it is, and its id.

A folder that is not mounted looks empty, as if there were no gangs, and all that the cluster runs
looks like orphans. So a marker file is written at its first use. That first use may have been
before the folder was mounted, so the folder of gang records, made with the first gang, must be
there too. An agent that remembers gangs and does not find both changes nothing until it does.

The marker file has a random id, and what is run from the folder is labelled with it. So agents of
one name that have a folder each, as in two cells, do not take each other's gangs for their orphans,
and an agent that is installed anew with this folder finds its own. Of two agents that use one
folder, the one that began to last does; the other changes nothing any more.
"""

import contextlib
import re
import secrets
from collections.abc import Collection
from pathlib import Path

from cloud_agent.clusters.gang_record import file_of
from runtime.durable import write_file

MARK = "tidegate-folder"
#: The folder in it with the gangs' records.
RECORDS = "held"
#: The file that names the start of the agent that uses the folder.
USED_BY = "used-by"
_TEXT = "Tidegate knows by this file that its folder is here. Leave it.\n"
_ID = re.compile(r"^id ([0-9a-f]{16})$", re.MULTILINE)


class SharedFolder:
    """The folder of a cluster's runs."""

    def __init__(self, root: Path, remembered: Collection[str]) -> None:
        """Mark it, unless the agent remembers gangs: then it must be marked already.

        Raises:
            OSError: it cannot be written.
        """
        self._root, self._mark, self._remembered = root, root / MARK, tuple(remembered)
        #: Its id; empty while it has none, which what runs there is labelled with, too.
        self.id = ""
        self._lacks: str | None = f"file {MARK}"
        self._is_lost = False
        self._start = secrets.token_hex(8)
        #: The id of the folder that this agent has taken over.
        self._taken: str | None = None
        if not remembered and not self._mark.exists():
            root.mkdir(parents=True, exist_ok=True)
            self._write_mark()

    @property
    def problem(self) -> str | None:
        """What is wrong, as of the last look; None: nothing."""
        where = f"agent.workers.folder: {self._root}"
        if self._lacks is not None:
            return (
                f"{where} has no {self._lacks}, so what runs is left alone; mount the folder, or "
                "if it is the right one, make that in it"
            )
        if self._is_lost:
            return (
                f"{where} is used by an agent that began after this one, so what runs is left to "
                "that one; give each a folder of its own, or end the other and start this one again"
            )
        return None

    def look(self) -> bool:
        """See whether it is there; mark one that was used before there were marks.

        Raises:
            OSError: it does not answer.
        """
        records = self._root / RECORDS
        if not self._mark.exists() and any(
            file_of(records, job).exists() for job in self._remembered
        ):
            self._write_mark()
        if not self._mark.exists():
            self._lacks = f"file {MARK}"
        elif self._remembered and not records.is_dir():
            self._lacks = f"folder {RECORDS}"
        else:
            found = _ID.search(self._mark.read_text(errors="replace"))
            if found is not None:
                self.id = found[1]
            else:
                with contextlib.suppress(OSError):  # a full disk: it has no id until it has room
                    self.id = self._write_mark()
            self._lacks = None
        return self._lacks is None

    def take(self) -> bool:
        """Use what was just found, unless an agent that began to after this one does.

        At first it is taken over, and also if it is another one than before: this agent may have
        started before the folder was mounted.
        """
        path, is_ours = self._root / USED_BY, True
        if self._taken == self.id and path.exists():
            is_ours = path.read_text(errors="replace") == self._start
        else:
            with contextlib.suppress(OSError):  # a full disk, say: it is tried again the next time
                write_file(path, self._start.encode(), synced=False)
                self._taken = self.id
        self._is_lost = not is_ours
        return is_ours

    def _write_mark(self) -> str:
        """Mark the folder with a new id; give that."""
        made = secrets.token_hex(8)
        write_file(self._mark, f"{_TEXT}id {made}\n".encode())
        return made
