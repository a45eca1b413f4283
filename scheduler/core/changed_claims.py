"""Which claims may have changed since they were looked at, so that an event costs what it touches.

It follows from the state: one that begins anew looks at all claims, and decides the same. A claim
depends on its job, on the nodes that it names and on the jobs that hold GPUs there.
"""

from collections.abc import Sequence
from typing import Any

from scheduler.core import facts
from scheduler.core.state import ClusterState

#: These change nothing that a claim depends on.
_IDLE = (
    facts.JobExplained,
    facts.JobAdvanced,
    facts.JobMeasured,
    facts.CommandIssued,
    facts.JobAccepted,
)


class ChangedClaims:
    """The claims of a state, as the last look at them left them."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.known = False  #: Whether they were looked at.
        self._jobs: dict[str, None] = {}  # touched since the last look
        self._nodes: dict[str, None] = {}
        self._seen = 0  # of the facts of this turn

    def note(self, found: Sequence[Any]) -> None:
        """Take note of the facts of the present turn, those before included."""
        for fact in found[self._seen :]:
            kind = type(fact)
            if kind in _IDLE:
                continue
            if kind is facts.LeaderChanged:
                self.known = False
            if (job := getattr(fact, "job", None)) is not None:
                self._jobs[job] = None
            if (node := getattr(fact, "node", None)) is not None:
                self._nodes[node] = None
        self._seen = len(found)

    def end_turn(self, state: ClusterState, found: Sequence[Any]) -> None:
        """Take note of the last facts of a turn."""
        self.note(found)
        self._seen = 0
        if not state.claimants:
            self._jobs, self._nodes = {}, {}

    def begin_look(self, state: ClusterState, *, anew: bool) -> list[str]:
        """Begin a look: list the claims, oldest first, all or those that may have changed."""
        self.known = self.known and not anew and not state.starts_deferred
        return self.affected(state)

    def affected(self, state: ClusterState) -> list[str]:
        """List the claims, oldest first, that may be others than at the last look."""
        if not self.known:
            return list(state.claimants)
        jobs, nodes = state.jobs, dict(self._nodes)
        found: dict[str, None] = {}
        for name in self._jobs:
            if (job := jobs.get(name)) is not None:
                nodes.update(dict.fromkeys((*job.allocation, *job.leaving)))
                if job.target is not None:
                    found[name] = None
        for name in nodes:
            if (node := state.nodes.get(name)) is not None:
                for who in dict.fromkeys((*node.claim, *node.holder)):
                    if who is not None and (claimant := jobs.get(who)) is not None:
                        if claimant.target is not None:
                            found[who] = None
        if len(found) < 2:
            return list(found)
        return [name for name in state.claimants if name in found]

    def end_look(self) -> None:
        """End a look."""
        self.known, self._jobs, self._nodes = True, {}, {}
