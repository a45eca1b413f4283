"""One replica of an owner's inference server: a process that is up or down, never started twice.

It outlives the agent, which finds it again by its identity file. It also inherits a lock: while any
process of it holds that, even in another session, its GPUs do not count as free and no second one
is started. The locks of the GPUs, which gangs take too, keep replicas and gangs from running on one
GPU.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic.dataclasses import dataclass as checked

from runtime.executors.locks import Locked, take
from runtime.executors.processes import Identity
from runtime.owners.lender import POLL_S, filled, filled_text
from runtime.owners.processes import (
    Child,
    SessionTermination,
    bound_log,
    last_line,
    recorded,
    session,
    start,
    take_lock,
)
from runtime.owners.readiness import Readiness
from schemas.options import CHECKED, Delay, LogBytes, Seconds


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica: where it serves and how it is started.

    In `argv`, the values of `env` and `ready`, `{node}` and `{replica}` are replaced.
    """

    #: Its name; a file name, unique among the replicas.
    name: str
    #: The node that it serves on.
    node: str
    #: The command and its arguments; no shell reads it. It must stay in the foreground.
    argv: tuple[str, ...]
    #: Added to the agent's environment, say CUDA_VISIBLE_DEVICES.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Its working folder; unset: the agent's.
    workdir: Path | None = None
    #: The address of its readiness probe, see `runtime.owners.readiness`; empty: ready at once.
    ready: str = ""


@checked(frozen=True, slots=True, config=CHECKED)
class ReplicaOptions:
    """How replicas are stopped, started and supervised."""

    #: Time from SIGTERM to SIGKILL, for requests under way.
    grace_s: Delay = 30.0
    #: If a replica is still there this long after SIGKILL, the drain has failed.
    kill_timeout_s: Seconds = 30.0
    #: If a replica is not ready after this long, the hand-back has failed; the replica goes on.
    ready_timeout_s: Seconds = 600.0
    #: A replica that died is restarted after this long, doubling with each death, ...
    restart_s: Seconds = 1.0
    #: ...but at most after this long. One that was up for longer counts as healthy again.
    restart_max_s: Seconds = 60.0
    #: How often replicas are checked while no operation is under way.
    tend_every_s: Seconds = 2.0
    #: The most that the log of a replica may hold.
    log_bytes: LogBytes = 16 * 1024 * 1024


class Replica:
    """Brings one replica up or down, as wanted, and keeps it so."""

    def __init__(
        self, spec: ReplicaSpec, options: ReplicaOptions, folder: Path, gpus: Sequence[Path] = ()
    ) -> None:
        """Find it, if it runs.

        Args:
            spec: What it is.
            options: How it is supervised.
            folder: Where its log, lock and identity are kept.
            gpus: The lock files of its node's GPUs.

        Raises:
            ValueError: `ready` is no address.
        """
        self.spec = spec
        self._words = {"node": spec.node, "replica": spec.name}
        self._options = options
        self._record = folder / f"{spec.name}.json"
        self._lock = folder / f"{spec.name}.lock"
        self._log = folder / f"{spec.name}.log"
        self._gpus = tuple(gpus)
        self._readiness = Readiness(filled_text(spec.ready, **self._words))
        self._who = self._found()
        self._child: Child | None = None
        self._ending: SessionTermination | None = None
        #: Whether nothing of it is left, and so its GPUs are free.
        self.is_down = False
        self._pause_s = options.restart_s
        self._started_s = -1.0
        self._start_s = 0.0  # not before
        self._wants_up = False
        self.error = ""

    @property
    def is_ready(self) -> bool:
        """Whether it has been ready since it started."""
        return self._who is not None and self._ending is None and self._readiness.is_ready

    def want(self, up: bool, now_s: float) -> None:
        """Set whether it shall be up or down from now on."""
        if up and not self._wants_up:
            self._start_s = now_s
            self._pause_s, self.error = self._options.restart_s, ""
        if not up:
            self._readiness.reset(starts=False)
        self._wants_up, self.is_down = up, False

    def step(self, now_s: float) -> float:
        """Take the next step; give when to call again."""
        bound_log(self._log, self._options.log_bytes)
        if self._ending is not None or not self._wants_up:
            return self._end(now_s)
        if self._who is None:
            return self._begin(now_s)
        if (self._child is not None and self._child.code() is not None) or not self._who.alive():
            return self._died(self._who, now_s)
        self._readiness.ask()
        if self._readiness.is_ready:
            if now_s - self._started_s > self._options.restart_max_s:
                self._pause_s, self.error = self._options.restart_s, ""
            return now_s + self._options.tend_every_s
        return now_s + POLL_S

    def _found(self) -> Identity | None:
        who = recorded(self._record)
        return who if who is not None and session(who) else None

    def _end(self, now_s: float) -> float:
        if self.is_down:
            return now_s + self._options.tend_every_s
        if self._ending is None:
            self._ending = SessionTermination(self._who, now_s, self._options.grace_s, self._lock)
        if not self._ending.poll(now_s):
            return now_s + POLL_S
        if self._child is not None:
            self._child.code()  # reaps it
        self._who = self._child = self._ending = None
        self.is_down = not self._wants_up
        return now_s

    def _died(self, who: Identity, now_s: float) -> float:
        code = None if self._child is None else self._child.code()
        how = "" if code is None else f" (status {code})"
        self.error = f"it died{how}; {self._log} ends: {last_line(self._log)}"
        self._pause(now_s)
        self._readiness.reset(starts=False)
        # Its own children may still hold the GPU's memory.
        self._ending = SessionTermination(who, now_s, 0.0, self._lock)
        return self._end(now_s)

    def _pause(self, now_s: float) -> float:
        self._start_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._options.restart_max_s)
        return self._start_s

    def _begin(self, now_s: float) -> float:
        if now_s < self._start_s:
            return self._start_s
        held: list[int] = []
        try:
            lock = take_lock(self._lock)
            if lock is None:
                # An earlier agent started it, or a process that is its child.
                self._who = self._found()
                if self._who is None:
                    self._ending = SessionTermination(None, now_s, 0.0, self._lock)
                return now_s
            held.append(lock)
            for path in self._gpus:
                lock = take(path, {"owner": self.spec.name}, shared=True)
                held.append(lock)
            self._readiness.reset(starts=True)
            self._child = start(
                filled(self.spec.argv, **self._words),
                record=self._record,
                log=self._log,
                env={key: filled_text(v, **self._words) for key, v in self.spec.env.items()},
                workdir=self.spec.workdir,
                locks=held,
            )
        except (Locked, OSError) as error:
            self.error = f"it cannot be started: {error}"
            return self._pause(now_s)
        finally:
            for descriptor in held:
                os.close(descriptor)
        self._who, self._started_s = self._child.identity, now_s
        return now_s + POLL_S
