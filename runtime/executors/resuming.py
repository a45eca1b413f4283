"""Gangs that went with their machine, and how they are begun again under the same epoch.

Nobody ended them: an agent that begins finds their runs with no process left and no word of an end,
or of an earlier boot of the machine. It reports them as lost; whether they go on is not decided
here, but by the agent's core, which then orders a start with the epoch that they had.
"""

from pathlib import Path

from runtime.core import StartWorkers
from runtime.executors.fetching import job_folder
from runtime.executors.kept import Kept, began_from, epoch_of, make_room, newest_kept
from runtime.executors.progress import Announced
from runtime.executors.runs import Run, run_folder
from runtime.executors.saving import Offer


def went_with_machine(run: Run) -> bool:
    """Whether nothing of the run is left although neither it nor anybody ended it."""
    record = run.exit_record()
    if run.this_boot:
        return run.was_started and record is None and run.gone()
    # Workers that end well as the machine goes down do not mean that the job is done.
    return record is None or (record.get("failed") is None and not record.get("refused"))


def resumed_from(root: Path, order: StartWorkers) -> Kept | None:
    """Make room for a start; give the checkpoint here that it goes on from, not the store's.

    Raises:
        OSError: the disk does not take it.
    """
    make_room(run_folder(root, order.job, order.epoch))
    kept = newest_kept(job_folder(root, order.job)) if order.resumed else None
    return kept if kept is not None and kept.step >= order.step else None


def offer_of(run: Run, now_s: float) -> Offer | None:
    """Give the checkpoint that a run began from, which perhaps only this disk has."""
    kept = began_from(run.folder)
    if kept is None or kept.run is None:
        return None
    return Offer(kept.run, epoch_of(kept.run), Announced(kept.step, kept.path, None), now_s)
