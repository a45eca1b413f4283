"""Carries out an installation: folders, files, owners, and the systemd unit."""

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from runtime.durable import write_file
from services.config import Config
from services.install import account as accounts
from services.install.account import Account
from services.install.changes import Change, changes
from services.install.layout import (
    CONFIG,
    ENABLED,
    ETC,
    GANGS_UNIT,
    STATE,
    UNIT,
    UNIT_NAME,
    USER,
    WORKERS,
    Layout,
)
from services.install.systemd import booted, find_unit, systemctl
from services.install.texts import gangs_unit_text, program_of, unit_text
from services.install.wanted import OPEN, File, InstallError, NotRoot, Prepared

#: Of folders: of the configuration, and of the state.
_OPEN_FOLDER, _CLOSED_FOLDER, _WAY_FOLDER = 0o755, 0o750, 0o711
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Setup:
    """An installation: what it would change, to be shown or carried out."""

    layout: Layout
    user: str
    #: None while there is no such user yet.
    account: Account | None
    changes: Sequence[Change]
    #: Folders of the state; what is there keeps its content.
    folders: Sequence[Path]
    upgrade: bool


def set_up(prepared: Prepared, layout: Layout, user: str | None) -> Setup:
    """Give what there is to do; an existing unit keeps its user if none is named.

    Raises:
        InstallError: the user could not run the agent.
    """
    unit = find_unit(layout)
    before = unit.get("User") if unit else ""
    if user and before and user != before:
        raise InstallError(
            f"--user: the installed agent runs as {before}, who owns its files; uninstall it "
            f"first, and chown -R {user} {STATE}"
        )
    workers = prepared.config.agent.workers
    apart = workers is not None and workers.isolation == "tenant"
    name = user or before or ("root" if apart else USER)
    if apart and name != "root":
        raise InstallError(
            f"--user: {name} cannot keep tenants apart, which takes an agent that is root; leave "
            "--user out, or say --isolation none (isolation = 'none' in [agent.workers]): then "
            "jobs can read what the agent can"
        )
    account = accounts.find(name, layout)
    if account is None and user is not None and user != USER and not layout.staged:
        raise InstallError(f"--user: there is no {user} on this machine; make it first")
    program = program_of(Path(sys.executable))
    if not layout.staged:
        _check_reach(account, name, program)
    group = account.group if account else name
    agent = str(prepared.config.agent.name)
    units = [File(UNIT, unit_text(agent, program, name, group).encode(), OPEN)]
    if name == "root":  # nobody else may move processes from one service to another
        units.append(File(GANGS_UNIT, gangs_unit_text().encode(), OPEN))
    found = changes([*prepared.files, *units], layout)
    return Setup(layout, name, account, found, _folders(prepared.config), unit is not None)


def _check_reach(account: Account | None, user: str, program: Sequence[str]) -> None:
    real = Path(sys.executable).resolve()
    for file in (Path(program[0]), real, Path(__file__).resolve().parent):
        closed = accounts.closed_to(account, file)
        if closed is not None:
            raise InstallError(
                f"--user: {user} may not enter {closed}, and {file} is below it; install tidegate "
                "where every user can read it (python3 -m venv /opt/tidegate), or name another user"
            )


def _folders(config: Config) -> list[Path]:
    """Give the folders of the state that this machine keeps in the usual place."""
    found = [STATE, WORKERS]
    section = config.agent
    store = urlsplit(section.workers.checkpoints) if section.workers else None
    wanted = [section.state_file.parent] if section.state_file else []
    wanted += [section.workers.folder] if section.workers else []
    wanted += [Path(store.path)] if store is not None and store.scheme == "file" else []
    plain = [Path(os.path.normpath(path)) for path in wanted]  # `..` would lead out of the state
    return found + [path for path in plain if STATE in path.parents and path not in found]


