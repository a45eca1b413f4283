"""A change of size in place as the supervisor carries it out, from `resize.json`.

waiting   for the locks of the GPUs that are added; nothing is changed yet
told      `world.json` says who is who, newcomers are started, the others have been signalled
done      those that leave have left, and their GPUs are free
refused   nothing was changed; `hindrance` says why
"""

import os
import signal
from pathlib import Path
from typing import Any, Literal

from runtime.executors.crew import Crew, Member
from runtime.executors.folder import write_json
from runtime.executors.locks import Locked, take
from runtime.executors.processes import catches

State = Literal["waiting", "told", "done", "refused"]


class Resizing:
    """One change of size."""

    def __init__(self, wish: dict[str, Any], world: Path, now_s: float) -> None:
        """Begin it.

        Args:
            wish: What the agent wrote.
            world: The file that the workers are to read.
            now_s: A moment, as all others here.
        """
        self.epoch: int = wish["epoch"]
        self.state: State = "waiting"
        self.hindrance: str | None = None
        self._plan: dict[str, Any] = wish["launch"]
        self._world = world
        self._until_s = now_s + float(self._plan["lock_wait_s"])

    @property
    def waits(self) -> bool:
        """Whether it wants to be looked at again soon."""
        return self.state in ("waiting", "told")

    def advance(self, crew: Crew, holder: dict[str, object], now_s: float) -> list[Member]:
        """Go as far as it goes now; give the workers that were started for it.

        Args:
            crew: The workers.
            holder: Whom the locks of added GPUs name.
            now_s: This moment.
        """
        if self.state == "told" and not any(member.leaving for member in crew.members):
            self.state = "done"
        if self.state != "waiting":
            return []
        by_lock = {member.lock: member for member in crew.members}
        wanted = {worker["lock"]: worker for worker in self._plan["workers"]}
        stay = {member: wanted[lock] for lock, member in by_lock.items() if lock in wanted}
        leave = [member for lock, member in by_lock.items() if lock not in wanted]
        come = [worker for worker in self._plan["workers"] if worker["lock"] not in by_lock]
        self.hindrance = _deaf(list(stay), leave)
        if self.hindrance is None and not self._take_locks(come, crew, holder, now_s):
            return []
        if self.hindrance is None:
            self._tell_world(stay)
        if self.hindrance is not None:
            self.state = "refused"
            for worker in come:
                if worker["lock"] in crew.locks:
                    os.close(crew.locks.pop(worker["lock"]))
            return []
        started = [crew.enlist(worker) for worker in come]
        for member, worker in stay.items():
            member.rank = worker["rank"]
        for member in leave:
            member.leaving = True
        # Newcomers take longest to get there: they are on their way before anybody waits.
        for member in started:
            crew.start(member)
        for member in stay:
            member.send(signal.SIGUSR2)
        for member in leave:
            member.send(signal.SIGTERM)
        self.state = "told"
        return started

    def _take_locks(
        self, come: list[dict[str, Any]], crew: Crew, holder: dict[str, object], now_s: float
    ) -> bool:
        """Take the locks that are free; False while the others may still become free."""
        for lock in [worker["lock"] for worker in come if worker["lock"] not in crew.locks]:
            try:
                crew.locks[lock] = take(Path(lock), holder)
            except (Locked, OSError) as error:
                if isinstance(error, Locked) and now_s < self._until_s:
                    return False
                self.hindrance = str(error)
                return True
        return True

    def _tell_world(self, stay: dict[Member, dict[str, Any]]) -> None:
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
            self.hindrance = str(error)


def _deaf(stay: list[Member], leave: list[Member]) -> str | None:
    """Say who would be ended by its signal, if anybody would."""
    for members, number in ((stay, signal.SIGUSR2), (leave, signal.SIGTERM)):
        for member in members:
            if member.status is not None or not catches(member.pid, number):
                return f"rank {member.rank} does not listen for {number.name}"
    return None
