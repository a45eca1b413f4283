"""How the supervisor carries out a change of size in place, from `resize.json`.

waiting   for the locks of the GPUs that are added; nothing is changed yet
told      `world.json` has the new ranks, new workers are started, the others were signalled
done      the workers that leave have left, and their GPUs are free
refused   nothing was changed; `blocked_reason` says why
"""

import os
import signal
from pathlib import Path
from typing import Any, Literal

from runtime.durable import write_json
from runtime.executors.locks import Locked, take
from runtime.executors.processes import catches
from runtime.executors.worker_group import WorkerGroup, WorkerProcess

State = Literal["waiting", "told", "done", "refused"]


class ResizeOperation:
    """One change of size."""

    def __init__(self, request: dict[str, Any], world: Path, now_s: float) -> None:
        """Begin it.

        Args:
            request: What the agent wrote to `resize.json`.
            world: The file that the workers are to read.
            now_s: A moment, as all others here.
        """
        self.epoch: int = request["epoch"]
        self.state: State = "waiting"
        self.blocked_reason: str | None = None
        self._plan: dict[str, Any] = request["launch"]
        self._world = world
        self._until_s = now_s + float(self._plan["lock_wait_s"])

    @property
    def waits(self) -> bool:
        """Whether `advance` must be called again soon."""
        return self.state in ("waiting", "told")

    def advance(
        self, group: WorkerGroup, lock_owner: dict[str, object], now_s: float
    ) -> list[WorkerProcess]:
        """Do what can be done now; give the workers that were started.

        Args:
            group: The workers.
            lock_owner: Whom the lock files of added GPUs name.
            now_s: This moment.
        """
        if self.state == "told" and not any(member.leaving for member in group.members):
            self.state = "done"
        if self.state != "waiting":
            return []
        by_lock = {member.lock: member for member in group.members}
        wanted = {worker["lock"]: worker for worker in self._plan["workers"]}
        stay = {member: wanted[lock] for lock, member in by_lock.items() if lock in wanted}
        leave = [member for lock, member in by_lock.items() if lock not in wanted]
        come = [worker for worker in self._plan["workers"] if worker["lock"] not in by_lock]
        self.blocked_reason = _unhandled_signal(list(stay), leave)
        if self.blocked_reason is None and not self._take_locks(come, group, lock_owner, now_s):
            return []
        if self.blocked_reason is None:
            self._write_world(stay)
        if self.blocked_reason is not None:
            self.state = "refused"
            for worker in come:
                if worker["lock"] in group.locks:
                    os.close(group.locks.pop(worker["lock"]))
            return []
        started = [group.add(worker) for worker in come]
        for member, worker in stay.items():
            member.rank = worker["rank"]
        for member in leave:
            member.leaving = True
        # New workers take longest to be ready: start them before the others begin to wait.
        for member in started:
            group.start(member)
        for member in stay:
            member.send(signal.SIGUSR2)
        for member in leave:
            member.send(signal.SIGTERM)
        self.state = "told"
        return started

    def _take_locks(
        self,
        come: list[dict[str, Any]],
        group: WorkerGroup,
        lock_owner: dict[str, object],
        now_s: float,
    ) -> bool:
        """Take the locks that are free; False while the others may still become free."""
        for lock in [worker["lock"] for worker in come if worker["lock"] not in group.locks]:
            try:
                group.locks[lock] = take(Path(lock), lock_owner)
            except (Locked, OSError) as error:
                if isinstance(error, Locked) and now_s < self._until_s:
                    return False
                self.blocked_reason = str(error)
                return True
        return True

    def _write_world(self, stay: dict[WorkerProcess, dict[str, Any]]) -> None:
        content = {
            "generation": self.epoch,
            "world_size": len(self._plan["workers"]),
            "ranks": {str(member.rank): worker["rank"] for member, worker in stay.items()},
            "master_addr": "127.0.0.1",
            "master_port": self._plan["port"],
        }
        try:
            write_json(self._world, content, mode=0o644)
        except OSError as error:
            self.blocked_reason = str(error)


def _unhandled_signal(stay: list[WorkerProcess], leave: list[WorkerProcess]) -> str | None:
    """Name a worker without a handler for its signal, which would kill it; None: all have one."""
    for members, number in ((stay, signal.SIGUSR2), (leave, signal.SIGTERM)):
        for member in members:
            if member.status is not None or not catches(member.pid, number):
                return f"rank {member.rank} does not listen for {number.name}"
    return None
