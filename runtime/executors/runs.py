"""One run as the agent sees it: the workers of one epoch of a job.

Its folder holds all that a restarted agent needs to take it over.
"""

import contextlib
import os
import signal
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import runtime
from runtime.core import Placement
from runtime.durable import write_json
from runtime.executors.cgroups import Cgroup
from runtime.executors.environment import (
    RunEnvironment,
    free_port,
    resizes_in_place,
    secret_files,
    shared_environment,
    single_gpu_environment,
    worker_environments,
)
from runtime.executors.fetching import job_folder
from runtime.executors.folder import (
    CHECKPOINTS,
    CLOSED,
    COMMITTED,
    EXIT,
    ORDER,
    PROGRESS,
    RESIZE,
    SHIM,
    SHIM_LOG,
    STOP,
    WORK,
    read_json,
)
from runtime.executors.lease import LEASE
from runtime.executors.locks import lock_path
from runtime.executors.options import ProcessOptions
from runtime.executors.processes import (
    Identity,
    boot_id,
    catches,
    descendants,
    identity,
    workers_of,
)
from runtime.executors.records import Order, ResizeRequest, ResizeStatus, from_json, to_json
from runtime.executors.tenants import give_run_to_user, user_of
from runtime.trees import remove_tree
from runtime.untrusted_files import NULL, fits

StopReason = Literal["stop", "scale"]
#: Where the supervisor finds its modules, wherever it is started.
_MODULES = str(Path(runtime.__file__).parent.parent)


