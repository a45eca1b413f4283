"""The Kubernetes objects of a gang: an Indexed Job, suspended, whose Pods wait for their nodes.

A worker is a Pod: one for each GPU, or one for each node with all its GPUs there. To a program,
its Pod is its machine: it sees only its own GPUs, as devices 0 and up, so with a Pod for each GPU
LOCAL_RANK is 0 and WORLD_SIZE is the number of Pods.

Kubernetes has one template for all Pods of a Job. So Pods are created with a scheduling gate, and
each gets its node, by name, before the gate is removed (`placed`): ranks go over the nodes in order
of name. The node's device plugin chooses the devices of a Pod.
"""

import hashlib
import re
from decimal import Decimal
from pathlib import Path, PurePath

from cloud_agent.clusters.attempt import Work
from cloud_agent.kubernetes.api import Json
from cloud_agent.kubernetes.objects import AGENT, EPOCH, FOLDER, GATE, INDEX, JOB, WORKER
from cloud_agent.options import KubernetesOptions
from runtime.executors.folder import CHECKPOINTS, WORK

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VOLUME = "tidegate"
#: Kubernetes sends no signals: this polls a file and signals a program that saves on a signal.
_KEEPER = """
"$@" & worker=$!
trap 'kill -TERM $worker 2> /dev/null' TERM
heard=0
while kill -0 $worker 2> /dev/null; do
    if read -r number 2> /dev/null < "$TIDEGATE_WISH" && [ "$number" -gt $heard ]; then
        heard=$number
        kill -USR1 $worker
    fi
    sleep 0.5 & wait $!
done
wait $worker
"""
#: What Pods see of a run folder: besides checkpoints and work, a folder for what their workers
#: report, and one for what they are asked. Jobs read these paths, so they keep their names.
SAID, TOLD = "said", "told"
SAVE_REQUEST = f"{TOLD}/wish"


def job_name(work: Work) -> str:
    """Give the Job's name: the same whenever it is asked for, so that none is created twice.

    Agents may share a namespace, and their jobs may have one name; they share no folder.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", work.job.lower()).strip("-")[:18].rstrip("-")
    # Pods are named after the Job and get a longer name, which has to fit into 63 characters.
    epoch = work.started.epoch
    return f"tidegate-{plain}-{epoch}-{_hash(f'{work.folder_id}/{work.job}/{epoch}')[:6]}"


def nodes_of(work: Work) -> list[str]:
    """Give the node of each worker, by rank."""
    placement = work.started.placement
    if work.program.workers == "per_node":
        return sorted(placement)
    return [node for node, gpus in sorted(placement.items()) for _ in gpus]


def _gpus_each(work: Work) -> int:
    """Give the GPUs of each Pod.

    Raises:
        ValueError: they would differ.
    """
    if work.program.workers == "per_gpu":
        return 1
    counts = {len(gpus) for gpus in work.started.placement.values()}
    if len(counts) > 1:
        raise ValueError(
            f"placement: Pods of one Job have equally many GPUs, and these nodes give "
            f"{' or '.join(map(str, sorted(counts)))}; let the program have a worker per GPU"
        )
    return counts.pop()


def progress_name(rank: int | str) -> str:
    """Name a worker's file: on network file systems, several nodes do not append to one."""
    return f"{SAID}/progress-{rank}.jsonl"


def label(value: str) -> str:
    """Give a value that is valid as a label, a different one for each."""
    if _LABEL.fullmatch(value):
        return value
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', value).strip('-')[:40]}.{_hash(value)[:12]}"


def selector(agent: str, work: Work | None = None) -> str:
    """Give the label selector of the objects of an agent's name, or of those of one run."""
    parts = {AGENT: agent}
    if work is not None:
        parts |= {JOB: work.job, EPOCH: str(work.started.epoch)}
    return ",".join(f"{name}={label(value)}" for name, value in parts.items())


def placed(node: str) -> Json:
    """Give the change that binds a Pod to this node and removes its gate."""
    return {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "schedulingGates": None}}


def job_body(work: Work, options: KubernetesOptions) -> Json:
    """Give the Job, suspended: it runs nothing until it is released.

    Never restarted by Kubernetes: that would be under an epoch that Tidegate may have left behind.
    Tidegate starts it anew, under a new epoch.

    Raises:
        ValueError: it cannot be said as one Job.
    """
    marks = {AGENT: options.agent, JOB: work.job, EPOCH: str(work.started.epoch)}
    marks[FOLDER] = work.folder_id
    meta = {"labels": {k: label(v) for k, v in marks.items()}, "annotations": marks}
    workers = len(nodes_of(work))
    pod: Json = {
        **options.pod,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(1, round(options.grace_s)),
        "schedulingGates": [{"name": GATE}],
        # A job needs no access to the cluster's API.
        "automountServiceAccountToken": False,
        "containers": [_container(work, options)],
        "volumes": [*options.pod.get("volumes", ()), {"name": _VOLUME, **options.volume}],
    }
    if options.service:
        pod["subdomain"] = options.service
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(work), **meta},
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": workers,
            "parallelism": workers,
            "backoffLimit": 0,
            "template": {"metadata": meta, "spec": pod},
        },
    }


