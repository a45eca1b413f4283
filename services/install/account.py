"""The user that an agent runs as: looked up, created, and checked for its rights."""

import grp
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.install.layout import STATE, Layout


class AccountError(ValueError):
    """The user cannot be had; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user by its numbers, with the name of its group."""

    name: str
    uid: int
    gid: int
    group: str
    #: All groups that it is in.
    gids: Sequence[int]


def find(name: str, layout: Layout) -> Account | None:
    """Look a user up, in a staged tree by the tree's own passwd; None if there is none."""
    if layout.staged:
        return _in_tree(name, layout)
    try:
        found = pwd.getpwnam(name)
        gids = os.getgrouplist(name, found.pw_gid)
        return Account(name, found.pw_uid, found.pw_gid, grp.getgrgid(found.pw_gid).gr_name, gids)
    except KeyError:
        return None


def make(name: str) -> Account:
    """Make a system user, with a group of its own.

    Raises:
        AccountError: it cannot be made.
    """
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise AccountError(f"--user: there is no {name}, and no useradd to make it; make it first")
    nologin = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin:/bin") or "/bin/false"
    command = [program, "--system", "--user-group", "--home-dir", str(STATE), "--shell", nologin]
    done = subprocess.run([*command, name], capture_output=True, text=True, check=False)
    found = find(name, Layout())
    if done.returncode or found is None:
        raise AccountError(f"--user: {name} cannot be made: {' '.join(done.stderr.split())}")
    return found


def become(account: Account) -> None:
    """Become this user for good.

    Raises:
        OSError: we are not root.
    """
    os.initgroups(account.name, account.gid)
    os.setgid(account.gid)
    os.setuid(account.uid)
    os.environ["HOME"] = pwd.getpwuid(account.uid).pw_dir
    os.environ["USER"] = os.environ["LOGNAME"] = account.name


def closed_to(account: Account | None, file: Path) -> Path | None:
    """Find the first part of a path that a user may not access: a folder, or the file itself.

    Args:
        account: The user; None for one that is still to be made.
        file: What it is to execute or to read.
    """
    if account is not None and account.uid == 0:
        return None
    for path in (*reversed(file.parents), file):
        try:
            about = path.stat()
        except OSError:
            return path
        if account is not None and about.st_uid == account.uid:
            bit = stat.S_IXUSR
        elif account is not None and about.st_gid in account.gids:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not about.st_mode & bit:
            return path
    return None


def _in_tree(name: str, layout: Layout) -> Account | None:
    users = _lines(layout.here(Path("/etc/passwd")))
    groups = {line[2]: line[0] for line in _lines(layout.here(Path("/etc/group"))) if len(line) > 2}
    for line in users:
        if line[0] == name and len(line) > 3:
            gid = int(line[3])
            return Account(name, int(line[2]), gid, groups.get(line[3], name), (gid,))
    # Every machine has it, also where the tree has no passwd yet.
    return Account("root", 0, 0, "root", (0,)) if name == "root" else None


def _lines(path: Path) -> list[list[str]]:
    try:
        return [line.split(":") for line in path.read_text(encoding="utf-8").splitlines() if line]
    except OSError:
        return []