class Run:
    """The workers of one epoch of a job."""

    def __init__(self, options: ProcessOptions, order: Order) -> None:
        self.order = order
        self.folder = run_folder(options.root, order.job, order.epoch)
        self.checkpoints = self.folder / CHECKPOINTS
        self.progress = self.folder / PROGRESS
        self._options = options
        self._shim: Identity | None = None
        #: The last request to resize in place.
        self.resize_request: ResizeRequest | None = None
        #: Whether the machine was not rebooted since the run began, so that no write was lost.
        self.this_boot = True
        #: Whether its supervisor was ever started.
        self.was_started = True

    @classmethod
    def found(cls, options: ProcessOptions, folder: Path, shim: Identity | None) -> "Run":
        """Take over the run of a folder; `shim` if its supervisor has not written `shim.json` yet.

        Raises:
            ValueError: the folder's order cannot be read.
        """
        order = from_json(Order, read_json(folder / ORDER) or {})
        if (order.job, str(order.epoch)) != (folder.parent.name, folder.name):
            raise ValueError(f"order: is of job {order.job}, epoch {order.epoch}")
        run = cls(options, order)
        said = read_json(folder / SHIM)
        if said is not None:
            run.this_boot = said["boot"] == boot_id()
            shim = Identity(said["pid"], said["started"], said["boot"]) if run.this_boot else None
        run.was_started = said is not None or shim is not None or (folder / EXIT).exists()
        run._shim = shim
        if (request := read_json(folder / RESIZE)) is not None:
            run.resize_request = from_json(ResizeRequest, request)
        return run

    # --- begin ---

    def launch(self, code: Path | None = None) -> None:
        """Write the order down and start the supervisor.

        Args:
            code: What becomes the folder in which workers begin; None: an empty one.

        Raises:
            NoSecrets: the job names some, and there are none for it here.
            OSError: the disk or the kernel do not take it.
        """
        if self.folder.exists():
            remove_tree(self.folder)  # of an attempt whose supervisor was never started
        self.checkpoints.mkdir(parents=True)
        if code is None:
            (self.folder / WORK).mkdir()
        else:
            code.rename(self.folder / WORK)
        self.progress.touch(0o600)
        if self._uid is not None:
            own = (self.checkpoints, self.folder / WORK, self.progress)
            give_run_to_user(self.folder, own, self._uid)
        environment = self._gang_environment()
        shared = shared_environment(environment, self._options.pass_env, self._user)
        order = {**to_json(self.order), "launch": self._plan(environment)}
        log = os.open(
            self.folder / SHIM_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            write_json(self.folder / ORDER, order)
            pid = os.posix_spawn(
                sys.executable,
                # Without working folder and site packages: it needs the standard library alone.
                [sys.executable, "-P", "-S", "-m", "runtime.executors.shim", str(self.folder)],
                {
                    "PATH": shared["PATH"],
                    "PYTHONPATH": _MODULES,
                    **{k: v for k, v in shared.items() if k.startswith("TIDEGATE_")},
                },
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
            )
        except OSError:
            # Its end is reported: the next agent, which begins what it finds ordered, is not to.
            (self.folder / ORDER).unlink(missing_ok=True)
            raise
        finally:
            os.close(log)
        self._shim = identity(pid)

    def _gang_environment(self) -> RunEnvironment:
        program = self.order.spec.program
        assert program is not None
        return RunEnvironment(
            self._options.agent,
            self.order.job,
            self.order.epoch,
            self.order.placement,
            program,
            self.progress,
            self.checkpoints,
            self.order.resume,
            self._options.grace_s,
            free_port(self.folder, self.order.epoch),
        )

    def _plan(self, gang: RunEnvironment) -> dict[str, Any]:
        options = self._options
        environments = worker_environments(gang, options.gpu_ids)
        workers: list[dict[str, Any]] = [
            {"rank": rank, "env": own} for rank, own in enumerate(environments)
        ]
        locks = list(self._locks(gang.placement))
        if resizes_in_place(gang.program):
            for worker, lock in zip(workers, locks, strict=True):
                worker["lock"] = lock
        return {
            "job": gang.job,
            "epoch": gang.epoch,
            "argv": gang.program.argv,
            "user": None if self._uid is None else [self._uid, *options.groups],
            "secrets": secret_files(gang.program, options.secrets, self.order.spec.tenant),
            "workdir": gang.program.workdir or str(self.folder / WORK),
            "env": shared_environment(gang, options.pass_env, self._user),
            "workers": workers,
            "locks": locks,
            "lease": str(options.root / LEASE),
            "lock_wait_s": options.lock_wait_s,
            "grace_s": options.grace_s,
            "log_max_bytes": options.log_max_mib * 1024 * 1024,
            "log_files": options.log_files,
            "memory_mib": options.memory_mib,
            "cpus": options.cpus,
            "cgroup_name": _cgroup_name(gang.agent, gang.job, gang.epoch),
            "cgroup": None if options.cgroup is None else str(options.cgroup),
        }

    @property
    def _uid(self) -> int | None:
        """The user of its workers; None: the agent's own."""
        return user_of(self._options.tenants, self.order.spec.tenant)

    @property
    def _user(self) -> tuple[int, Path] | None:
        """That user, and its home."""
        uid = self._uid
        return None if uid is None else (uid, self.folder / WORK)

    def _locks(self, placement: Placement) -> dict[str, tuple[str, int]]:
        """Give the GPUs by their lock files, in the order of the first ranks."""
        options = self._options
        return {
            str(lock_path(options.lock_folder, node, gpu, options.gpu_ids)): (node, gpu)
            for node, gpus in sorted(placement.items())
            for gpu in gpus
        }

    # --- look ---

    def gone(self) -> bool:
        """Whether no process of it is left. Kills what outlived a killed supervisor."""
        if self._shim is not None:
            if self._shim.alive():
                return False
            self._reap()
        if (self.folder / EXIT).exists():
            return True
        if end_workers(self._options, self.order.job, self.order.epoch) > 0:
            return False
        self._end_cgroup()
        return True

    def pids(self) -> list[int]:
        """Give the processes of its workers."""
        return [] if self._shim is None else descendants(self._shim.pid)

    def begun(self) -> bool:
        """Whether all workers were started."""
        said = read_json(self.folder / SHIM)
        return said is not None and bool(said["begun"])

    def exit_record(self) -> dict[str, Any] | None:
        """What the supervisor wrote at the end, if it could."""
        return read_json(self.folder / EXIT)

    def stop_reason(self) -> StopReason | None:
        """Why it was asked to stop; None: it was not."""
        said = read_json(self.folder / STOP)
        return None if said is None or said["why"] not in get_args(StopReason) else said["why"]

    def committed(self) -> dict[str, Any] | None:
        """The newest of its checkpoints that is durable: `step`, `path`, `uri`."""
        return read_json(self.folder / COMMITTED)

    # --- ask ---

    def stop(self, grace_s: float, *, kill: bool, why: StopReason) -> None:
        """Ask the workers to leave within the grace, or at once."""
        try:
            write_json(self.folder / STOP, {"grace_s": grace_s, "kill": kill, "why": why})
        except OSError:  # the disk is full; they would not know how long they have
            self.kill()
            return
        if self._shim is not None:
            self._shim.send(signal.SIGTERM)

    def save(self) -> None:
        """Ask the workers that can to write a checkpoint and go on."""
        if self._shim is not None:
            self._shim.send(signal.SIGUSR1)

    def resize(self, request: ResizeRequest) -> str | None:
        """Ask for another size in place, or ask again; give why that is impossible, if it is known.

        Workers that stay keep the order of their ranks; new workers come after them.
        """
        if self._shim is None or not catches(self._shim.pid, signal.SIGUSR2):
            return "the gang's supervisor is of a release that cannot resize"
        try:
            if self.resize_request is None or self.resize_request.epoch != request.epoch:
                plan = self._resize_plan(request)
                write_json(self.folder / RESIZE, {**to_json(request), "launch": plan})
                self.resize_request = request
        except (OSError, ValueError) as error:
            return str(error)
        self._shim.send(signal.SIGUSR2)
        return None

    def give_up_resize(self) -> None:
        """Write down that the gang is restarted instead; this does not tell the workers."""
        if self.resize_request is not None:
            self.resize_request = replace(self.resize_request, given_up=True)
            said = read_json(self.folder / RESIZE) or {}
            with contextlib.suppress(OSError):
                write_json(self.folder / RESIZE, {**said, **to_json(self.resize_request)})

    def resize_status(self, epoch: int) -> ResizeStatus:
        """How far the supervisor is with this epoch's request."""
        said = (read_json(self.folder / SHIM) or {}).get("resize") or {}
        if not fits(said, {"epoch": int, "state": str, "hindrance": (str, NULL)}):
            return ResizeStatus()
        if said["epoch"] != epoch:
            return ResizeStatus()
        return ResizeStatus(said["state"] == "done", said["hindrance"])

    def _resize_plan(self, request: ResizeRequest) -> dict[str, Any]:
        gpus, size = self._locks(request.placement), sum(map(len, request.placement.values()))
        said = read_json(self.folder / SHIM) or {"workers": []}
        stay = [one[-1] for one in said["workers"] if fits(one, [(int, str)]) and one[-1:] != []]
        stay = [lock for lock in stay if lock in gpus]
        if not stay:
            raise ValueError("no worker would stay")
        port = free_port(self.folder, request.epoch)
        workers: list[dict[str, Any]] = [
            {"rank": rank, "lock": lock} for rank, lock in enumerate(stay)
        ]
        for lock in [lock for lock in gpus if lock not in stay]:
            rank = len(workers)
            own = single_gpu_environment(rank, size, *gpus[lock], self._options.gpu_ids)
            env = {
                **own,
                "TIDEGATE_GENERATION": str(request.epoch),
                "TIDEGATE_RESUME": None,  # the other workers give it what they have in memory
                "MASTER_PORT": str(port),
            }
            # A worker that had this rank before may still write to its log.
            log = f"rank-{rank}-since-{request.epoch}.log"
            workers.append({"rank": rank, "lock": lock, "env": env, "log": log})
        return {"workers": workers, "port": port, "lock_wait_s": self._options.lock_wait_s}

    def kill(self) -> None:
        """Kill every process of it, the supervisor first; also who hides whose it is."""
        alive = self._shim is not None and self._shim.alive()
        left = [identity(pid) for pid in self.pids()] if alive else []
        if self._shim is not None:
            self._shim.send(signal.SIGKILL)
        self._end_cgroup()
        for one in filter(None, left):
            one.send(signal.SIGKILL)
        end_workers(self._options, self.order.job, self.order.epoch)

    def close(self) -> None:
        """Write down that its end was reported, and the report stored."""
        (self.folder / CLOSED).touch()

    def _end_cgroup(self) -> None:
        """Kill what is in the cgroup of a dead supervisor, and remove the cgroup."""
        said = read_json(self.folder / SHIM)
        name = _cgroup_name(self._options.agent, self.order.job, self.order.epoch)
        # Only a cgroup named after the run: a job without isolation can write this file.
        if said is not None and said["cgroup"] is not None and self.this_boot:
            cgroup = Cgroup(Path(said["cgroup"]))
            if cgroup.path.name != name:
                return
            cgroup.kill()
            cgroup.remove()

    def _reap(self) -> None:
        """Reap the supervisor, if it was our child."""
        assert self._shim is not None
        try:
            os.waitpid(self._shim.pid, os.WNOHANG)
        except ChildProcessError:
            return


def _cgroup_name(agent: str, job: str, epoch: int) -> str:
    """Name the cgroup; another agent of the machine may run the same job and epoch."""
    whose = zlib.crc32(f"{agent}/{job}".encode())
    return f"tidegate-{job[:100]}-{epoch}-{whose:08x}"


def run_folder(root: Path, job: str, epoch: int) -> Path:
    """Name the folder of a run."""
    return job_folder(root, job) / str(epoch)


def end_workers(options: ProcessOptions, job: str, epoch: int) -> int:
    """Kill the processes whose environment names the run; give how many there were."""
    ours = workers_of(options.agent, options.root)
    found = [w for w in ours if w.job == job and w.epoch == str(epoch)]
    for worker in found:
        worker.identity.send(signal.SIGKILL)
    return len(found)