def _container(work: Work, options: KubernetesOptions) -> Json:
    program, run = work.program, _there(work.folder, options)
    command = [_literal(part) for part in program.argv]
    if program.saves == "on_signal":
        command = ["/bin/sh", "-c", _literal(_KEEPER), "keeper", *command]
    per_gpu = {options.gpu_resource or "cpu": "1", **options.resources_per_gpu}
    amounts = {name: _times(_gpus_each(work), one) for name, one in per_gpu.items()}
    return {
        **options.container,
        "name": WORKER,
        "image": program.image or options.image,
        "command": command,
        "workingDir": program.workdir or str(run / WORK),
        "env": _environment(work, options, run),
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [*options.container.get("volumeMounts", ()), *_mounts(work, options)],
        # The end of its output is why it failed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _mounts(work: Work, options: KubernetesOptions) -> list[Json]:
    """Give what a Pod sees of the shared folder: parts of its run, and what it goes on from.

    Raises:
        ValueError: what it goes on from is not in the shared folder, or lies behind a link.
    """
    resume, root = work.started.resume, options.root
    if resume is not None and not _is_plain(root, resume.relative_to(root)):
        # A link of the job's. Kubernetes would follow it, to any other job's part of the volume.
        raise ValueError(f"{resume}: lies behind a link; a checkpoint is made of plain files")
    parts = [(work.folder / name, name == TOLD) for name in (CHECKPOINTS, WORK, SAID, TOLD)]
    parts += [(resume, True)] if resume is not None else []
    return [
        {
            "name": _VOLUME,
            "mountPath": str(_there(path, options)),
            "subPath": str(path.relative_to(root)),
            "readOnly": read_only,
        }
        for path, read_only in parts
    ]


def _is_plain(root: Path, there: PurePath) -> bool:
    """Whether no link is on the way from a folder to what is there in it."""
    try:
        return (root / there).resolve() == root.resolve() / there
    except RuntimeError:  # links that lead in a circle
        return False


def _environment(work: Work, options: KubernetesOptions, run: Path) -> list[Json]:
    world = str(len(nodes_of(work)))
    # A program cannot pass itself off as another job, nor be told of a checkpoint there is not.
    wanted = {
        k: v
        for k, v in work.program.env.items()
        if not k.startswith("TIDEGATE_") and k != "RANK"  # of two of one name the last counts
    }
    name = job_name(work)
    first = f"{name}-0.{options.service}" if options.service else "127.0.0.1"
    said = {
        **{name: _literal(value) for name, value in wanted.items()},
        "TIDEGATE_AGENT": options.agent,
        "TIDEGATE_JOB": work.job,
        "TIDEGATE_EPOCH": str(work.started.epoch),
        "TIDEGATE_GPUS": str(_gpus_each(work)),
        "TIDEGATE_CHECKPOINT_DIR": _literal(str(run / CHECKPOINTS)),
        # Kubernetes puts in what RANK, said before, is.
        "TIDEGATE_PROGRESS": f"{_literal(str(run))}/{progress_name('$(RANK)')}",
        "TIDEGATE_WISH": _literal(str(run / SAVE_REQUEST)),
        "TIDEGATE_GRACE_S": f"{options.grace_s:g}",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "WORLD_SIZE": world,
        "GROUP_RANK": "$(RANK)",
        "GROUP_WORLD_SIZE": world,
        "ROLE_RANK": "$(RANK)",
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": first,
        "MASTER_PORT": str(work.port),
    }
    if work.started.resume is not None:
        said["TIDEGATE_RESUME"] = _literal(str(_there(work.started.resume, options)))
    secrets = f"tidegate-{work.tenant}" if work.tenant is not None else ""
    return [
        *(_from_secret(name, secrets, key) for name, key in work.program.secrets.items()),
        _from_pod("RANK", f"metadata.annotations['{INDEX}']"),
        _from_pod("TIDEGATE_NODE", "spec.nodeName"),
        *({"name": name, "value": value} for name, value in said.items()),
    ]


def _from_pod(name: str, field: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _from_secret(name: str, secret: str, key: str) -> Json:
    """Have Kubernetes put a secret in: neither the agent nor the Job has its value."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _times(count: int, amount: str) -> str:
    """Multiply a quantity of Kubernetes, such as `2Gi` or `500m`."""
    number = re.match(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", amount)
    if number is None:
        raise ValueError(f"resources_per_gpu: {amount!r} is no quantity, such as 4, 500m or 32Gi")
    # All digits, and no exponent: with a suffix after one, Kubernetes takes it for no quantity.
    return f"{(count * Decimal(number[0])).normalize():f}{amount[number.end() :]}"


def _there(path: Path, options: KubernetesOptions) -> Path:
    """Say where the Pods have a path that the agent has below `root`."""
    if options.mount is None or not path.is_relative_to(options.root):
        return path
    return options.mount / path.relative_to(options.root)


def _literal(text: str) -> str:
    """Keep Kubernetes from reading `$(NAME)` in commands and variables, which are the program's."""
    return text.replace("$", "$$")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
