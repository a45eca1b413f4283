"""The supervisor of one gang: `python -m runtime.executors.shim RUN_FOLDER`.

It outlives the agent. It takes the GPU locks, starts the workers, logs their output, stops them
when it is asked to or when one of them fails, and writes down how each ended. If it dies, the
kernel kills the workers. The agent asks it by signals:

    SIGTERM   stop the workers as `stop.json` says; without that file, within the usual grace
    SIGUSR1   pass the signal on to the workers that have a handler for it
    SIGUSR2   start and stop workers as `resize.json` says

It also stops the workers when the agent's lease (`lease.json`) ends: the scheduler then starts the
job elsewhere, and a dead agent could not stop it here.

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

from runtime.durable import write_file, write_json
from runtime.executors.cgroups import Cgroup, make_cgroup
from runtime.executors.folder import (
    EXIT,
    LOGS,
    ORDER,
    RESERVED,
    RESIZE,
    SHIM,
    STOP,
    WORLD,
    read_json,
)
from runtime.executors.kernel import become_subreaper
from runtime.executors.lease import read_lease
from runtime.executors.locks import Locked, take
from runtime.executors.processes import boot_id, catches, identity
from runtime.executors.resizing import ResizeOperation
from runtime.executors.worker_group import Refused, WorkerGroup, WorkerProcess

_LOCK_RETRY_S = 0.1
#: While some processes resist being killed, they are killed again this often.
_SWEEP_S = 0.2
#: The lease file is read at least this often: nothing signals a renewal, and the machine may have
#: been suspended.
_LEASE_LOOK_S = 30.0
#: More than the exit record of a gang on one machine takes.
_RESERVED_BYTES = 64 * 1024


class Shim:
    """Supervises one run, from its order to its exit record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        order = read_json(folder / ORDER)
        if order is None:
            raise SystemExit(f"{folder / ORDER}: there is no order for this run")
        self._plan: dict[str, Any] = order["launch"]
        self._locks: dict[str, int] = {}
        self._cgroup: Cgroup | None = None
        self._notes: list[str] = []
        self._group: WorkerGroup | None = None
        self._selector = selectors.DefaultSelector()
        self._wake, wakes = socket.socketpair()
        self._wake.setblocking(False)
        wakes.setblocking(False)
        self._wakes = wakes
        self._deadline_s: float | None = None
        self._failed: WorkerProcess | None = None
        self._resizing: ResizeOperation | None = None
        self._lease_look_s = 0.0
        self._lease_ended = False

    def run(self) -> int:
        """Supervise the run to its end; give the exit status."""
        self._install_signal_handlers()
        self._write_identity()
        try:
            write_file(self._folder / RESERVED, bytes(_RESERVED_BYTES), mode=0o600, synced=False)
            self._take_locks()
            self._begin()
            self._write_identity()
        except (Locked, Refused, OSError) as error:
            self._end(refused={"kind": type(error).__name__, "error": str(error)})
            return 1
        self._supervise()
        self._end(refused=None)
        return 0

    # --- begin ---

    def _install_signal_handlers(self) -> None:
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        asked = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
        for number in (*asked, signal.SIGCHLD):
            signal.signal(number, _heard)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._selector.register(self._wake, selectors.EVENT_READ)
        # Orphaned descendants become our children, so that none is missed at the end.
        become_subreaper()

    def _take_locks(self) -> None:
        """Take every GPU lock; wait for one whose last worker is just dying."""
        until_s = _now_s() + float(self._plan["lock_wait_s"])
        for path in self._plan["locks"]:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    self._locks[path] = take(Path(path), self._lock_owner())
                    break
                except Locked:
                    if _now_s() >= until_s or signal.SIGTERM in self._listen(_LOCK_RETRY_S):
                        raise

    def _lock_owner(self) -> dict[str, object]:
        return {"job": self._plan["job"], "epoch": self._plan["epoch"], "pid": os.getpid()}

    def _begin(self) -> None:
        plan = self._plan
        parent = Path(plan["cgroup"]) if plan["cgroup"] else None
        self._cgroup, self._notes = make_cgroup(
            parent, plan["cgroup_name"], plan["memory_mib"], plan["cpus"]
        )
        self._group = WorkerGroup(plan, self._folder / LOGS, self._locks, self._cgroup)
        for member in self._group.members:
            self._group.start(member)
            if member.status is not None:
                self._left(self._group, member)
                return
            self._selector.register(member.output, selectors.EVENT_READ, member)

    def _write_identity(self) -> None:
        """Write `shim.json`: before the workers start, too, so that the agent finds us anyway."""
        me = identity(os.getpid())
        members = [] if self._group is None else [m for m in self._group.members if not m.leaving]
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
                "hindrance": resizing.blocked_reason,  # the key that agents of all releases read
            },
            "begun": self._group is not None,
        }
        write_json(self._folder / SHIM, content)

    # --- supervise ---

    def _supervise(self) -> None:
        assert self._group is not None
        group = self._group
        while True:
            left = [member for member in group.members if member.pid and member.status is None]
            if not left and not (self._stopping and group.groups_alive()):
                return
            heard = self._listen(self._wait_s())
            if signal.SIGTERM in heard or signal.SIGINT in heard:
                self._stop(group)
            if signal.SIGUSR1 in heard:
                for member in left:
                    if catches(member.pid, signal.SIGUSR1):  # else it would end the worker
                        os.kill(member.pid, signal.SIGUSR1)
            if signal.SIGUSR2 in heard and not self._stopping:
                self._begin_resize()
            for member in group.reap():
                self._left(group, member)
            self._resize(group)
            self._stop_if_lease_ended(group)
            if self._deadline_s is not None and _now_s() >= self._deadline_s:
                group.kill()

    @property
    def _stopping(self) -> bool:
        return self._deadline_s is not None

    def _wait_s(self) -> float | None:
        if self._deadline_s is None:
            if self._resizing is not None and self._resizing.waits:
                return _SWEEP_S
            return max(0.0, self._lease_look_s - _now_s())
        return min(_SWEEP_S, max(0.0, self._deadline_s - _now_s())) or _SWEEP_S

    def _stop_if_lease_ended(self, group: WorkerGroup) -> None:
        """Stop the workers if the agent's lease has ended; otherwise note when to read it again."""
        if self._stopping or _now_s() < self._lease_look_s:
            return
        lease = read_lease(Path(self._plan["lease"]))
        left_s = _LEASE_LOOK_S if lease is None else lease.left_s()
        if lease is not None and left_s == 0.0:
            self._lease_ended, self._deadline_s = True, _now_s() + lease.grace_s
            group.signal_all(signal.SIGTERM)
        self._lease_look_s = _now_s() + min(left_s, _LEASE_LOOK_S)

    def _stop(self, group: WorkerGroup) -> None:
        """Ask the workers to stop; a repeated request can only bring the deadline forward."""
        request = read_json(self._folder / STOP) or {}
        deadline_s = _now_s() + float(request.get("grace_s", self._plan["grace_s"]))
        if self._deadline_s is None:
            self._deadline_s = deadline_s
            if not request.get("kill"):
                group.signal_all(signal.SIGTERM)
        self._deadline_s = min(self._deadline_s, deadline_s)
        if request.get("kill"):
            self._deadline_s = _now_s()

    def _left(self, group: WorkerGroup, member: WorkerProcess) -> None:
        if self._stopping:
            # A wrapper may have died of the signal, while its child does the work and saves it.
            member.signal_group(signal.SIGKILL if member.status == 0 else signal.SIGTERM)
        elif member.status != 0 and self._failed is None:
            self._failed = member
            group.kill()  # the other workers would wait for it for ever

    def _begin_resize(self) -> None:
        """Begin the resize that `resize.json` asks for, unless it was begun already."""
        request = read_json(self._folder / RESIZE)
        known = -1 if self._resizing is None else self._resizing.epoch
        if request is not None and request["epoch"] > known:
            # What the agent did not write may lack any key.
            with contextlib.suppress(LookupError, TypeError, ValueError):
                self._resizing = ResizeOperation(request, self._folder / WORLD, _now_s())

    def _resize(self, group: WorkerGroup) -> None:
        """Continue the resize, and record its state in `shim.json`."""
        if self._resizing is None or not self._resizing.waits or self._stopping:
            return
        before = self._resizing.state
        for member in group.reap_departed():
            member.take_output()
            if member.output in self._selector.get_map():
                self._selector.unregister(member.output)
            member.close()
        for member in self._resizing.advance(group, self._lock_owner(), _now_s()):
            if member.status is not None:
                self._left(group, member)
            else:
                self._selector.register(member.output, selectors.EVENT_READ, member)
        if self._resizing.state != before:
            with contextlib.suppress(OSError):  # the agent then restarts the gang
                self._write_identity()

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
        """Kill every process, release the GPUs, and write the exit record."""
        group = self._group
        while group is not None and not group.gone():
            # Also processes that left their group. One that cannot die keeps its GPU lock.
            group.kill()
            self._listen(_SWEEP_S)
            group.reap()
        for descriptor in self._locks.values():
            os.close(descriptor)
        workers = []
        # The failed worker first: a leaving worker may have the same rank as a new one.
        for member in sorted(group.members if group else (), key=lambda m: m is not self._failed):
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
        # A disk that is full by now has room again: a job that is done must not count as failed.
        (self._folder / RESERVED).unlink(missing_ok=True)
        write_json(self._folder / EXIT, content)


def _heard(number: int, frame: object) -> None:
    """Do nothing: the signal number arrives through the wake-up socket."""


def _now_s() -> float:
    # The shared clock's module would import asyncio.
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
