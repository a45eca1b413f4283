"""Gangs that went with their machine, and how they are begun again under the same epoch.

Nobody ended them: an agent that begins finds their runs with no process left and no word of an end,
or of an earlier boot of the machine. It reports them as lost; whether they go on is not decided
here, but by the agent's core, which then orders a start with the epoch that they had.
"""

from dataclasses import dataclass, replace

from runtime.core import GangFailed, Report, StartWorkers
from runtime.executors.gang import Gang
from runtime.executors.kept import Kept, began_from, kept_of, put_aside
from runtime.executors.options import ProcessOptions
from runtime.executors.runs import Run, run_folder
from runtime.executors.saving import Saver


@dataclass(frozen=True, slots=True)
class Lost:
    """A gang that went with its machine."""

    epoch: int
    #: Its newest checkpoint here that is surely there; None: only the store has one, if any.
    kept: Kept | None


def went_with_machine(run: Run) -> bool:
    """Whether nothing of the run is left although neither it nor anybody ended it."""
    record = run.exit_record()
    if run.this_boot:
        return run.was_begun and record is None and run.gone()
    # Workers that end well as the machine goes down do not mean that the job is done.
    return record is None or (record.get("failed") is None and not record.get("refused"))


def lost(gang: Gang, runs: list[Run]) -> Lost:
    """Find what a gang that went with its machine can go on from; its runs, the newest first."""
    found = [kept_of(run.folder) for run in runs] + [began_from(runs[0].folder)]
    return Lost(
        gang.epoch, max((one for one in found if one), key=lambda one: one.step, default=None)
    )


def marked(report: Report) -> Report:
    """Say of a failure that the gang went with its machine."""
    return replace(report, lost=True) if isinstance(report, GangFailed) else report


def begun(options: ProcessOptions, order: StartWorkers, found: Lost | None, now_s: float) -> Gang:
    """Begin what the order asks for, from the newest checkpoint that is here if it was lost."""
    folder = run_folder(options.root, order.job, order.epoch)
    aside = put_aside(folder)
    kept = found.kept if found is not None and found.epoch == order.epoch else None
    if kept is None or kept.step < order.step:
        return Gang.begun(options, order, now_s)
    path = kept.path
    if aside is not None and folder in path.parents:
        path = aside / path.relative_to(folder)
    gang = Gang(options, order, Saver(order.job, options.store, options.keep, order.step))
    gang._now_s = now_s
    gang._launch(kept.step, path)
    return gang
