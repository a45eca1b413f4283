"""The disk that a store's folder is on: nothing may be written in its place while it is away."""

import json
from pathlib import Path

from runtime.checkpoints.errors import CheckpointError
from runtime.durable import write_json


class Disk:
    """Where the disk of a folder is mounted, as of its first use; `/`: on the machine's own."""

    def __init__(self, folder: str, url: str, memory: Path | None) -> None:
        """Look at nothing yet.

        Args:
            folder: what is on it.
            url: how people name it.
            memory: a file that says it to those who come later; None for none.
        """
        self._folder, self._url, self._memory = folder, url, memory
        self._mount: Path | None = None

    def see(self) -> None:
        """See that it is there.

        Raises:
            CheckpointError: it is not.
            OSError: the file of its memory cannot be read or written.
        """
        if self._mount is None:
            before = self._remembered()
            self._mount = self._found(before) if before is None or before.is_mount() else before
        if not self._mount.is_mount():
            first = "" if self._memory is None else f"remove {self._memory} and "
            raise CheckpointError(
                f"{self._url}: {self._mount} is not mounted any more; mount it again, or, if it is "
                f"to be without, {first}start the agent again"
            )

    def _found(self, before: Path | None) -> Path:
        folder = Path(self._folder).resolve()  # a link to a disk is none itself
        found = next(one for one in (folder, *folder.parents) if one.is_mount())
        if self._memory is not None and found != before:
            write_json(self._memory, {"url": self._url, "mounted": str(found)})
        return found

    def _remembered(self) -> Path | None:
        if self._memory is None:
            return None
        try:
            said = json.loads(self._memory.read_bytes())
            return Path(said["mounted"]) if said["url"] == self._url else None
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None