def carry_out(setup: Setup) -> None:
    """Carry it out: as root, unless it is a staged tree.

    Raises:
        InstallError: this machine has no systemd, or one may not write here.
        AccountError, SystemdError, OSError: a step failed; the same command again goes on.
    """
    layout = setup.layout
    if not layout.staged:
        _check_machine()
    account = setup.account
    if account is None and not layout.staged:
        account = accounts.make(setup.user)
    owner = None if account is None or os.geteuid() else account
    _open_folder(layout.here(ETC))
    for folder in setup.folders:
        _state_folder(layout, folder, owner)
    for change in setup.changes:
        place = layout.here(change.file.path)
        if change.kind != "same" or not place.is_symlink():
            _write(place, change.file, owner)
    if layout.staged:
        enabled = layout.here(ENABLED)
        enabled.parent.mkdir(parents=True, exist_ok=True)
        if not enabled.is_symlink():
            enabled.symlink_to(UNIT)
        return
    systemctl("daemon-reload")
    systemctl("enable", UNIT_NAME)
    # Also where nothing changed: the program itself may be a newer one.
    systemctl("restart", UNIT_NAME)


def _check_machine() -> None:
    if not booted():
        by_hand = " ".join([*program_of(Path(sys.executable)), "edge-agent", "--config FILE"])
        raise InstallError(
            "systemd does not run this machine, so no service can be installed; have what starts "
            f"services here run: {by_hand} (with --dry-run you see a configuration for it, with "
            "--root DIR it is written into a folder)"
        )
    if os.geteuid():
        me = program_of(Path(sys.executable))[0]
        raise NotRoot(
            f"installing takes root: sudo {me} edge-agent install ... (--dry-run shows it without)"
        )


def _open_folder(path: Path) -> None:
    if not path.is_dir():
        path.mkdir(parents=True)
        path.chmod(_OPEN_FOLDER)


def _state_folder(layout: Layout, folder: Path, owner: Account | None) -> None:
    """Make a folder of the state and give it to the agent's user, without following a link.

    Agent and jobs own what is below the state: a link there could have root give them any folder.
    """
    state = layout.here(STATE)
    state.parent.mkdir(parents=True, exist_ok=True)
    at = os.open(state.parent, _FOLDER)
    try:
        for number, name in enumerate((STATE.name, *folder.relative_to(STATE).parts)):
            is_new = _made(name, at)
            # What leads to the state, and the state itself, nobody but root can exchange.
            below = os.open(name, _FOLDER | (os.O_NOFOLLOW if number else 0), dir_fd=at)
            os.close(at)
            at = below
            # Jobs of other users go through to their own, and see nothing else. The state may be
            # of an agent whose jobs were its own user's, or of an installation that was killed.
            is_way = owner is not None and owner.uid == 0
            closed = is_way and number == 0 and not os.fstat(at).st_mode & stat.S_IXOTH
            if is_new or closed:
                os.fchmod(at, _WAY_FOLDER if is_way else _CLOSED_FOLDER)
            if is_new and owner is not None:
                os.fchown(at, owner.uid, owner.gid)
        if owner is not None:
            os.fchown(at, owner.uid, owner.gid)
    except NotADirectoryError:
        raise InstallError(
            f"{layout.here(folder)}: a part of this below {state} is a link or a file; jobs can "
            "make such, and root follows none: look at it, remove it, and install again"
        ) from None
    finally:
        os.close(at)


def _made(name: str, at: int) -> bool:
    try:
        os.mkdir(name, _CLOSED_FOLDER, dir_fd=at)
    except FileExistsError:
        return False
    return True


def _write(path: Path, file: File, owner: Account | None) -> None:
    """Write a file atomically, with its final mode from the start, owned by root."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def prepare(descriptor: int) -> None:
        if owner is not None and file.path not in (UNIT, GANGS_UNIT):
            os.fchown(descriptor, 0, owner.gid)
        os.fchmod(descriptor, file.mode)

    write_file(path, file.content, mode=0o600, prepare=prepare)


def left_to_do(setup: Setup) -> str | None:
    """Say what a tree still needs on its machine; None if nothing."""
    if not setup.layout.staged or (setup.account is not None and os.geteuid() == 0):
        return None
    closed = " ".join(str(c.file.path) for c in setup.changes if c.file.mode != OPEN)
    why, first = f"the tree has no user {setup.user} yet", "make the user, "
    if setup.account is not None:
        why, first = "you are not root", ""
    return (
        f"{why}: on its machine, {first}chown -R {setup.user} {STATE}, chgrp {setup.user} {closed} "
        f"(or run there: tidegate edge-agent install, which keeps {CONFIG})"
    )
