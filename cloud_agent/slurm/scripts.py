"""How a gang is run by Slurm: the options of `sbatch`, the batch script, and the keeper script.

Nodes need bash and the shared folder, nothing of Tidegate. The batch script claims (job, epoch)
first, so a gang runs only once whatever Slurm does. `srun` starts a keeper for each worker. Slurm
signals the keeper; the keeper passes each request in the run folder's file `wish` on to its worker
once, whether Slurm's process tracking signals a whole tree (linuxproc, pgid) or only its top
(cgroup).
"""

from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote

from cloud_agent.clusters.attempt import Work
from cloud_agent.options import SlurmOptions
from cloud_agent.slurm.commands import Slurm
from cloud_agent.slurm.run import LEASE, Run
from runtime.core import Placement
from runtime.durable import write_file
from runtime.executors.folder import CHECKPOINTS, LOGS, WORK
from schemas.programs import Program


def sbatch_options(work: Work, run: Run, comment: str, options: SlurmOptions) -> list[str]:
    """Give the options of `sbatch`.

    Nodes that give equally many GPUs are one part; more than one part is a heterogeneous job,
    which Slurm begins whole or not at all, as it does any other. Never requeued: Slurm would run
    it under an epoch that Tidegate may have left behind, on a node that just failed, and the fence
    would turn it away. Tidegate starts it anew, elsewhere, under a new epoch.
    """
    whole = [
        f"--job-name={Slurm.name(work.job, work.started.epoch, work.folder_id)}",
        f"--comment={comment}",
        "--no-requeue",
        f"--signal=TERM@{max(1, round(options.grace_s))}",
        f"--chdir={run.folder}",
        f"--output={run.folder / LOGS / 'slurm.log'}",
        "--open-mode=append",
    ]
    for number, (gpus, nodes) in enumerate(_parts(work.started.placement)):
        per_node, cpus = (1, gpus * options.cpus_per_gpu)
        if work.program.workers == "per_gpu":
            per_node, cpus = (gpus, options.cpus_per_gpu)
        whole += [":"] if number else []
        whole += [
            f"--nodes={len(nodes)}",
            f"--nodelist={','.join(nodes)}",
            f"--ntasks-per-node={per_node}",
            f"--cpus-per-task={cpus}",
            *([f"--gres={options.gres}:{gpus}"] if options.gres else []),
            *options.sbatch,
        ]
    return whole


def _parts(placement: Placement) -> list[tuple[int, list[str]]]:
    """Group nodes by how many GPUs they give."""
    parts: dict[int, list[str]] = {}
    for node, gpus in sorted(placement.items()):
        parts.setdefault(len(gpus), []).append(node)
    return sorted(parts.items(), reverse=True)


def batch_script(run: Run, options: SlurmOptions) -> str:
    """Give the script that Slurm runs on the gang's first node."""
    return f"""#!/bin/bash
# Written by Tidegate: runs one gang, once.
cd {quote(str(run.folder))} || exit 73
lease={quote(str(options.root / LEASE))}
{_LEASE}
# The agent's lease is over and the job runs elsewhere: Slurm began this one too late.
if over; then
    echo "the agent's lease is over by the clock of $SLURMD_NODENAME; set that right if it is wrong"
    exit 75
fi
# Whoever makes this link runs the gang under this epoch, or has closed it. A job that was submitted
# twice, was requeued, or begins after Tidegate gave it up, ends here.
if ! ln -sT "$SLURM_JOB_ID" claim; then
    echo "this epoch is taken: $(readlink claim)"
    exit 75
fi
groups=()
[ -n "${{SLURM_HET_SIZE:-}}" ] && groups=("--het-group=0-$((SLURM_HET_SIZE - 1))")
# A worker that fails ends the others: they would wait for it for ever.
srun "${{groups[@]}}" --kill-on-bad-exit=1 --wait=0 --cpu-bind=none --input=none \\
    /bin/bash {quote(str(run.folder / "keeper.sh"))}
code=$?
echo "$code" > exit.draft && mv exit.draft exit
exit "$code"
"""


