"""Gangs that were lost with their machine: whether and when they are resumed here.

A gang whose workers are gone although nothing ended them, as after a power cut, is started again
from its newest checkpoint, under the same epoch. For the scheduler it is the allocation that it
gave, a few steps back. No command is needed, only the lease that the agent still has. GPU locks
keep two gangs from using one GPU.
"""

from typing import Literal

from runtime.core.memory import Memory, Turn
from runtime.core.messages import StartWorkers
from runtime.core.state import Gang, Limits


class Resumes:
    """Applies the rules. Which owners have left is known only since the agent's start."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self._memory, self._limits = memory, limits
        self._drained: dict[str, None] = {}
        self._waiting: dict[str, Literal[True]] = {}  # by job

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
        self._waiting[gang.job] = True
        self._look(gang, turn)

    def cancel(self, gang: Gang) -> bool:
        """Cancel a waiting resume; give whether there was one, so that no worker has started."""
        return self._waiting.pop(gang.job, False)

    def drained(self, node: str, turn: Turn) -> None:
        """Note that the owner has left the node; after a boot it may have been started there."""
        self._drained[node] = None
        self.look(turn)

    def look(self, turn: Turn) -> None:
        """Resume what waits for nothing any more; an owner may leave as the lease is renewed."""
        for job in list(self._waiting):
            self._look(self._memory.gangs[job], turn)

    def _may_run(self, now_s: float) -> bool:
        lease_s = self._memory.lease_until_s
        return lease_s is None or now_s < lease_s

    def _look(self, gang: Gang, turn: Turn) -> None:
        specs = self._memory.specs
        is_free = all(node in self._drained or not specs[node].lendable for node in gang.placement)
        if is_free and self._may_run(turn.now_s):
            del self._waiting[gang.job]
            assert gang.spec is not None
            gang.resumes += (
                1  # counted only now: a resume that waited and was cancelled does not count
            )
            self._memory.touch(f"gang/{gang.job}")
            what = (gang.job, gang.epoch, gang.placement, gang.spec, gang.checkpoint_step)
            turn.actions.append(StartWorkers(*what, transfer_s=0.0, resumed=True))
