"""A user id for each tenant, so that its jobs can neither read nor kill those of another.

No account has these ids, so nobody can log in with one. A tenant keeps its id for as long as the
agent keeps its folder, because its files are there.
"""

import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from runtime.durable import write_json
from runtime.executors.folder import read_json
from runtime.trees import entries_below, remove_tree

#: Checkpoints fetched from the store, in the folder of a job.
FETCHED = "fetched"
_FILE = "tenants.json"


def closed_to_jobs(root: Path) -> list[Path]:
    """Name the folders above `root` that the users of jobs may not pass, as far as they are there.

    Where links lead there, they pass what is above each link and what is above its end.
    """
    ends = [Path(os.path.realpath(one)) for one in (root, *root.parents)]
    above = dict.fromkeys(folder for end in ends for folder in (end, *end.parents))
    return [folder for folder in above if folder != ends[0] and _is_closed(folder)]


def _is_closed(folder: Path) -> bool:
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and not mode & stat.S_IXOTH


class Tenants:
    """Gives each tenant its user id."""

    def __init__(self, root: Path, first_uid: int) -> None:
        """Load the ids that were given before.

        Raises:
            OSError: a folder above `root` is closed to workers, or the agent is not root.
        """
        if os.geteuid() != 0:
            raise PermissionError(
                "agent.workers.isolation: jobs of each tenant run as a user of their own, which "
                'takes an agent that is root; run it as root, or say isolation = "none": then jobs '
                "can read what the agent can, its keys and the store's login too"
            )
        made = [folder for folder in root.parents if not folder.exists()]
        root.mkdir(parents=True, exist_ok=True)
        for folder in made:  # a service's umask closes what it makes
            allow_traversal(folder)
        for folder in closed_to_jobs(root):
            raise PermissionError(
                f"agent.workers.folder: {folder} is closed to the users of jobs; "
                f"chmod o+x {folder}, or name another folder"
            )
        os.setgroups([])  # else the agent could, as a job's user, read what these groups may
        self._path, self._first = root / _FILE, first_uid
        said = read_json(self._path) or {}
        self._lock = threading.Lock()
        self._uids = {name: uid for name, uid in said.items() if type(uid) is int}

    def uid(self, tenant: str) -> int:
        """Give the tenant's user id. From any thread.

        Raises:
            OSError: a new one cannot be stored.
        """
        with self._lock:
            if tenant not in self._uids:
                given = {**self._uids, tenant: max([self._first - 1, *self._uids.values()]) + 1}
                write_json(self._path, given)
                self._uids = given
            return self._uids[tenant]


def user_of(tenants: Tenants | None, tenant: str | None) -> int | None:
    """Give the user of a tenant's workers; None: the agent's own.

    Raises:
        ValueError: there is no tenant to keep apart.
        OSError: a new one cannot be stored.
    """
    if tenants is None:
        return None
    if tenant is None:
        raise ValueError(
            "tenant: the scheduler does not name the job's tenant; update the scheduler"
        )
    return tenants.uid(tenant)


def allow_traversal(folder: Path) -> None:
    """Let workers traverse a folder to their own, but not list it.

    Raises:
        OSError: the folder is not ours.
    """
    folder.chmod(0o711)


def give(path: Path, uid: int) -> None:
    """Change the owner of a folder or file of ours, with its content, to a worker's user.

    What that user owns already is left alone: it may have put links there.

    Raises:
        OSError: the folder is not ours.
    """
    if path.lstat().st_uid == uid:
        return
    # What is in a folder first: that user may move all that is in a folder of its own.
    for entry in reversed([*entries_below(path)] if path.is_dir() else []):
        os.lchown(entry.path, uid, uid)
    os.lchown(path, uid, uid)


def give_run_to_user(run: Path, own: Iterable[Path], uid: int) -> None:
    """Give a run's workers their folders and the fetched checkpoints, and access to them.

    Raises:
        OSError: the folder is not ours.
    """
    for path in own:
        path.chmod(0o700 if path.is_dir() else 0o600)
        give(path, uid)
    for way in (run.parent, run):
        allow_traversal(way)
    fetched = run.parent / FETCHED
    if fetched.is_dir():
        allow_traversal(fetched)
        for path in fetched.iterdir():
            if path.lstat().st_uid != uid:
                path.chmod(0o700)
            give(path, uid)


def close_fetched(job: Path) -> None:
    """Make the folder into which checkpoints are fetched, for the agent alone until one is given.

    Raises:
        OSError: the disk does not take it.
    """
    fetched = job / FETCHED
    fetched.mkdir(mode=0o700, parents=True, exist_ok=True)
    fetched.chmod(0o700)


def remove_fetched(job: Path) -> None:
    """Remove fetched checkpoints that were given to a job's user, who may have put links there.

    Raises:
        OSError: that cannot be done.
    """
    fetched = job / FETCHED
    if fetched.is_dir() and any(one.lstat().st_uid != os.geteuid() for one in fetched.iterdir()):
        remove_tree(fetched)
        if fetched.exists():
            raise OSError(f"{fetched}: cannot be removed; see why, and remove it")