def keeper_script(work: Work, run: Run, options: SlurmOptions) -> str:
    """Give the script that keeps one worker: its environment, signals, log and exit code."""
    program, job, epoch = work.program, work.job, work.started.epoch
    # A program cannot pose as another job, nor name another checkpoint to resume from.
    wanted = {
        name: value
        for name, value in program.env.items()
        if not name.startswith(("TIDEGATE_", "SLURM")) and name not in _OURS
    }
    said = {
        "TIDEGATE_AGENT": options.agent,
        "TIDEGATE_JOB": job,
        "TIDEGATE_EPOCH": str(epoch),
        "TIDEGATE_CHECKPOINT_DIR": str(run.folder / CHECKPOINTS),
        "TIDEGATE_GRACE_S": f"{options.grace_s:g}",
        "MASTER_PORT": str(work.port),
    }
    if work.started.resume is not None:
        said["TIDEGATE_RESUME"] = str(work.started.resume)
    exports = "\n".join(f"export {name}={quote(value)}" for name, value in said.items())
    # For the worker alone: a variable that the keeper uses, too, must not change the keeper.
    own = "".join(f"export {name}={quote(value)}; " for name, value in wanted.items())
    folder, workdir = quote(str(run.folder)), program.workdir or str(run.folder / WORK)
    return f"""#!/bin/bash
# Written by Tidegate: keeps one worker of a gang.
run={folder} lease={quote(str(options.root / LEASE))}
exec >> "$run/logs/rank-$SLURM_PROCID.log" 2>&1 < /dev/null
{exports}
{_local_sizes(work.started.placement, program)}
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
export GROUP_RANK=$SLURM_NODEID GROUP_WORLD_SIZE=$SLURM_NNODES
export ROLE_RANK=$RANK ROLE_WORLD_SIZE=$WORLD_SIZE TIDEGATE_NODE=$SLURMD_NODENAME
# srun runs on the first node, where rank 0 is.
export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR
# A file for each node: on network file systems, several nodes do not append to one.
export TIDEGATE_PROGRESS="$run/progress.jsonl"
[ "$GROUP_RANK" = 0 ] || TIDEGATE_PROGRESS="$run/progress-$GROUP_RANK.jsonl"
{_LEASE}
{_KEEPING}
# Said as of a worker that failed: what is wrong with the folder is in its log.
cd {quote(workdir)} || {{ echo "73 $SLURMD_NODENAME" > "$run/exits/$RANK"; exit 73; }}
heed
[ -z "$leaving" ] || exit 0
set -- {join(program.argv)}
(trap - INT QUIT; {own}exec -- "$@") &
worker=$!
{_WAITING}"""


#: Variables that Tidegate sets for a worker; a program cannot set them.
_OURS = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
}


def _local_sizes(placement: Placement, program: Program) -> str:
    """Say in shell how many workers and GPUs each node has."""
    cases = [
        f"    {quote(node)}) export TIDEGATE_GPUS={len(gpus)} "
        f"LOCAL_WORLD_SIZE={len(gpus) if program.workers == 'per_gpu' else 1} ;;"
        for node, gpus in sorted(placement.items())
    ]
    return "\n".join(['case "$SLURMD_NODENAME" in', *cases, "esac"])


#: Tells whether the lease is over; what cannot be read says nothing.
_LEASE = """
over() {
    local until now
    read -r until lease_grace 2> /dev/null < "$lease" || return 1
    printf -v now '%(%s)T' -1
    [ "$now" -gt "$until" ]
}"""

#: `wish` has a number, a verb and a grace in seconds; each number is carried out once.
_KEEPING = """
worker= leaving= heard=0 kill_at= turn=0
heed() {
    local number verb grace lease_grace
    # The agent may be gone: then nobody else would stop the worker.
    if [ -z "$leaving" ] && over; then
        echo "$SLURMD_NODENAME" > "$run/told"
        [ -z "$worker" ] || kill -TERM "$worker"
        leaving=1 kill_at=$((SECONDS + lease_grace))
    fi
    read -r number verb grace 2> /dev/null < "$run/wish" || return
    [ "$number" -gt "$heard" ] || return
    heard=$number
    if [ "$verb" = save ]; then
        [ -z "$worker" ] || kill -USR1 "$worker"
    else
        [ -z "$worker" ] || [ -n "$leaving" ] || [ "$grace" = 0 ] || kill -TERM "$worker"
        leaving=1 kill_at=$((SECONDS + grace))
    fi
}
# Not asked for by Tidegate, but by a time limit, a preemption or an operator: no success follows.
told() {
    [ -n "$leaving" ] || : >> "$run/told"
    [ -n "$worker" ] || exit 143
    [ -n "$leaving" ] || kill -TERM "$worker"
    leaving=1
}
trap heed URG
trap told TERM"""

#: Also reads the request every few seconds: a reclaim must not wait for a slurmctld that is away.
_WAITING = """
[ -z "$leaving" ] || kill -TERM "$worker"
while kill -0 "$worker" 2> /dev/null; do
    sleep 0.5 # not `wait`: interrupted by a trap, it can lose the exit code
    turn=$(((turn + 1) % 6))
    [ "$turn" != 0 ] || heed
    [ -z "$kill_at" ] || [ "$SECONDS" -lt "$kill_at" ] || kill -KILL "$worker"
done
wait "$worker"
code=$?
# While the gang leaves, a worker that ends badly must not end those that still save.
[ -z "$leaving" ] || exit 0
[ "$code" = 0 ] || echo "$code $SLURMD_NODENAME" > "$run/exits/$RANK"
exit "$code"
"""


def write_scripts(work: Work, run: Run, options: SlurmOptions) -> Path:
    """Prepare the run folder; give the batch script.

    Raises:
        OSError: the shared folder cannot be written.
    """
    for name in (CHECKPOINTS, LOGS, WORK, "exits"):
        (run.folder / name).mkdir(parents=True, exist_ok=True)
    batch = run.folder / "batch.sh"
    texts: Sequence[tuple[Path, str]] = (
        (run.folder / "keeper.sh", keeper_script(work, run, options)),
        (batch, batch_script(run, options)),
    )
    for path, text in texts:
        # Slurm may begin one that was handed in before: never a part. It may hold secrets.
        write_file(path, text.encode(), mode=0o600)
    return batch
