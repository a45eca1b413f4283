"""Whether the agent may write where it must, and nobody else may read what is secret."""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from runtime.executors.tenants import closed_to_jobs
from services.doctor.disk import existing, is_there
from services.doctor.finding import CheckContext, Finding, Reporter
from services.install.changes import masked
from services.install.layout import ENVIRONMENT
from services.secret_files import open_to, secret_files

_report = Reporter("permissions")
_NONE = 'say isolation = "none" in [agent.workers] if all who submit may read what the agent can'


def check(context: CheckContext) -> Iterator[Finding]:
    """Check as the present user, which for a service is the service's own."""
    me = _user(os.geteuid())
    memory = context.state_file
    folders = {} if memory is None else {"agent.state_file": memory.parent}
    workers = context.config.agent.workers
    if workers is not None:
        folders["agent.workers.folder"] = workers.folder
        folders["agent.workers.locks"] = workers.locks or workers.folder / "locks"
    of_memory = [] if memory is None else _of_memory(memory, me)
    secrets = [*_of_secrets(context, me), *_of_texts(context)]
    isolation = _of_isolation(context, me)
    found = [*_of_folders(folders, me), *of_memory, *isolation, *secrets]
    yield from found
    if not found:
        yield _report.ok(f"{me} may write where it must; keys are closed to others")


def _of_folders(folders: dict[str, Path], me: str) -> Iterator[Finding]:
    closed: set[Path] = set()
    for key, folder in folders.items():
        place = existing(folder)
        if os.access(place, os.W_OK | os.X_OK) or place in closed:
            continue
        closed.add(place)
        make = f"mkdir -p {folder} && " if place != folder else ""
        yield _report.problem(
            f"{key}: {me} may not write in {place}",
            f"{make}chown {me} {folder}, or set {key} to another folder",
        )


def _of_isolation(context: CheckContext, me: str) -> Iterator[Finding]:
    """Check whether each tenant's jobs can run as a user of their own, where that is asked for."""
    workers, runs = context.config.agent.workers, context.config.agent.runs
    if workers is None or workers.isolation == "none":
        return
    if runs == "slurm":
        yield _report.problem(
            "agent.workers.isolation: Slurm runs all jobs as the agent's user, so no agent starts",
            _NONE,
        )
    elif runs == "processes" and os.geteuid() != 0:
        yield _report.problem(
            f"agent.workers.isolation: {me} is not root and cannot run each tenant's jobs as a "
            "user of their own, so no agent starts",
            f"run the agent as root, or {_NONE}",
        )
    elif runs == "processes":
        for folder in closed_to_jobs(workers.folder):
            yield _report.problem(
                f"agent.workers.folder: {folder} is closed to the users of jobs, so no agent "
                "starts",
                f"chmod o+x {folder}, or name another folder",
            )


def _of_memory(memory: Path, me: str) -> Iterator[Finding]:
    for file in (memory, memory.with_name(f"{memory.name}-wal")):
        if is_there(file) and not os.access(file, os.R_OK | os.W_OK):
            whose = _user(file.stat().st_uid)
            fix = f"chown {me} {memory}*"
            yield _report.problem(f"{file} is {whose}'s, and {me} may not write it", fix)


def _of_secrets(context: CheckContext, me: str) -> Iterator[Finding]:
    unused = {"kafka", "mqtt"} - {*context.brokers}
    for key, file in secret_files(context.config).items():
        is_used = key.partition(".")[0] not in unused
        try:
            about = file.stat()
        except OSError as error:
            if is_used:
                yield _report.problem(f"{key}: {file}: {error.strerror}", f"correct {key}")
            continue
        if may := open_to(about.st_mode):
            yield _report.problem(
                f"{key}: every user of this machine can {may} {file}",
                f"chmod o= {file}; if others are on this machine, have a new one made",
            )
        if is_used and not os.access(file, os.R_OK):
            fix = f"chgrp the file to a group of {me} and chmod g+r {file}"
            yield _report.problem(f"{key}: {me} may not read {file}", fix)


def _of_texts(context: CheckContext) -> Iterator[Finding]:
    """Check files that may hold secrets among other things: configuration and environment."""
    for file in (context.file, None if context.unit is None else ENVIRONMENT):
        try:
            if file is None or not (may := open_to(file.stat().st_mode)):
                continue
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        lines = "\n".join(line for line in text.splitlines() if line.lstrip()[:1] != "#")
        if masked(lines) != lines or (file == ENVIRONMENT and lines):
            yield _report.problem(
                f"every user of this machine can {may} {file}, which holds a login or token",
                f"chmod o= {file}; if others are on this machine, change what is secret in it",
            )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
