"""The supervisor of one gang: `python -m runtime.executors.shim RUN_FOLDER`.

It outlives the agent, takes the GPU locks, starts the workers, keeps their output, ends them when
it is asked to or when one of them fails, and writes down how each ended when none is left. Its
death is theirs. Asked by signals to itself:

    SIGTERM   the workers leave, as `stop.json` says; without that file within the usual grace
    SIGUSR1   handed on to the workers that have a handler for it
    SIGUSR2   the workers become more or fewer, as `resize.json` says

By itself it has them leave when the agent's lease ends, as `lease.json` of the agent says: then the
job goes on elsewhere, and an agent that is dead cannot end it.

Imports only the standard library, and little of it: it lives as long as its gang.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from runtime.executors.cgroups import Cgroup, make_cgroup
from runtime.executors.crew import Crew, Member, Refused
from runtime.executors.folder import (
    EXIT,
    LOGS,
    ORDER,
    RESIZE,
    SHIM,
    STOP,
    WORLD,
    read_json,
    write_json,
)
from runtime.executors.kernel import become_subreaper
from runtime.executors.lease import read_lease
from runtime.executors.locks import Locked, take
from runtime.executors.processes import boot_id, catches, identity
from runtime.executors.resizing import Resizing

_LOCK_RETRY_S = 0.1
#: Ended processes are looked for again this often while some resist.
_SWEEP_S = 0.2
#: A lease is looked at this often at least: renewals come unheard, and a machine may be suspended.
_LEASE_LOOK_S = 30.0


class Shim:
    """Supervises one run, from its order to its exit record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        order = read_json(folder / ORDER)
        if order is None:
            raise SystemExit(f"{folder / ORDER}: there is no order to carry out")
        self._plan: dict[str, Any] = order["launch"]
        self._locks: dict[str, int] = {}
        self._cgroup: Cgroup | None = None
        self._notes: list[str] = []
        self._crew: Crew | None = None
        self._selector = selectors.DefaultSelector()
        self._wake, wakes = socket.socketpair()
        self._wake.setblocking(False)
        wakes.setblocking(False)
        self._wakes = wakes
        self._deadline_s: float | None = None
        self._failed: Member | None = None
        self._resizing: Resizing | None = None
        self._lease_look_s = 0.0
        self._lease_ended = False

    def run(self) -> int:
        """Do it all; give the exit status."""
        self._hear_signals()
        self._say_who()
        try:
            self._take_locks()
            self._begin()
        except (Locked, Refused, OSError) as error:
            self._end(refused={"kind": type(error).__name__, "error": str(error)})
            return 1
        self._say_who()
        self._supervise()
        self._end(refused=None)
        return 0

    # --- begin ---

    def _hear_signals(self) -> None:
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        asked = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
        for number in (*asked, signal.SIGCHLD):
            signal.signal(number, _heard)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._selector.register(self._wake, selectors.EVENT_READ)
        # Children whose parents are gone become ours, so that none is missed at the end.
        become_subreaper()

    def _take_locks(self) -> None:
        """Take every GPU, or none; one whose last worker is just dying gets a moment."""
        until_s = _now_s() + float(self._plan["lock_wait_s"])
        for path in self._plan["locks"]:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    self._locks[path] = take(Path(path), self._holder())
                    break
                except Locked:
                    if _now_s() >= until_s or signal.SIGTERM in self._listen(_LOCK_RETRY_S):
                        raise

    def _holder(self) -> dict[str, object]:
        return {"job": self._plan["job"], "epoch": self._plan["epoch"], "pid": os.getpid()}

    def _begin(self) -> None:
        plan = self._plan
        parent = Path(plan["cgroup"]) if plan["cgroup"] else None
        self._cgroup, self._notes = make_cgroup(
            parent, plan["cgroup_name"], plan["memory_mib"], plan["cpus"]
        )
        self._crew = Crew(plan, self._folder / LOGS, self._locks, self._cgroup)
        for member in self._crew.members:
            self._crew.start(member)
            if member.status is not None:
                self._left(self._crew, member)
                return
            self._selector.register(member.output, selectors.EVENT_READ, member)

    def _say_who(self) -> None:
        """Write down who we are: first without workers, so that we are found in any case."""
        me = identity(os.getpid())
        members = [] if self._crew is None else [m for m in self._crew.members if not m.leaving]
        resizing = self._resizing
        content = {
            "pid": os.getpid(),
            "started": 0 if me is None else me.started,
            "boot": boot_id(),
            "cgroup": None if self._cgroup is None else str(self._cgroup.path),
            "notes": self._notes,
            "workers": sorted([member.rank, member.pid, member.lock] for member in members),
            "resize": resizing
            and {
                "epoch": resizing.epoch,
                "state": resizing.state,
                "hindrance": resizing.hindrance,
            },
            "begun": self._crew is not None,
        }
        write_json(self._folder / SHIM, content)

    # --- supervise ---

    def _supervise(self) -> None:
        assert self._crew is not None
        crew = self._crew
        while True:
            left = [member for member in crew.members if member.pid and member.status is None]
            if not left and not (self._stopping and crew.groups_alive()):
                return
            heard = self._listen(self._wait_s())
            if signal.SIGTERM in heard or signal.SIGINT in heard:
                self._stop(crew)
            if signal.SIGUSR1 in heard:
                for member in left:
                    if catches(member.pid, signal.SIGUSR1):  # else it would end the worker
                        os.kill(member.pid, signal.SIGUSR1)
            if signal.SIGUSR2 in heard and not self._stopping:
                self._hear_wish()
            for member in crew.reap():
                self._left(crew, member)
            self._resize(crew)
            self._keep_lease(crew)
            if self._deadline_s is not None and _now_s() >= self._deadline_s:
                crew.kill()

    @property
    def _stopping(self) -> bool:
        return self._deadline_s is not None

    def _wait_s(self) -> float | None:
        if self._deadline_s is None:
            if self._resizing is not None and self._resizing.waits:
                return _SWEEP_S
            return max(0.0, self._lease_look_s - _now_s())
        return min(_SWEEP_S, max(0.0, self._deadline_s - _now_s())) or _SWEEP_S

    def _keep_lease(self, crew: Crew) -> None:
        """Have the workers leave if the lease is over; else say when to look again."""
        if self._stopping or _now_s() < self._lease_look_s:
            return
        lease = read_lease(Path(self._plan["lease"]))
        left_s = _LEASE_LOOK_S if lease is None else lease.left_s()
        if lease is not None and left_s == 0.0:
            self._lease_ended, self._deadline_s = True, _now_s() + lease.grace_s
            crew.ask(signal.SIGTERM)
        self._lease_look_s = _now_s() + min(left_s, _LEASE_LOOK_S)

    def _stop(self, crew: Crew) -> None:
        """Ask the workers to leave; asked again, only ever sooner."""
        wish = read_json(self._folder / STOP) or {}
        deadline_s = _now_s() + float(wish.get("grace_s", self._plan["grace_s"]))
        if self._deadline_s is None:
            self._deadline_s = deadline_s
            if not wish.get("kill"):
                crew.ask(signal.SIGTERM)
        self._deadline_s = min(self._deadline_s, deadline_s)
        if wish.get("kill"):
            self._deadline_s = _now_s()

    def _left(self, crew: Crew, member: Member) -> None:
        if self._stopping:
            # Perhaps a wrapper died of the signal: what it started does the work, and saves it.
            member.signal_group(signal.SIGKILL if member.status == 0 else signal.SIGTERM)
        elif member.status != 0 and self._failed is None:
            self._failed = member
            crew.kill()  # the others would wait for it for ever

    def _hear_wish(self) -> None:
        """Begin another size in place, unless that is under way, or over, already."""
        wish = read_json(self._folder / RESIZE)
        if wish is not None and (self._resizing is None or self._resizing.epoch < wish["epoch"]):
            with contextlib.suppress(LookupError, TypeError, ValueError):  # no wish of the agent's
                self._resizing = Resizing(wish, self._folder / WORLD, _now_s())

    def _resize(self, crew: Crew) -> None:
        """Go on with it, and say so in `shim.json`."""
        if self._resizing is None or not self._resizing.waits or self._stopping:
            return
        before = self._resizing.state
        for member in crew.dismissed():
            member.take_output()
            if member.output in self._selector.get_map():
                self._selector.unregister(member.output)
            member.close()
        for member in self._resizing.advance(crew, self._holder(), _now_s()):
            if member.status is not None:
                self._left(crew, member)
            else:
                self._selector.register(member.output, selectors.EVENT_READ, member)
        if self._resizing.state != before:
            with contextlib.suppress(OSError):  # nobody learns of it, and a restart follows
                self._say_who()

    def _listen(self, timeout_s: float | None) -> set[int]:
        """Wait for output, signals or the time; give the signals."""
        heard: set[int] = set()
        for key, _ in self._selector.select(timeout_s):
            member = key.data
            if member is None:
                heard.update(self._wake.recv(4096))
            elif not member.take_output():
                self._selector.unregister(member.output)
        return heard

    # --- end ---

    def _end(self, refused: dict[str, str] | None) -> None:
        """Leave nothing behind, let the GPUs go, and write down how it was."""
        crew = self._crew
        while crew is not None and not crew.gone():
            crew.kill()  # also those that left their group; what cannot be killed holds its GPU
            self._listen(_SWEEP_S)
            crew.reap()
        for descriptor in self._locks.values():
            os.close(descriptor)
        workers = []
        # The one that failed first: one that was leaving may have the rank of one that came.
        for member in sorted(crew.members if crew else (), key=lambda m: m is not self._failed):
            member.take_output()
            workers.append(member.record())
            member.close()
        oom_kills = 0
        if self._cgroup is not None:
            oom_kills = self._cgroup.oom_kills()
            self._cgroup.remove()
        content = {
            "refused": refused,
            "stopped": self._stopping,
            "lease_ended": self._lease_ended,
            "failed": None if self._failed is None else self._failed.rank,
            "oom_kills": oom_kills,
            "workers": workers,
            "notes": self._notes,
        }
        write_json(self._folder / EXIT, content)


def _heard(number: int, frame: object) -> None:
    """Do nothing: the number arrives through the wake-up socket."""


def _now_s() -> float:
    # The shared clock lives in a module that brings an event loop along.
    return time.monotonic()  # noqa: TID251 - measures waits alone


def main() -> int:
    """Supervise the run whose folder is named on the command line."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m runtime.executors.shim RUN_FOLDER\n")
        return 2
    folder = Path(sys.argv[1])
    os.chdir(folder)
    return Shim(folder).run()


if __name__ == "__main__":
    raise SystemExit(main())
