"""Removes from the local disk what a job no longer needs there: one thing after the other."""

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

from runtime.identity import as_user
from runtime.trees import remove_tree


class Removals:
    """Removes files and folders of a job, in one thread, however many there are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Path, int | None] = {}
        self._works = False

    def remove(self, users: Mapping[Path, int | None]) -> None:
        """Have these removed soon, each as its user; None: as our own."""
        with self._lock:
            self._waiting.update(users)
            if self._waiting and not self._works:
                self._works = True
                threading.Thread(target=self._work, daemon=True).start()

    def keep(self, path: Path) -> None:
        """Do not remove what waits for it under this path: something new is there."""
        with self._lock:
            self._waiting.pop(path, None)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._works = False
                    return
                path = next(iter(self._waiting))
                user = self._waiting.pop(path)
            remove_as(user, path)


def remove_as(user: int | None, path: Path) -> None:
    """Remove a file or folder as a user; None: as our own. What cannot be removed stays."""
    # We may not act as that user, or it is no name that a disk can have.
    with contextlib.suppress(OSError, ValueError), as_user(user):
        remove_tree(path)
