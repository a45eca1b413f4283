"""The folder of the logs of a gateway's branches, and what killed gateways left behind."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "tidegate-branches-"
_LOCK = "lock"


class BranchFolder:
    """A folder for this user alone, locked as long as its gateway lives, however it ends."""

    def __init__(self, base: Path | None = None) -> None:
        """Make it below `base`, else the temporary folder; remove those whose gateway is gone."""
        base = Path(tempfile.gettempdir()) if base is None else base
        for left in base.glob(f"{_PREFIX}*"):
            _remove_if_left(left)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        # Whoever finds the lock finds it held: it has its name only then.
        draft = self.path / f".{_LOCK}"
        self._lock = os.open(draft, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user whose lock nobody holds; one without a lock is just made."""
    try:
        if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # its gateway lives
    finally:
        os.close(lock)
