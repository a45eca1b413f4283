"""The environment variables of workers, as docs/jobs.md lists them; with torchrun's names.

Workers do not get the agent's own environment, which holds the logins of the bus and the store.
"""

import contextlib
import os
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.core import Placement
from runtime.executors.folder import WORLD
from schemas.programs import Program

#: Variables of the agent that every worker gets.
_PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "NVIDIA_DRIVER_CAPABILITIES", "XDG_CACHE_HOME"),
)
_OF_A_USER = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_CACHE_HOME")
#: Below the ports of outgoing connections, which could take one meanwhile.
_PORTS = range(20_000, 30_000)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """What all workers of a run have in common."""

    agent: str
    job: str
    epoch: int
    placement: Placement
    program: Program
    progress: Path
    checkpoints: Path
    resume: Path | None
    grace_s: float
    master_port: int


def machine_environment(passed: Sequence[str] = ()) -> dict[str, str]:
    """Give what workers get of this process's own environment.

    A run that is compared with a worker's must get the same: some variables change how libraries
    compute, as `OPENBLAS_CORETYPE` does for OpenBLAS.

    Args:
        passed: What workers of this agent get besides, by name.
    """
    own = {name: os.environ[name] for name in (*_PASSED, *passed) if name in os.environ}
    return {"PATH": _PATH, **own}


def shared_environment(
    gang: RunEnvironment, passed: Sequence[str], user: tuple[int, Path] | None = None
) -> dict[str, str]:
    """Give the variables that all workers of a run have, and their supervisor too.

    With a `user`, its id and home, the workers are another user than the agent, and get none of the
    agent's variables of a user. No account has that id, so a name is made up: PyTorch asks for one
    to name its cache, and ends where there is neither a name nor an account.
    """
    said = {
        "TIDEGATE_AGENT": gang.agent,
        "TIDEGATE_JOB": gang.job,
        "TIDEGATE_EPOCH": str(gang.epoch),
        "TIDEGATE_CHECKPOINT_DIR": str(gang.checkpoints),
        "TIDEGATE_PROGRESS": str(gang.progress),
        "TIDEGATE_GRACE_S": f"{gang.grace_s:g}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(gang.master_port),
    }
    if gang.resume is not None:
        said["TIDEGATE_RESUME"] = str(gang.resume)
    if resizes_in_place(gang.program):
        said["TIDEGATE_WORLD"] = str(gang.progress.with_name(WORLD))
        said["TIDEGATE_GENERATION"] = str(gang.epoch)
    # A program cannot pose as another job, nor name another checkpoint to resume from.
    wanted = {k: v for k, v in gang.program.env.items() if not k.startswith("TIDEGATE_")}
    machine = machine_environment(passed)
    if user is not None:
        uid, home = user
        name = f"tidegate-{uid}"
        own = {"HOME": str(home), "USER": name, "LOGNAME": name}
        machine = {k: v for k, v in machine.items() if k not in _OF_A_USER} | own
    return {**machine, **wanted, **said}


def worker_environments(
    gang: RunEnvironment, gpu_ids: Mapping[str, Sequence[str]] | None
) -> list[dict[str, str]]:
    """Give each worker's own variables, by rank: over nodes in order of name, then over GPUs.

    Raises:
        ValueError: the placement names a GPU that `gpu_ids` does not.
    """
    nodes = sorted(gang.placement.items())
    if resizes_in_place(gang.program):
        alone = [(node, gpu) for node, gpus in nodes for gpu in gpus]
        return [
            single_gpu_environment(rank, len(alone), node, gpu, gpu_ids)
            for rank, (node, gpu) in enumerate(alone)
        ]
    local_sizes = [len(gpus) if gang.program.workers == "per_gpu" else 1 for _, gpus in nodes]
    world = sum(local_sizes)
    environments: list[dict[str, str]] = []
    for group, ((node, gpus), local_size) in enumerate(zip(nodes, local_sizes, strict=True)):
        for local in range(local_size):
            rank = str(len(environments))
            environments.append(
                {
                    "RANK": rank,
                    "LOCAL_RANK": str(local),
                    "WORLD_SIZE": str(world),
                    "LOCAL_WORLD_SIZE": str(local_size),
                    "GROUP_RANK": str(group),
                    "GROUP_WORLD_SIZE": str(len(nodes)),
                    "ROLE_RANK": rank,
                    "ROLE_WORLD_SIZE": str(world),
                    "TIDEGATE_NODE": node,
                    "TIDEGATE_GPUS": str(len(gpus)),
                    "CUDA_VISIBLE_DEVICES": _visible(node, gpus, gpu_ids),
                }
            )
    return environments


def resizes_in_place(program: Program) -> bool:
    """Whether workers can be added and removed while the gang runs."""
    return program.resize == "in_place" and program.workers == "per_gpu"


def single_gpu_environment(
    rank: int, world: int, node: str, gpu: int, gpu_ids: Mapping[str, Sequence[str]] | None
) -> dict[str, str]:
    """Give a worker's own variables in a gang that is resized in place.

    It sees only its own GPU, as if that were a node: what it sees cannot change later, and a GPU
    that is given up must be free of all workers.

    Raises:
        ValueError: `gpu_ids` does not name the GPU.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(world),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "TIDEGATE_NODE": node,
        "TIDEGATE_GPUS": "1",
        "CUDA_VISIBLE_DEVICES": _visible(node, (gpu,), gpu_ids),
    }


def _visible(node: str, gpus: Sequence[int], gpu_ids: Mapping[str, Sequence[str]] | None) -> str:
    if gpu_ids is None:
        return ",".join(map(str, gpus))
    ids = gpu_ids.get(node, ())
    if not ids:
        return ""
    if max(gpus) >= len(ids):
        raise ValueError(f"gpu_ids: {node} has {len(ids)} GPUs, so none of index {max(gpus)}")
    return ",".join(ids[gpu] for gpu in gpus)


def free_port(run: Path, epoch: int) -> int:
    """Pick a port that nobody listens on now, another for each epoch of a run.

    Two that begin at once are to have two, though no worker listens yet; that holds for jobs of one
    name, too, which two agents of this machine begin.

    Raises:
        OSError: all are taken.
    """
    first = zlib.crc32(f"{run}/{epoch}".encode())
    for number in range(len(_PORTS)):
        port = _PORTS[(first + number) % len(_PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"MASTER_PORT: no port from {_PORTS[0]} to {_PORTS[-1]} is free")


class NoSecrets(Exception):
    """This agent has none for the job; another try here finds none either."""


def secret_files(program: Program, folder: Path | None, tenant: str | None) -> dict[str, str]:
    """Give, by variable, the file with its value; only the supervisor reads the value.

    Args:
        program: What names them.
        folder: Where the agent keeps them, if it does.
        tenant: Whose the job is.

    Raises:
        NoSecrets: there are none for it here.
    """
    if program.secrets and folder is None:
        raise NoSecrets(
            "secrets: this agent has none; its operator gives it a folder of them in "
            "agent.workers.secrets"
        )
    if program.secrets and tenant is None:
        raise NoSecrets("secrets: an agent keeps them by tenant, and the job names none")
    return {
        variable: str(Path(str(folder), str(tenant), name))
        for variable, name in program.secrets.items()
    }
