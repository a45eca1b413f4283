"""When each thing will be due: heaps beside the state, kept up from fact to fact.

They hold nothing that `node_due_s`, `command_due_s` and `job_due_s` do not say of the state, so
that an engine that begins anew finds the same things due.
"""

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from scheduler.core import facts
from scheduler.core.leave import gone_by_s, transfer_s
from scheduler.core.registry import NAMES
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import TERMINAL, JobState, NodeState

#: These change nothing of when their job is due: it waits for GPUs, or holds what it held.
_NEVER_DUE = {facts.JobAccepted, facts.JobExplained, facts.TargetSet, facts.TargetDropped}


class _Heap:
    """Things by when they are due."""

    def __init__(self, due_s: Callable[[str], float], names: Iterable[str]) -> None:
        """Begin with these; `due_s` gives when one is due as it is now, inf for never."""
        self._due_s = due_s
        self._at_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # with entries that `_at_s` knows no more
        self._touched: dict[str, None] = dict.fromkeys(names)

    def touch(self, name: str) -> None:
        """Look at it again before the next `due`."""
        self._touched[name] = None

    def catch_up(self) -> None:
        """Look at what was touched."""
        for name in self._touched:
            at_s = self._due_s(name)
            if at_s == inf:
                self._at_s.pop(name, None)
            elif self._at_s.get(name) != at_s:
                self._at_s[name] = at_s
                heappush(self._heap, (at_s, name))
        if len(self._heap) > 64 + 2 * len(self._at_s):
            self._heap = [(at_s, name) for name, at_s in self._at_s.items()]
            heapify(self._heap)
        self._touched = {}

    def due(self, now_s: float) -> list[str]:
        """List what is due by now, in no order that means anything; what stays so comes again."""
        self.catch_up()
        found: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now_s:
            at_s, name = heappop(self._heap)
            if self._at_s.get(name) == at_s:
                found[name] = None
                del self._at_s[name]
        self._touched = found
        return list(found)


class Agenda:
    """What is due of a cell."""

    def __init__(self, state: ClusterState, settings: Settings) -> None:
        """Look at everything there is."""
        self._state = state
        self.nodes = _Heap(partial(node_due_s, state), state.nodes)
        self.commands = _Heap(partial(command_due_s, state, settings), state.commands)
        self.jobs = _Heap(partial(job_due_s, state, settings), state.jobs)
        self._heaps = {"job": self.jobs, "node": self.nodes, "command": self.commands}

    def catch_up(self) -> None:
        """Look at what facts were about."""
        for heap in self._heaps.values():
            heap.catch_up()

    def saw(self, folded: Iterable[Any]) -> None:
        """Take note of facts that were folded into the state."""
        for fact in folded:
            kind = type(fact)
            if kind in _NEVER_DUE:
                continue
            for name in NAMES[kind]:
                self._heaps[name].touch(getattr(fact, name))
            if kind is facts.NodeJoined:  # transfers may take another time now
                for holder in self._state.nodes[fact.node].holder:
                    if holder is not None:
                        self.jobs.touch(holder)


def node_due_s(state: ClusterState, name: str) -> float:
    """Say when the lease of a node's workers ends, if it is silent."""
    node = state.nodes[name]
    return (node.lease_end_s or 0.0) if node.state is NodeState.UNKNOWN else inf


def command_due_s(state: ClusterState, settings: Settings, name: str) -> float:
    """Say when a command is to be sent again, or given up."""
    command = state.commands.get(name)
    if command is None:
        return inf
    again_s = command.sent_s + settings.resend_s * 2.0 ** (command.tries - 1)
    return min(command.expires_s, again_s)


def job_due_s(state: ClusterState, settings: Settings, name: str) -> float:
    """Say when a job is to be forgotten, stopped because it does not start, or asked about."""
    job = state.jobs.get(name)
    if job is None or job.state in (JobState.QUEUED, JobState.MIGRATING):
        return inf
    if job.state in TERMINAL:
        return (job.end_s or 0.0) + settings.forget_s
    changed_s = job.changed_s or 0.0
    if job.state in (JobState.STARTING, JobState.SCALING):
        return changed_s + start_limit_s(state, settings, job)
    if job.state is not JobState.RUNNING:
        return gone_by_s(state, settings, job)
    unheard_s = max(job.step_at_s, changed_s) + settings.unheard_s
    return min(unheard_s, changed_s + settings.start_timeout_s) if job.leaving else unheard_s


def start_limit_s(state: ClusterState, settings: Settings, job: Job) -> float:
    """Say how long a gang may take until it is up."""
    begins_s = transfer_s(state, job) if job.checkpoint_step else 0.0
    return settings.start_timeout_s + 2.0 * job.start_cost_s + begins_s
