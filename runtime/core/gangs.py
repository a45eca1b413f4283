"""The rules of gangs: start, scale, checkpoint, stop, and what their workers report.

Epochs are fencing tokens: nothing below the highest epoch seen of a job is carried out, and an
epoch names one placement only. A command whose desired state is already reached is `done`.
"""

from collections.abc import Callable
from dataclasses import asdict

from runtime.core.memory import Memory, Refused, Turn
from runtime.core.messages import (
    CheckpointDone,
    CheckpointLost,
    CheckpointWorkers,
    GangCompleted,
    GangFailed,
    GangProgress,
    GangStarted,
    GangStopped,
    OutputsStored,
    Placement,
    ScaleWorkers,
    StopWorkers,
    WorkersLeft,
)
from runtime.core.resumes import Resumes
from runtime.core.state import Gang, without
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    JobProgressed,
    OutputsKept,
    StopReason,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)

#: Saves at a change of size take so many times as long as they are known to, at most; and this long
#: at most, since the scheduler waits ten minutes for the whole change.
_SAVE_MARGIN, _SAVE_MOST_S = 1.5, 360.0
#: Longest error a worker's failure carries (`schemas.values.Note`).
_ERROR_MAX = 1000


class Gangs:
    """Applies the rules to the memory. Commands return when accepted and raise when refused."""

    def __init__(self, memory: Memory, resumes: Resumes) -> None:
        self._memory, self._resumes = memory, resumes

    # --- commands ---

    def start(self, data: StartGang, command: str, turn: Turn) -> None:
        gang = self._memory.gangs.get(data.job)
        if gang is not None and gang.epoch == data.epoch:
            self._same_placement(gang, data)
            return
        self._fence(data.job, data.epoch)
        if gang is not None:
            raise Refused(
                f"epoch: {data.job} is held here at epoch {gang.epoch}; scale it, or stop it first"
            )
        placement = self._memory.usable(data.placement, data.job)
        gang = self._memory.gangs[data.job] = Gang(
            data.job,
            data.epoch,
            placement,
            "starting",
            step=data.step,
            checkpoint_step=data.step,
            checkpoint_cost_s=data.spec.checkpoint_cost_s,
            cause=command,
            spec=data.spec,
        )
        self._memory.occupy(placement, data.job)
        self._touch(data.job)
        self._resumes.start(gang, data.transfer_s, turn)

    def scale(self, data: ScaleGang, command: str, turn: Turn) -> None:
        gang = self._memory.gangs.get(data.job)
        if gang is not None and gang.epoch == data.epoch:
            self._same_placement(gang, data)
            return
        self._fence(data.job, data.epoch)
        if gang is None:
            raise Refused(f"job: no gang of {data.job} is held here; start it")
        if gang.phase == "stopping":
            raise Refused(f"job: {data.job} is stopping; start it anew when its GPUs are free")
        placement = self._memory.usable(data.placement, data.job)
        waits, more = self._resumes.waits(gang), without(placement, gang.placement)
        if not waits and not self._resumes.is_free(more):
            raise Refused("placement: the agent began anew, and an owner has not left again yet")
        if left := without(gang.placement, placement):
            gang.leaving.append((gang.epoch, left))
        self._memory.occupy(placement, data.job)
        gang.epoch, gang.placement, gang.phase = data.epoch, placement, "scaling"
        gang.cause, gang.resumes = command, 0
        self._touch(data.job)
        if waits:  # none of its workers runs: start it on the new GPUs
            gang.phase = "starting"
            self._free_leaving(gang, turn)
            self._resumes.look(turn)
            return
        turn.actions.append(self.scaling(gang))

    def scaling(self, gang: Gang) -> ScaleWorkers:
        """Give the order to carry a change of size out.

        A save that is known to take long is given longer, but not where an owner may want GPUs of
        the gang back meanwhile.
        """
        specs = self._memory.specs
        nodes = {*gang.placement, *(node for _, left in gang.leaving for node in left)}
        lent = any(node not in specs or specs[node].lendable for node in nodes)
        save_s = 0.0 if lent else min(_SAVE_MARGIN * gang.checkpoint_cost_s, _SAVE_MOST_S)
        return ScaleWorkers(gang.job, gang.epoch, gang.placement, save_s)

    def save(self, gang: Gang, turn: Turn) -> None:
        """Have a checkpoint written, unless one is being written."""
        if not gang.checkpointing:
            gang.checkpointing = True
            self._touch(gang.job)
            turn.actions.append(CheckpointWorkers(gang.job, gang.epoch))

    def stop(self, data: StopGang, most_s: float, command: str, turn: Turn) -> None:
        gang = self._held(data.job, data.epoch)
        if gang is not None:
            grace_s = min(data.grace_s, most_s)
            self.leave(gang, data.reason, data.checkpoint, grace_s, turn, command)
        # Without a gang here the stop is done; the epoch keeps a late start from being carried out.

    def leave(
        self,
        gang: Gang,
        reason: StopReason,
        checkpoint: bool,
        grace_s: float,
        turn: Turn,
        command: str | None = None,
    ) -> None:
        """Stop a gang; of one that is stopping, only bring the deadline forward."""
        by_s = turn.now_s + grace_s
        if gang.phase == "stopping":
            hurried = gang.stop_by_s is None or by_s < gang.stop_by_s
            harder = gang.stop_saves and not checkpoint
            if not hurried and not harder:
                return
            checkpoint = checkpoint and gang.stop_saves
        else:
            gang.phase, gang.stop_reason, gang.cause = "stopping", reason, command
            if self._resumes.cancel(gang):
                self.ended(GangStopped(gang.job, gang.epoch, gang.checkpoint_step), turn)
                return
        gang.stop_by_s = by_s if gang.stop_by_s is None else min(by_s, gang.stop_by_s)
        gang.stop_saves = checkpoint
        self._touch(gang.job)
        turn.actions.append(
            StopWorkers(gang.job, gang.epoch, checkpoint, gang.stop_by_s - turn.now_s)
        )

    def _fence(self, job: str, epoch: int) -> None:
        highest = self._memory.highest(job)
        if epoch < highest:
            raise Refused(f"epoch: {epoch} of {job} is stale, epoch {highest} was seen")
        if epoch == highest:
            raise Refused(f"epoch: {epoch} of {job} is used up; take a higher one")

    def _held(self, job: str, epoch: int) -> Gang | None:
        """Give the gang that a command at this epoch may act on."""
        gang = self._memory.gangs.get(job)
        highest = self._memory.highest(job) if gang is None else gang.epoch
        if epoch < highest:
            raise Refused(f"epoch: {epoch} of {job} is stale, epoch {highest} was seen")
        return gang

    def _same_placement(self, gang: Gang, data: StartGang | ScaleGang) -> None:
        asked = {part.node: tuple(sorted(part.gpus)) for part in data.placement}
        if asked != gang.placement:
            raise Refused(
                f"epoch: {data.epoch} of {data.job} already names another placement; "
                "take a higher one"
            )

    # --- reports ---

    def started(self, report: GangStarted, turn: Turn) -> None:
        gang = self._current(report.job, report.epoch)
        if gang is None or gang.phase not in ("starting", "scaling"):
            return
        gang.phase, gang.step = "running", report.step
        if gang.checkpointed_s is None:
            gang.checkpointed_s = turn.now_s
        self._touch(gang.job)
        for node, gpus in gang.placement.items():
            started = WorkerStarted(
                job=gang.job, epoch=gang.epoch, node=node, gpus=list(gpus), step=report.step
            )
            turn.say(started, gang.cause)

    def left(self, report: WorkersLeft, turn: Turn) -> None:
        gang = self._memory.gangs.get(report.job)
        if gang is None:
            return
        for epoch, placement in [entry for entry in gang.leaving if entry[0] == report.epoch]:
            gang.leaving.remove((epoch, placement))
            self._free_left(gang, epoch, placement, report.step, turn)
            self._touch(gang.job)

    def saved(self, report: CheckpointDone, turn: Turn) -> None:
        gang = self._current(report.job, report.epoch)
        if gang is None:
            return
        gang.checkpointing = False
        gang.checkpointed_s = turn.now_s
        gang.step = max(gang.step, report.step)
        gang.checkpoint_step = max(gang.checkpoint_step, report.step)
        gang.checkpoint_cost_s = report.cost_s
        self._touch(gang.job)
        committed = CheckpointCommitted(**asdict(report))
        turn.say(committed, gang.cause if gang.phase == "stopping" else None)

    def outputs(self, report: OutputsStored, turn: Turn) -> None:
        if self._current(report.job, report.epoch) is not None:
            turn.say(OutputsKept(**asdict(report)))

    def not_saved(self, report: CheckpointLost, turn: Turn) -> None:
        gang = self._current(report.job, report.epoch)
        if gang is None:
            return
        gang.checkpointing = False
        gang.checkpointed_s = turn.now_s  # try again a full interval later, not at once
        self._touch(gang.job)
        failed = CheckpointFailed(job=report.job, epoch=report.epoch, error=_note(report.error))
        turn.say(failed)

    def progressed(self, report: GangProgress, turn: Turn) -> None:
        gang = self._current(report.job, report.epoch)
        if gang is None or gang.phase == "stopping":
            return
        gang.step = max(gang.step, report.step)
        progress = JobProgressed(
            job=report.job,
            epoch=report.epoch,
            # A job that started again from zero does not report less than what is durable.
            step=max(report.step, gang.checkpoint_step),
            samples_per_s=report.samples_per_s,
            checkpoint_step=gang.checkpoint_step,
            checkpoint_cost_s=gang.checkpoint_cost_s,
            batch=report.pace.batch,
            step_s=report.pace.step_s,
            pass_s=report.pace.pass_s,
            gradient_noise=report.pace.gradient_noise,
            metrics=None if report.metrics is None else dict(report.metrics),
        )
        turn.say(progress)

    def ended(self, report: GangStopped | GangCompleted, turn: Turn) -> None:
        gang = self._current(report.job, report.epoch)
        if gang is None:
            return
        reason: StopReason = "completed"
        if isinstance(report, GangStopped):
            # A supervisor that stops its gang by itself may be the first to see the lease end.
            lease_s = self._memory.lease_until_s
            ended = lease_s is not None and lease_s <= turn.now_s
            reason = gang.stop_reason or ("lease_ended" if ended else "superseded")
        cause = gang.cause if gang.phase == "stopping" else None
        ran = report.ran if isinstance(report, GangStopped) else True

        def say(node: str, gpus: tuple[int, ...]) -> None:
            stopped = WorkerStopped(
                job=gang.job,
                epoch=gang.epoch,
                node=node,
                gpus=list(gpus),
                reason=reason,
                step=report.step,
                ran=ran,
            )
            turn.say(stopped, cause)

        self._drop(gang, report.step, say, turn)

    def failed(self, report: GangFailed, turn: Turn) -> None:
        gang = self._current(report.job, report.epoch)
        if gang is not None and report.lost:
            self.lose(gang, report.error, turn)
        elif gang is not None:
            self.fail(gang, report.error, report.retriable, turn, ran=report.ran)

    def lose(self, gang: Gang, error: str, turn: Turn) -> None:
        """Resume a gang that was lost with its machine, if allowed; else report it as failed."""
        if not self._resumes.may_resume(gang, turn.now_s):
            again = f"; it had been resumed {gang.resumes} times" if gang.resumes else ""
            self.fail(gang, error + again, True, turn)
            return
        self._free_leaving(gang, turn)
        self._resumes.begin(gang, turn)

    def _free_leaving(self, gang: Gang, turn: Turn) -> None:
        for epoch, placement in gang.leaving:
            self._free_left(gang, epoch, placement, gang.checkpoint_step, turn)
        gang.leaving = []

    def fail(
        self, gang: Gang, error: str, retriable: bool, turn: Turn, *, ran: bool = True
    ) -> None:
        """Report every worker of the gang as failed, and free its GPUs."""

        def say(node: str, gpus: tuple[int, ...]) -> None:
            failed = WorkerFailed(
                job=gang.job,
                epoch=gang.epoch,
                node=node,
                gpus=list(gpus),
                error=_note(error),
                retriable=retriable,
                step=gang.checkpoint_step,
                ran=ran,
            )
            turn.say(failed)

        self._drop(gang, gang.checkpoint_step, say, turn)

    def _drop(
        self, gang: Gang, step: int, say: Callable[[str, tuple[int, ...]], None], turn: Turn
    ) -> None:
        self._resumes.cancel(gang)
        for epoch, placement in gang.leaving:
            self._free_left(gang, epoch, placement, step, turn)
        for node, gpus in gang.placement.items():
            say(node, gpus)
        self._memory.occupy(gang.placement, None)
        del self._memory.gangs[gang.job]
        self._touch(gang.job)

    def _free_left(
        self, gang: Gang, epoch: int, placement: Placement, step: int, turn: Turn
    ) -> None:
        self._memory.occupy(placement, None)
        for node, gpus in placement.items():
            stopped = WorkerStopped(
                job=gang.job,
                epoch=epoch,
                node=node,
                gpus=list(gpus),
                reason="scaled_in",
                step=step,
            )
            turn.say(stopped, gang.cause)

    def _current(self, job: str, epoch: int) -> Gang | None:
        """Give the gang if the report is about its present allocation."""
        gang = self._memory.gangs.get(job)
        return gang if gang is not None and gang.epoch == epoch else None

    def _touch(self, job: str) -> None:
        self._memory.touch(f"gang/{job}")


def _note(error: str) -> str:
    """Give an error as an event can carry it: a job's file may have a name that is no Unicode."""
    return error.encode(errors="backslashreplace").decode()[:_ERROR_MAX]
