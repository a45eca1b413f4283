"""Gangs that were lost with their machine: whether and when they are resumed here.

A gang whose workers are gone although nothing ended them, as after a power cut, is started again
from its newest checkpoint, under the same epoch. For the scheduler it is the allocation that it
gave, a few steps back. No command is needed, only the lease that the agent still has. GPU locks
keep two gangs from using one GPU.

The boot may have brought back the owner of a lent node. So no gang begins there, resumed or new,
before the owner is known to have left again.
"""

from runtime.core.memory import Memory, Turn
from runtime.core.messages import Placement, StartWorkers
from runtime.core.state import Gang, Limits


class Resumes:
    """Applies the rules. Which owners have left is known only since the agent's start."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self._memory, self._limits = memory, limits
        self._drained: dict[str, None] = {}
        #: By job, what waits; its transfer, None of a gang that is resumed.
        self._waiting: dict[str, float | None] = {}

    def may_resume(self, gang: Gang, now_s: float) -> bool:
        """Whether the gang may be resumed, by configuration, lease, count, and a sane clock."""
        heard_s = max((entry.time_s for entry in self._memory.inbox.values()), default=now_s)
        return (
            self._limits.after_reboot == "resume"
            and gang.spec is not None
            and gang.phase != "stopping"
            and gang.resumes < self._limits.resumes_max
            and self._may_run(now_s)
            # A clock that was set back cannot tell when the lease ends.
            and heard_s <= now_s
        )

    def begin(self, gang: Gang, turn: Turn) -> None:
        """Resume the gang, as soon as the owners of its nodes are known to have left them."""
        gang.phase, gang.cause = "starting", None
        gang.step, gang.checkpointed_s, gang.checkpointing = gang.checkpoint_step, None, False
        self._memory.touch(f"gang/{gang.job}")
        self._waiting[gang.job] = None
        self._look(gang, turn)

    def start(self, gang: Gang, transfer_s: float, turn: Turn) -> None:
        """Start a new gang, as soon as the owners of its nodes are known to have left them."""
        self._waiting[gang.job] = transfer_s
        self._look(gang, turn)

    def waits(self, gang: Gang) -> bool:
        """Whether it waits, so that no worker has started."""
        return gang.job in self._waiting

    def cancel(self, gang: Gang) -> bool:
        """Let it wait no more; give whether it did."""
        waited = self.waits(gang)
        self._waiting.pop(gang.job, None)
        return waited

    def is_free(self, placement: Placement) -> bool:
        """Whether the owners of these nodes have left them since the agent began."""
        specs = self._memory.specs
        return all(node in self._drained or not specs[node].lendable for node in placement)

    def drained(self, node: str, turn: Turn) -> None:
        """Note that the owner has left the node; after a boot it may have been started there."""
        self._drained[node] = None
        self.look(turn)

    def look(self, turn: Turn) -> None:
        """Begin what waits for nothing any more; an owner may leave as the lease is renewed."""
        for job in list(self._waiting):
            self._look(self._memory.gangs[job], turn)

    def _may_run(self, now_s: float) -> bool:
        lease_s = self._memory.lease_until_s
        return lease_s is None or now_s < lease_s

    def _look(self, gang: Gang, turn: Turn) -> None:
        if self.is_free(gang.placement) and self._may_run(turn.now_s):
            transfer_s = self._waiting.pop(gang.job)
            assert gang.spec is not None
            is_resumed = transfer_s is None
            if is_resumed:  # counted only now: one that waited and was cancelled does not count
                gang.resumes += 1
                self._memory.touch(f"gang/{gang.job}")
            what = (gang.job, gang.epoch, gang.placement, gang.spec, gang.checkpoint_step)
            turn.actions.append(StartWorkers(*what, transfer_s or 0.0, resumed=is_resumed))
