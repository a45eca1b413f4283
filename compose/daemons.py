"""Daemons for development and tests, with all their files in one folder.

What `compose/brokers`, `compose/slurm` and `compose/kubernetes` share. They run before there is a
virtual environment, so this needs no more than Python.
"""

import argparse
import contextlib
import fcntl
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Debian keeps daemons where only root looks.
PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
STOP_S = 20.0
Names = tuple[str, ...]


class Problem(Exception):
    """What is wrong and what to do about it, in a sentence."""


class Folder:
    """Where daemons have their files: `NAME.log`, `NAME.pid`, `ports.json`, `lock`."""

    def __init__(self, command: str, variable: str, default: Path) -> None:
        """Take the command it is for, and the variable that names another folder than usual."""
        self.command, self.variable = command, variable
        self.path = Path(os.environ.get(variable) or default).resolve()

    @contextlib.contextmanager
    def alone(self, file: Path | None = None) -> Iterator[None]:
        """Let one of us at a time change what a folder holds."""
        file = file or self.path / "lock"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = file.open("w")
        except OSError as error:
            raise Problem(
                f"{file.parent} cannot be written ({error.strerror}): "
                f"name another folder with {self.variable}"
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"Waiting for another {self.command} in {file.parent}", file=sys.stderr)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def ports(self, names: Sequence[str]) -> dict[str, int]:
        """Give the ports of this folder, choosing those that it has not yet."""
        file = self.path / "ports.json"
        if not file.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            ours = self.path / f"ports.json.{os.getpid()}"
            ours.write_text(json.dumps(_free_ports(names)) + "\n")
            with contextlib.suppress(FileExistsError):
                os.link(ours, file)  # of two at once, one chooses for both
            ours.unlink()
        found: dict[str, int] = json.loads(file.read_text())
        if missing := [name for name in names if name not in found]:
            found |= _free_ports(missing)
            self.write(file.name, json.dumps(found) + "\n")
        return found

    def write(self, name: str, text: str | bytes) -> None:
        """Write a file whole, for the eyes of its owner only."""
        draft = self.path / f"{name}.draft"
        draft.touch(mode=0o600)
        draft.write_bytes(text.encode() if isinstance(text, str) else text)
        draft.replace(self.path / name)

    def running(self, name: str) -> int | None:
        """Give the process id of a daemon that we started and that still runs."""
        try:
            text, started = (self.path / f"{name}.pid").read_text().split()
            pid = int(text)
        except (FileNotFoundError, ValueError):
            return None
        return pid if _start_time(pid) == started else None

    def start(self, name: str, command: Sequence[str], **environment: str) -> None:
        """Start a daemon in the folder, and note who it is."""
        with (self.path / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.path,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip
        (self.path / f"{name}.pid").write_text(f"{process.pid} {_start_time(process.pid)}")

    def wait_for(self, name: str, answers: Callable[[], bool], limit_s: float) -> None:
        """Wait until a daemon that was started answers."""
        until = time.monotonic() + limit_s
        log = self.path / f"{name}.log"
        while not answers():
            if self.running(name) is None:
                tail = log.read_text(errors="replace").splitlines()[-5:]
                said = "\n  ".join(tail)
                raise Problem(f"{name} ended while starting; {log} ends so:\n  {said}")
            if time.monotonic() > until:
                self.stop(name)
                raise Problem(
                    f"{name} did not answer within {limit_s:.0f} s and was stopped; see {log}"
                )
            time.sleep(0.05)

    def go_on(self, name: str) -> bool:
        """Tell whether a daemon runs; one that was paused goes on."""
        pid = self.running(name)
        if pid is not None:
            os.kill(pid, signal.SIGCONT)
        return pid is not None

    def stop(self, name: str) -> None:
        """End a daemon, by force if it does not hear."""
        pid = self.running(name)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # one that was stopped would not hear the other
            until = time.monotonic() + STOP_S
            while self.running(name) is not None:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                    until = float("inf")
                time.sleep(0.05)
        (self.path / f"{name}.pid").unlink(missing_ok=True)

    def wipe(self, keep: Collection[Path] = ()) -> None:
        """Remove all but the lock and what is to be kept."""
        for path in self.path.iterdir():
            if path in (self.path / "lock", *keep):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def status(self, names: Names, answers: Callable[[str], bool]) -> bool:
        """Print what runs; tell whether all of it does."""
        if not (self.path / "ports.json").exists():
            print(f"nothing is here yet: {self.command} up")
            return False
        fine, numbers = True, self.ports(())
        for name in names:
            pid = self.running(name)
            serves = pid is not None and answers(name)
            fine = fine and serves
            said = "runs" if serves else "does not answer" if pid else "does not run"
            said += f", process {pid}" if pid else ""
            said += f", port {numbers[name]}" if pid and name in numbers else ""
            print(f"{name:{max(map(len, names))}} {said}")
        return fine

    def next_line(self) -> str:
        """Give the line that a shell needs next, for the folder that was used."""
        folder = os.environ.get(self.variable)
        prefix = f"{self.variable}={shlex.quote(folder)} " if folder else ""
        return f'Next: eval "$({prefix}{shlex.quote(sys.argv[0])} env)"'


def _free_ports(names: Sequence[str]) -> dict[str, int]:
    with contextlib.ExitStack() as probes:
        taken = [probes.enter_context(socket.socket()) for _ in names]
        return {name: _bound(probe) for name, probe in zip(names, taken, strict=True)}


def _bound(probe: socket.socket) -> int:
    """Bind to a free port; below those of outgoing connections, which could take it meanwhile."""
    while True:
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _start_time(pid: int) -> str:
    """Tell a process from a later one of the same id; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if stat[0] == "Z" else stat[19]


def port_answers(port: int) -> bool:
    """Tell whether something listens there."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def need(program: str, *packages: str, path: str = PATH) -> str:
    """Give where a program is; say how to install it where it is not."""
    found = shutil.which(program, path=path)
    if found is None:
        raise Problem(f"{program} is not installed: sudo apt-get install {' '.join(packages)}")
    return found


def install(packages: Mapping[str, str]) -> None:
    """Install the packages of those programs that are missing; Debian starts none as a service."""
    missing = [
        package for program, package in packages.items() if not shutil.which(program, path=PATH)
    ]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Problem(f"not installed: {' '.join(missing)}; sudo apt-get install them")
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for command in (
            ["apt-get", "-qq", "update"],
            ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *missing],
        ):
            done = subprocess.run(
                command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                said = "\n  ".join((done.stdout + done.stderr).splitlines()[-3:])
                raise Problem(f"`{shlex.join(command)}` failed:\n  {said}")
    finally:
        if ours:
            policy.unlink()


@dataclass(frozen=True)
class Verbs:
    """What a command does, beyond what all do."""

    up: Callable[[Names], None]
    #: And whether to remove what was stored.
    down: Callable[[Names, bool], None]
    #: Prints what runs; tells whether all does.
    status: Callable[[Names], bool]
    settings: Callable[[], dict[str, str]]
    #: What is to be said if the settings lead nowhere; empty if they lead somewhere.
    warning: Callable[[], str]
    fetch: Callable[[], None]
    #: Raises `Problem` where nothing can be done at all.
    check: Callable[[], None] = lambda: None


def arguments(folder: Folder, about: str, names: Names) -> argparse.ArgumentParser:
    """Give what all commands understand."""
    parser = argparse.ArgumentParser(
        prog=folder.command,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=["up", "down", "status", "env", "fetch"])
    parser.add_argument("--only", choices=names, help="only this one")
    parser.add_argument("--wipe", action="store_true", help="down: remove what they stored")
    return parser


def run(folder: Folder, verbs: Verbs, names: Names, given: argparse.Namespace) -> int:
    """Do what was asked; give the exit status."""
    names = (given.only,) if given.only else names
    fine = True
    try:
        verbs.check()
        if given.verb == "up":
            with folder.alone():
                verbs.up(names)
            fine = verbs.status(names)
            print(folder.next_line())
        elif given.verb == "down":
            if folder.path.exists():
                with folder.alone():
                    verbs.down(names, given.wipe)
        elif given.verb == "status":
            fine = verbs.status(names)
        elif given.verb == "fetch":
            verbs.fetch()
        else:
            for name, value in verbs.settings().items():
                print(f"export {name}={shlex.quote(value)}")
            if warning := verbs.warning():
                print(f"{folder.command}: {warning}: {folder.command} up", file=sys.stderr)
    except Problem as problem:
        print(f"{folder.command}: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{folder.command}: interrupted; now `{folder.command} down`", file=sys.stderr)
        return 130
    return 0 if fine else 1
