"""The agent core: takes one stimulus, updates its memory, answers with acks, events and actions.

Pure: no clock, no I/O. What a command's ack means:

- Start, scale, checkpoint, stop: `done` means accepted and stored; the workers report the result by
  their own events. A command whose desired state is already reached is `done` and changes nothing.
- Lend, return: `done` means that the owner has left the node, or has it back.
- `refused` means that nothing was and nothing will be done; the ack has the reason.

A command id has one outcome for ever; a repeated id repeats the ack and does nothing else. A
command of an earlier leader of the cell than the newest is refused.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, assert_never

from runtime.core.gangs import Gangs
from runtime.core.loans import Loans
from runtime.core.memory import InboxEntry, Memory, Refused, Turn
from runtime.core.messages import (
    NOTHING,
    Birth,
    CheckpointDone,
    CheckpointLost,
    Command,
    GangCompleted,
    GangFailed,
    GangProgress,
    GangStarted,
    GangStopped,
    KeepLease,
    NodeDrained,
    NodeHandedBack,
    Outputs,
    OutputsStored,
    Stimulus,
    StopWorkers,
    Tick,
    WorkersLeft,
)
from runtime.core.resumes import Resumes
from runtime.core.state import Gang, Limits, NodeSpec, NodeState
from schemas.commands import (
    LendNode,
    Rebirth,
    RenewLease,
    ReturnNode,
    ScaleGang,
    StartGang,
    StopGang,
)
from schemas.events import GangHeld, NodeDied

#: Why a command is not carried out, whatever it asks.
Objection = Literal["replayed", "stale_leader", "expired"]
#: A clock that is put right moves back by less than this.
_STEP_S = 1.0


class AgentCore:
    """One agent's knowledge and rules, for one or many nodes."""

    def __init__(
        self,
        agent: str,
        nodes: Sequence[NodeSpec],
        limits: Limits | None = None,
        cell: str = "default",
    ) -> None:
        """Begin with nothing held.

        Raises:
            ValueError: no nodes, or two of one name.
        """
        self.agent = agent
        self._limits = limits or Limits()
        self._memory = Memory(nodes, cell)
        self._resumes = Resumes(self._memory, self._limits)
        self._gangs = Gangs(self._memory, self._resumes)
        self._loans = Loans(self._memory)

    # --- what others may see ---

    @property
    def gangs(self) -> Mapping[str, Gang]:
        """The gangs held, by job. Not to be changed."""
        return self._memory.gangs

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """Where each node is between its owner and training. Not to be changed."""
        return self._memory.nodes

    @property
    def specs(self) -> Mapping[str, NodeSpec]:
        """The nodes as configured, by name."""
        return self._memory.specs

    @property
    def lease_until_s(self) -> float | None:
        """Until when gangs may run without contact; None: no lease was given, so none ends."""
        return self._memory.lease_until_s

    @property
    def leader_epoch(self) -> int:
        """The highest leader epoch seen of the agent's cell; -1 if none."""
        return self._memory.leader_epoch

    def highest_epoch(self, job: str) -> int:
        """The highest epoch seen of a job; -1 if none, or forgotten."""
        return self._memory.highest(job)

    def holder(self, node: str) -> tuple[str | None, ...]:
        """By GPU of the node, the job that holds it."""
        return tuple(self._memory.holder[node])

    def next_due_s(self) -> float | None:
        """When the lease of what is held ends; None if nothing is due by itself."""
        if any(gang.phase != "stopping" for gang in self._memory.gangs.values()):
            return self._memory.lease_until_s
        return None

    # --- memory ---

    def to_dict(self) -> dict[str, Any]:
        """Everything remembered, as JSON-able rows."""
        return self._memory.rows()

    def take_changes(self) -> dict[str, Any]:
        """Give the rows changed since the last call, None for those removed; for the store."""
        return self._memory.take_changes()

    @classmethod
    def from_dict(
        cls,
        agent: str,
        nodes: Sequence[NodeSpec],
        rows: Mapping[str, Any],
        limits: Limits | None = None,
        cell: str = "default",
    ) -> Self:
        """Give the core that `to_dict`, or all changes together, describe.

        Raises:
            ValueError: the rows do not fit the nodes.
        """
        core = cls(agent, nodes, limits, cell)
        core._memory.load(rows)
        return core

    # --- stimuli ---

    def handle(self, stimulus: Stimulus, now_s: float) -> Outputs:
        """Handle one stimulus. The outputs count only once the changes are stored."""
        turn = Turn(now_s)
        match stimulus:
            case Tick():
                return self._tick(turn)
            case Command():
                self._command(stimulus, turn)
            case Birth():
                self._birth(stimulus, turn)
            case GangStarted():
                self._gangs.started(stimulus, turn)
            case WorkersLeft():
                self._gangs.left(stimulus, turn)
            case CheckpointDone():
                self._gangs.saved(stimulus, turn)
            case OutputsStored():
                self._gangs.outputs(stimulus, turn)
            case CheckpointLost():
                self._gangs.not_saved(stimulus, turn)
            case GangProgress():
                self._gangs.progressed(stimulus, turn)
            case GangStopped() | GangCompleted():
                self._gangs.ended(stimulus, turn)
            case GangFailed():
                self._gangs.failed(stimulus, turn)
            case NodeDrained():
                self._loans.drained(stimulus, turn)
                self._resumes.drained(stimulus.node, turn)
            case NodeHandedBack():
                self._loans.handed_back(stimulus, turn)
            case _:
                assert_never(stimulus)
        return turn.outputs()

    def farewell(self, reason: str, now_s: float) -> Outputs:
        """Report that every node leaves for good, its workers with it."""
        turn = Turn(now_s)
        self._memory.mark_departed()
        for job, gang in self._memory.gangs.items():
            gang.spec = None  # the scheduler starts it elsewhere: it must not be resumed here
            self._memory.touch(f"gang/{job}")
        for name in self._memory.specs:
            turn.say(NodeDied(node=name, reason=reason))
        return turn.outputs()

    def objection(self, command: Command, now_s: float) -> Objection | None:
        """Give why this command is not carried out, whatever it asks; None if it is."""
        if command.id in self._memory.inbox:
            return "replayed"
        if command.leader_epoch < self._memory.leader_epoch:
            return "stale_leader"
        return "expired" if self._is_expired(command, now_s) else None

    def _command(self, command: Command, turn: Turn) -> None:
        objection = self.objection(command, turn.now_s)
        if objection == "replayed":
            self._memory.repeat(command.id, turn)
            return
        self._memory.inbox[command.id] = InboxEntry(turn.now_s)
        self._memory.touch(f"inbox/{command.id}")
        if objection == "stale_leader":
            # Its epochs are ignored, too: a former leader may have given them without right.
            highest = self._memory.leader_epoch
            reason = (
                f"leader: epoch {command.leader_epoch} is below {highest}, the newest heard here; "
                "if the scheduler's journal was begun anew, move the agent's state file away"
            )
            self._memory.settle(command.id, "refused", reason, turn)
            return
        self._memory.record_leader(command.leader_epoch)
        if objection == "expired":
            # The inbox may have forgotten it, so it could be a repetition.
            self._memory.settle(command.id, "refused", "expired", turn)
            return
        try:
            finished = self._carry_out(command, turn)
        except Refused as refusal:
            self._memory.settle(command.id, "refused", str(refusal), turn)
        else:
            if finished:
                self._memory.settle(command.id, "done", "", turn)
        # Also of a refused command: older epochs stay refused.
        self._memory.record_epoch(command.data, turn.now_s)

    def _is_expired(self, command: Command, now_s: float) -> bool:
        expired = command.expires_s is not None and command.expires_s <= now_s
        return expired or now_s - command.said_s > self._limits.memory_s

    def _carry_out(self, command: Command, turn: Turn) -> bool:
        match command.data:
            case StartGang():
                self._check_start(command, turn.now_s)
                self._gangs.start(command.data, command.id, turn)
            case ScaleGang():
                self._gangs.scale(command.data, command.id, turn)
            case StopGang():
                self._gangs.stop(command.data, self._within_lease(turn), command.id, turn)
            case LendNode():
                return self._loans.lend(command.data, command.id, turn)
            case ReturnNode():
                return self._loans.give_back(command.data, command.id, turn)
            case Rebirth():
                self._say_births(turn, command.id)
            case RenewLease():
                self._set_lease(max(command.data.until_s, self._memory.lease_until_s or 0.0), turn)
            case _:
                assert_never(command.data)
        return True

    # --- births, leases, time ---

    def _birth(self, birth: Birth, turn: Turn) -> None:
        self._memory.mark_returned(turn.now_s)
        for node in self._memory.take_removed():
            # Nobody else would say it: for the scheduler a node lives as long as its agent does.
            turn.say(NodeDied(node=node, reason="is no longer in its agent's configuration"))
        turn.actions.append(KeepLease(self._memory.lease_until_s, self._limits.lease_grace_s))
        lost = [gang for job, gang in self._memory.gangs.items() if job not in birth.running]
        gone = tuple(gang.job for gang in lost if not self._resumes.may_resume(gang, turn.now_s))
        self._say_births(turn, None, without_jobs=gone)
        for gang in lost:
            self._gangs.lose(gang, "agent restarted", turn)
        for job, gang in self._memory.gangs.items():
            gang.checkpointing = False
            self._memory.touch(f"gang/{job}")
            if gang.phase == "stopping":
                # It was stored, but perhaps not carried out before the crash: order it again.
                left_s = max(0.0, (gang.stop_by_s or turn.now_s) - turn.now_s)
                turn.actions.append(StopWorkers(job, gang.epoch, gang.stop_saves, left_s))
            elif gang.phase == "scaling":
                turn.actions.append(self._gangs.scaling(gang))
        for job in birth.running:
            if job not in self._memory.gangs:
                # The state is lost, or older than its workers, or a node of theirs was removed:
                # nobody else would ever end them.
                turn.actions.append(StopWorkers(job, 0, False, 0.0))
        self._loans.resume(turn)

    def _say_births(
        self, turn: Turn, causation: str | None, without_jobs: tuple[str, ...] = ()
    ) -> None:
        for name, spec in self._memory.specs.items():
            held, loan = self._held_on(name, without_jobs), self._memory.nodes[name].loan
            turn.say(spec.born(self.agent, held, loan), causation)

    def _held_on(self, node: str, without_jobs: tuple[str, ...]) -> list[GangHeld]:
        held: list[GangHeld] = []
        for job, gang in sorted(self._memory.gangs.items()):
            if job in without_jobs:
                continue
            for epoch, placement in (*gang.leaving, (gang.epoch, gang.placement)):
                if node in placement:
                    gpus = list(placement[node])
                    held.append(GangHeld(job=job, epoch=epoch, gpus=gpus, step=gang.step))
        return held

    def _check_start(self, command: Command, now_s: float) -> None:
        if command.said_s < self._memory.back_s:
            # The scheduler gave the command up then, and may have started the job elsewhere.
            raise Refused("start: given before this agent, which had left for good, came back")
        # The scheduler may have given up this command when the lease ended, and started the job
        # elsewhere. If it has not, a renewal of the lease comes first when the link is back.
        lease_s = self._memory.lease_until_s
        if lease_s is not None and lease_s <= now_s:
            raise Refused("lease: it has ended; nothing starts before it is renewed")

    def _set_lease(self, until_s: float, turn: Turn) -> None:
        if until_s != self._memory.lease_until_s:
            self._memory.lease_until_s = until_s
            self._memory.touch("lease")
            turn.actions.append(KeepLease(until_s, self._limits.lease_grace_s))
            self._resumes.look(turn)

    def _tick(self, turn: Turn) -> Outputs:
        lease_s = self._memory.lease_until_s
        if lease_s is not None and lease_s <= turn.now_s:
            self._end_lease(turn)
        for gang in list(self._memory.gangs.values()):
            if gang.phase == "running" and not gang.checkpointing:
                since_s = gang.checkpointed_s
                if since_s is not None and self._is_over(turn.now_s - since_s, gang.job):
                    self._gangs.save(gang, turn)
        self._memory.forget(turn.now_s - self._limits.memory_s)
        return turn.outputs() if turn.actions or turn.events else NOTHING

    def _within_lease(self, turn: Turn) -> float:
        """Give for how long a gang that leaves may still be there: the lease, and its grace.

        After that the scheduler takes it for gone, however long it was given when it was told.
        """
        lease_s = self._memory.lease_until_s
        left_s = math.inf if lease_s is None else max(0.0, lease_s - turn.now_s)
        return left_s + self._limits.lease_grace_s

    def _end_lease(self, turn: Turn) -> None:
        """Have every gang save its work and leave: the scheduler will start its job elsewhere."""
        for gang in list(self._memory.gangs.values()):
            if gang.phase != "stopping":
                self._gangs.leave(gang, "lease_ended", True, self._limits.lease_grace_s, turn)

    def _is_over(self, passed_s: float, job: str) -> bool:
        """Whether so much time makes a job's interval, or nobody knows: the clock was set back."""
        spread_s = self._limits.checkpoint_max_s - self._limits.checkpoint_min_s
        share = zlib.crc32(job.encode()) / 2**32
        return not -_STEP_S < passed_s < self._limits.checkpoint_min_s + share * spread_s
