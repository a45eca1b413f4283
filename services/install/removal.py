"""Removes an installed agent, and lists what stays."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime.mounts import MOUNTS, mounted
from runtime.trees import remove_tree
from services.install.gangs import RunningGang, end, named
from services.install.layout import (
    CONFIG,
    ENABLED,
    ENVIRONMENT,
    ETC,
    GANGS_UNIT,
    STATE,
    UNIT,
    UNIT_NAME,
    WORKERS,
    Layout,
    trusted_key,
)
from services.install.replicas import running_replicas
from services.install.status import Status
from services.install.systemd import booted, systemctl
from services.install.wanted import InstallError


@dataclass(slots=True)
class Removed:
    """What is gone, and what is left where."""

    gone: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def remove(status: Status, layout: Layout, *, purge: bool, force: bool) -> Removed:
    """Stop and remove the agent; with `purge` its state on this machine, and its gangs, too.

    Raises:
        InstallError: gangs, or servers of the owner, run and it is not forced; or one may not.
        SystemdError, OSError: a step failed; the same command again goes on.
    """
    if not layout.staged and os.geteuid():
        raise InstallError("uninstalling takes root: sudo tidegate edge-agent uninstall")
    gangs = status.gangs or []
    if gangs and not force:
        raise InstallError(_refusal(gangs, purge))
    replicas = [] if layout.staged else running_replicas(_workers(status))
    if purge and replicas and not force:
        raise InstallError(
            f"servers of the owner run here: {', '.join(replicas)}; stop them first. An agent that "
            "is installed anew would know nothing of them, start each a second time, and lend "
            "GPUs that they use. --force leaves them to themselves"
        )
    if purge:
        _check_state(layout)
    done = Removed()
    if replicas:
        done.left.append(f"servers of the owner that run on, unwatched: {', '.join(replicas)}")
    if not layout.staged and booted() and status.unit is not None:
        systemctl("disable", "--now", UNIT_NAME)
        done.gone.append(f"the service {UNIT_NAME}, stopped")
    if not layout.staged and booted() and GANGS_UNIT.exists():
        systemctl("stop", GANGS_UNIT.name)  # gangs go on without it
    _remove_files(done, status, layout)
    if not layout.staged and booted():
        systemctl("daemon-reload")
    if not purge:
        _say_left(done, status, gangs, layout)
        return done
    still = end(gangs)
    if still:
        raise InstallError(
            f"{named(still)} did not end; see their processes, then run the same command again"
        )
    if gangs:
        done.gone.append(f"running gangs, told to save and leave: {named(gangs)}")
    if os.path.lexists(layout.here(STATE)):
        _remove_state(layout.here(STATE))
        done.gone.append(f"{STATE}, and all in it: memory, runs, logs, checkpoints")
    _say_elsewhere(done, status)
    return done


def _refusal(gangs: Sequence[RunningGang], purge: bool) -> str:
    what = (
        "--force tells them to save and leave; what they save now is not stored elsewhere any more"
        if purge
        else "--force leaves them to themselves: they train on until they end, but nobody stores "
        "their checkpoints, moves them or takes their GPUs back"
    )
    return (
        f"gangs run here: {named(gangs)}; let them finish, or take them away first (tidegate "
        f"cancel JOB). {what}"
    )


def _workers(status: Status) -> Path:
    section = None if status.config is None else status.config.agent.workers
    return WORKERS if section is None else section.folder


def _check_state(layout: Layout) -> None:
    """See that to remove the state removes nothing else.

    Raises:
        InstallError: it would.
    """
    state = layout.here(STATE)
    if mounted := _mounted_below(state):
        raise InstallError(
            f"--purge would remove what is in {', '.join(mounted)}, which is another disk and may "
            "be other machines', too; umount it first"
        )
    if layout.root.resolve() not in state.resolve().parents:
        raise InstallError(f"{state} leads out of the tree, to {state.resolve()}; look at it")


def _remove_state(state: Path) -> None:
    """Remove the state, however deep jobs made it; a folder that is a disk of its own is emptied.

    Raises:
        InstallError: some of it stays.
    """
    place = state.resolve()  # an operator may have led it to a larger disk
    remove_tree(place)
    if place.exists() and any(place.iterdir()):
        raise InstallError(
            f"{place}: not all in it could be removed; see why, then run the same command again"
        )
    if state.is_symlink():
        state.unlink()


def _mounted_below(folder: Path) -> list[str]:
    """Give the folders below one at which another file system begins."""
    places = {one.point for one in mounted(MOUNTS)}
    return sorted(one for one in places if folder.resolve() in Path(one).parents)


def _remove_files(done: Removed, status: Status, layout: Layout) -> None:
    found = [layout.here(path) for path in (ENABLED, UNIT, GANGS_UNIT, ENVIRONMENT)]
    found += sorted(layout.here(ETC).glob("edge-agent.*"))
    # What installations that were killed had not renamed yet; a key may be among it.
    units = ((unit.parent, unit.name) for unit in (UNIT, GANGS_UNIT))
    for folder, name in ((ETC, "edge-agent.*"), (ETC, "trusted-*.pem"), *units):
        found += sorted(layout.here(folder).glob(f".{name}.*.draft"))
    # Not all keys that are there: those that a scheduler of this machine trusts may be, too.
    named = {} if status.config is None else status.config.agent.trusted_keys
    ours = [trusted_key(kid) for kid, file in named.items() if file == str(trusted_key(kid))]
    found += map(layout.here, ours)
    # The configuration last: by it the same command knows that there is something to go on with.
    config = layout.here(CONFIG)
    for path in (*(one for one in dict.fromkeys(found) if one != config), config):
        if path.exists() or path.is_symlink():
            path.unlink()
            done.gone.append(str(Path("/") / path.relative_to(layout.root)))
    if keys := sorted(layout.here(ETC).glob("trusted-*.pem")):
        names = ", ".join(str(Path("/") / key.relative_to(layout.root)) for key in keys)
        done.left.append(f"{names}: public keys that its configuration does not name")
    for unit in (UNIT, GANGS_UNIT):
        added = layout.here(unit).with_name(f"{unit.name}.d")
        if added.is_dir():
            done.left.append(f"{added}: settings that were added to the unit")
    folder = layout.here(ETC)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _say_left(done: Removed, status: Status, gangs: Sequence[RunningGang], layout: Layout) -> None:
    if layout.here(STATE).exists():
        done.left.append(
            f"{STATE}: the agent's memory, runs, logs and what else is there; --purge removes it"
        )
    if gangs:
        done.left.append(f"gangs that run on, unwatched: {named(gangs)}")
    _say_elsewhere(done, status)


def _say_elsewhere(done: Removed, status: Status) -> None:
    """Name what is not in the usual place, which nothing here ever removes."""
    if status.config is None:
        return
    section = status.config.agent
    if section.workers is not None:
        url = section.workers.checkpoints
        if not url.startswith(f"file://{STATE}/"):
            done.left.append(f"the checkpoints in {_without_login(url)}")
        if STATE not in section.workers.folder.parents:
            done.left.append(f"{section.workers.folder}: run folders and logs")
    if section.state_file is not None and STATE not in section.state_file.parents:
        done.left.append(f"{section.state_file}: the agent's memory")
    user = None if status.unit is None else status.unit.get("User")
    if user not in (None, "", "root"):
        done.left.append(f"the user {user}")


def _without_login(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
