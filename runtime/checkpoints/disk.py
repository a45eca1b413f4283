"""The disk that a store's folder is on: nothing may be written in its place while it is away."""

import json
from contextlib import suppress
from pathlib import Path

from runtime.checkpoints.errors import CheckpointError
from runtime.durable import write_json

#: In the folder of an agent's runs: remembers the disk of its store.
STORE_DISK = "store-disk.json"


class Disk:
    """Where the disk of a folder is mounted, as of its last use; `/`: on the machine's own."""

    def __init__(self, folder: str, url: str, memory: Path | None) -> None:
        """Look at nothing yet.

        Args:
            folder: what is on it.
            url: how people name it.
            memory: a file that says it to those who come later; None for none.
        """
        self._folder, self._url, self._memory = folder, url, memory
        self._mount: Path | None = None
        self._noted: Path | None = None  # what the file says

    def see(self) -> None:
        """See that it is there.

        Raises:
            CheckpointError: it is not, or the file of its memory cannot be read.
            OSError: the folder cannot be looked at.
        """
        if self._mount is None:
            self._mount = self._noted = self._remembered()
        before = self._mount
        folder = Path(self._folder).resolve()  # a link to a disk is none itself
        found = next(one for one in (folder, *folder.parents) if one.is_mount())
        # One that is mounted elsewhere than before is another, and no reason to store nothing.
        if before is not None and found in before.parents and not before.is_mount():
            first = "" if self._memory is None else f"remove {self._memory} and "
            raise CheckpointError(
                f"{self._url}: {before} is not mounted any more; mount it again, or, if it is "
                f"to be without, {first}start the agent again"
            )
        self._mount = found
        if self._memory is not None and found != self._noted:
            # No room for it must keep nobody from removing what fills a disk: the next use tries.
            with suppress(OSError):
                write_json(self._memory, {"url": self._url, "mounted": str(found)})
                self._noted = found

    def _remembered(self) -> Path | None:
        if self._memory is None:
            return None
        try:
            said = json.loads(self._memory.read_bytes())
            return Path(said["mounted"]) if said["url"] == self._url else None
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None
        except OSError as error:
            raise CheckpointError(
                f"{self._memory}: could not read on which disk {self._url} is: {error.strerror}"
            ) from error
