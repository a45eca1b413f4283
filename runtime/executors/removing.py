"""Removes from the local disk what a job no longer needs there: one thing after the other."""

import contextlib
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path

from runtime.identity import as_user
from runtime.threads import in_thread
from runtime.trees import remove_tree

#: How names begin of what waits to be removed.
_HIDDEN = ".removed-"


class Removals:
    """Removes files and folders of a job, in one thread, however many there are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_in: set[Path] = set()
        self._waiting: dict[Path, int | None] = {}
        self._works = False

    def remove(self, users: Mapping[Path, int | None]) -> None:
        """Have these removed soon, each as its user; None: as our own.

        They get another name now: a job may write its next checkpoint under the same one before
        their turn comes. What cannot be renamed stays.
        """
        renamed: dict[Path, int | None] = {}
        for path, user in users.items():
            hidden = path.with_name(f"{_HIDDEN}{secrets.token_hex(8)}")
            with contextlib.suppress(OSError, ValueError), as_user(user):
                if path.parent not in self._looked_in:  # what an agent that was killed had left
                    self._looked_in.add(path.parent)
                    renamed |= dict.fromkeys(path.parent.glob(f"{_HIDDEN}*"), user)
                path.rename(hidden)
                renamed[hidden] = user
        with self._lock:
            self._waiting.update(renamed)
            if self._waiting and not self._works:
                in_thread(self._work)
                self._works = True  # not if no thread could be started: the next call tries again

    def _work(self) -> None:
        while (found := self._next()) is not None:
            try:
                remove_as(*found)
            except BaseException:
                with self._lock:
                    self._works = False
                raise

    def _next(self) -> tuple[int | None, Path] | None:
        """Take what to remove next, and as whom; None: nothing waits, and the work is over."""
        with self._lock:
            path = next(iter(self._waiting), None)
            if path is None:
                self._works = False
                return None
            return self._waiting.pop(path), path


def remove_as(user: int | None, path: Path) -> None:
    """Remove a file or folder as a user; None: as our own. What cannot be removed stays."""
    # We may not act as that user, or it is no name that a disk can have.
    with contextlib.suppress(OSError, ValueError), as_user(user):
        remove_tree(path)
