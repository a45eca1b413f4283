"""Gangs that went with their machine: whether and when they go on here by themselves.

A power cut need not cost a lease. A gang whose workers are gone without anybody having ended them
is begun again from its newest checkpoint, under the same epoch: to the scheduler it is the
allocation that it gave, a few steps back. It needs no word from anybody, only the lease that it
has; GPU locks, free since the last worker went, see to it that no GPU has two gangs.
"""

from typing import Literal

from runtime.core.memory import Memory, Turn
from runtime.core.messages import StartWorkers
from runtime.core.state import Gang, Limits


class Resumes:
    """Applies the rules. Which owners have left is known only from this life of the agent."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self._memory, self._limits = memory, limits
        self._drained: dict[str, None] = {}
        self._waiting: dict[str, Literal[True]] = {}  # by job

    def may(self, gang: Gang, now_s: float) -> bool:
        """Whether the gang may be begun again, by policy, lease, count, and a sane clock."""
        heard_s = max((entry.time_s for entry in self._memory.inbox.values()), default=now_s)
        return (
            self._limits.after_reboot == "resume"
            and gang.spec is not None
            and gang.phase != "stopping"
            and gang.resumes < self._limits.resumes_max
            and self._may_run(now_s)
            # A clock that has gone back cannot tell when the lease ends.
            and heard_s <= now_s
        )

    def begin(self, gang: Gang, turn: Turn) -> None:
        """Begin the gang again, as soon as the owners of its nodes are known to be off them."""
        gang.phase, gang.cause = "starting", None
        gang.step, gang.checkpointed_s, gang.checkpointing = gang.checkpoint_step, None, False
        self._memory.touch(f"gang/{gang.job}")
        self._waiting[gang.job] = True
        self._look(gang, turn)

    def call_off(self, gang: Gang) -> bool:
        """Let a gang wait no more; whether it did, so that none of its workers has begun."""
        return self._waiting.pop(gang.job, False)

    def drained(self, node: str, turn: Turn) -> None:
        """Take note that the owner has left the node: a machine that boots may start it again."""
        self._drained[node] = None
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
            gang.resumes += 1  # one that only waited, perhaps over restarts of the agent, took none
            self._memory.touch(f"gang/{gang.job}")
            what = (gang.job, gang.epoch, gang.placement, gang.spec, gang.checkpoint_step)
            turn.actions.append(StartWorkers(*what, transfer_s=0.0, resumed=True))
