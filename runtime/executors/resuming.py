"""Gangs that were lost with their machine, and how they are resumed under the same epoch.

At its start the agent finds their runs without processes and without an exit record, or of an
earlier boot. It reports them as lost. The agent's core decides whether they are resumed; if so, it
orders a start with the epoch that they had.
"""

from pathlib import Path

from runtime.core import StartWorkers
from runtime.executors.fetching import job_folder
from runtime.executors.local_checkpoints import (
    SyncedCheckpoint,
    epoch_of,
    newest_synced,
    set_aside_earlier_runs,
    synced_origin_of,
)
from runtime.executors.progress import AnnouncedCheckpoint
from runtime.executors.runs import Run, run_folder
from runtime.executors.uploading import LocalCheckpoint


def was_lost_with_machine(run: Run) -> bool:
    """Whether no process of the run is left although nothing ended it."""
    record = run.exit_record()
    if run.this_boot:
        return run.was_started and record is None and run.gone()
    # Workers that exit with 0 as the machine goes down do not mean that the job is complete.
    return record is None or (record.get("failed") is None and not record.get("refused"))


def prepare_start(root: Path, order: StartWorkers) -> SyncedCheckpoint | None:
    """Set earlier runs aside; give the local checkpoint that a resumed gang goes on from.

    Raises:
        OSError: the disk does not take it.
    """
    set_aside_earlier_runs(run_folder(root, order.job, order.epoch))
    synced = newest_synced(job_folder(root, order.job)) if order.resumed else None
    return synced if synced is not None and synced.step >= order.step else None


def origin_of(run: Run, now_s: float) -> LocalCheckpoint | None:
    """Give the local checkpoint that a run began from; the store may not have it."""
    synced = synced_origin_of(run.folder)
    if synced is None or synced.run is None:
        return None
    return LocalCheckpoint(
        synced.run, epoch_of(synced.run), AnnouncedCheckpoint(synced.step, synced.path, None), now_s
    )
