"""What an agent finds at its start: runs that it adopts, and orphaned processes that it kills.

A process says in its environment which agent, job and epoch it works for, and below which folder.
One that works for this agent and for none of the adopted runs is an orphan, of an older epoch or of
a run whose record says that it ended. It is killed, because nobody would ever ask it to stop.
"""

import logging
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from runtime.executors.fetching import epochs
from runtime.executors.folder import CLOSED, ORDER
from runtime.executors.options import ProcessOptions
from runtime.executors.processes import Identity, workers_of
from runtime.executors.resuming import was_lost_with_machine
from runtime.executors.runs import Run
from runtime.trees import remove_tree

#: How often, and how far apart, processes that resist are killed again: for a second in all.
#: They hold their GPU locks until they are gone.
_ROUNDS, _ROUND_S = 50, 0.02

_log = logging.getLogger(__name__)


def adoptable(
    options: ProcessOptions, remembered: Mapping[str, int] | None = None
) -> list[list[Run]]:
    """Give the runs whose end was not reported yet, each followed by those it was scaled from.

    One that was lost with its machine and is not `remembered` was reported, and does not go on.
    """
    alive: dict[tuple[str, int], Identity] = {}
    for worker in workers_of(options.agent, options.root):
        if worker.epoch.isdecimal():
            key = (worker.job, int(worker.epoch))
            # The supervisor began first.
            both = (alive.get(key, worker.identity), worker.identity)
            alive[key] = min(both, key=lambda found: found.started)
    found = []
    for folder in sorted((options.root / "runs").glob("*")):
        runs = _of_job(options, folder, alive)
        if runs and remembered is not None and folder.name not in remembered:
            if was_lost_with_machine(runs[0]):
                runs[0].close()
                continue
        if runs:
            found.append(runs)
    return found


def kill_orphans(
    options: ProcessOptions, adopted: list[Run], remembered: Mapping[str, int] | None = None
) -> int:
    """Kill the processes of this agent that belong to none of these runs; give how many.

    Processes of another run folder belong to another fleet, unless the agent itself ran the job in
    this epoch (`remembered`): then it used the other folder before, and will start the job again.
    """
    held = {(job, str(epoch)) for job, epoch in (remembered or {}).items()}
    alive = {(run.order.job, str(run.order.epoch)) for run in adopted if run.exit_record() is None}
    ended: set[Identity] = set()
    for _ in range(_ROUNDS):
        ours = set(workers_of(options.agent, options.root))
        ours |= {w for w in workers_of(options.agent) if (w.job, w.epoch) in held}
        found = [w for w in ours if (w.job, w.epoch) not in alive]
        if not found:
            break
        for worker in found:
            if worker.identity not in ended:
                _log.warning(
                    "process %d of job %s, epoch %s is an orphan: killed",
                    worker.identity.pid,
                    worker.job,
                    worker.epoch,
                )
            ended.add(worker.identity)
            worker.identity.send(signal.SIGKILL)
        time.sleep(_ROUND_S)
    return len(ended)


def _of_job(
    options: ProcessOptions, folder: Path, alive: dict[tuple[str, int], Identity]
) -> list[Run]:
    runs: list[Run] = []
    for epoch in epochs(folder):
        path = folder / str(epoch)
        shim = alive.get((folder.name, epoch))
        if not runs and (path / CLOSED).exists():
            return []
        if shim is None and not (path / ORDER).exists():
            remove_tree(path)  # the agent died while it made the folder
            continue
        try:
            runs.append(Run.found(options, path, shim))
        except ValueError as error:
            _log.warning("%s: %s", path, error)
            if not runs:
                return []
            break
        if len(runs) > 1 and runs[-1].stop_reason() != "scale":
            return runs[:-1]  # the job came here anew after it: its checkpoints are of another past
    return runs
