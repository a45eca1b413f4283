"""The folder that agent and nodes share: whether it is mounted, whose it is, and its id.

A folder that is not mounted looks empty, as if there were no gangs, and all that the cluster runs
looks like orphans. So a marker file is written at its first use. That first use may have been
before the folder was mounted, so the folder of gang records, made with the first gang, must be
there too. An agent that remembers gangs and does not find both changes nothing until it does.

The marker file has a random id, and what is run from the folder is labelled with it. So agents of
one name that have a folder each, as in two cells, do not take each other's gangs for their orphans,
and an agent that is installed anew with this folder finds its own. Of two agents that use one
folder, the one that started last does; the other changes nothing any more.
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
        #: Its id; empty before the first look that found it.
        self.id = ""
        #: What is wrong, as of the last look; None: nothing.
        self.problem: str | None = self._lacking(f"file {MARK}")
        self._start, self._is_taken = secrets.token_hex(8), False
        if not remembered and not self._mark.exists():
            root.mkdir(parents=True, exist_ok=True)
            self._write_mark()

    def look(self) -> bool:
        """See whether it is there and ours; mark one that was used before there were marks.

        Raises:
            OSError: it does not answer.
        """
        records = self._root / RECORDS
        if not self._mark.exists() and any(
            file_of(records, job).exists() for job in self._remembered
        ):
            self._write_mark()
        if not self._mark.exists():
            self.problem = self._lacking(f"file {MARK}")
        elif self._remembered and not records.is_dir():
            self.problem = self._lacking(f"folder {RECORDS}")
        else:
            found = _ID.search(self._mark.read_text(errors="replace"))
            self.id = self._write_mark() if found is None else found[1]
            self.problem = None if self._is_used_by_us() else self._lost()
        return self.problem is None

    def _write_mark(self) -> str:
        """Mark the folder with a new id; give that."""
        made = secrets.token_hex(8)
        write_file(self._mark, f"{_TEXT}id {made}\n".encode())
        return made

    def _is_used_by_us(self) -> bool:
        """Whether no agent started after this one; at the first look, take the folder over."""
        path = self._root / USED_BY
        if self._is_taken and path.exists():
            return path.read_text(errors="replace") == self._start
        with contextlib.suppress(OSError):  # a full disk, say: it is tried again at the next look
            write_file(path, self._start.encode(), synced=False)
            self._is_taken = True
        return True

    def _lacking(self, what: str) -> str:
        return (
            f"agent.workers.folder: {self._root} has no {what}, so what runs is left alone; "
            "mount the folder, or if it is the right one, make that in it"
        )

    def _lost(self) -> str:
        return (
            f"agent.workers.folder: an agent that started after this one uses {self._root}, so "
            "what runs is left to that one; give each a folder of its own, or end the other and "
            "start this one again"
        )
