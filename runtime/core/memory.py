"""The agent's state as rows, which of them changed since the last save, and who holds which GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.core.messages import Action, Delivery, Outputs, Placement, Said
from runtime.core.state import Gang, NodeSpec, NodeState, Outcome
from schemas.commands import CommandData
from schemas.events import CommandAcknowledged, EventData
from schemas.values import NodeGpus

#: Longest reason an ack carries (`schemas.values.Note`).
_REASON_MAX = 1000
_GONE = -1.0


class Refused(Exception):
    """A command that is not carried out; its text is the reason in the ack."""


@dataclass(slots=True)
class InboxEntry:
    """A command id that was seen, and its final ack; None while the owner still works on it."""

    time_s: float
    outcome: Outcome | None = None
    reason: str = ""


@dataclass(slots=True)
class Turn:
    """What one stimulus leads to, while it is being handled."""

    now_s: float
    acks: list[Delivery] = field(default_factory=list)
    events: list[Said] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def say(self, data: EventData, causation: str | None = None) -> None:
        self.events.append(Said(data, causation))

    def outputs(self) -> Outputs:
        return Outputs(tuple(self.acks), tuple(self.events), tuple(self.actions))


class Memory:
    """All that the core remembers."""

    def __init__(self, specs: Sequence[NodeSpec], cell: str) -> None:
        if not specs:
            raise ValueError("nodes: an agent needs at least one node")
        self.specs = {spec.node: spec for spec in sorted(specs, key=lambda spec: spec.node)}
        if len(self.specs) != len(specs):
            raise ValueError("nodes: two nodes have the same name; give each its own")
        self.nodes = {name: NodeState() for name in self.specs}
        #: Nodes of the saved state that the configuration has no more, until they are said dead.
        self.removed: list[str] = []
        self.gangs: dict[str, Gang] = {}
        #: By job: the highest epoch seen and when; the one seen last is at the end.
        self.epochs: dict[str, tuple[int, float]] = {}
        #: By command id, oldest first.
        self.inbox: dict[str, InboxEntry] = {}
        self.lease_until_s: float | None = None
        self._cell = cell
        #: By cell: the highest leader epoch seen; never forgotten, or a former leader could come
        #: back. Cells that the agent was of before stay: it may be moved back.
        self._leaders: dict[str, int] = {}
        #: When it was started again after it had left for good; 0: it never left.
        self.back_s = 0.0
        self.holder: dict[str, list[str | None]] = {
            name: [None] * spec.gpu_count for name, spec in self.specs.items()
        }
        self._changed: dict[str, None] = {}

    # --- acks ---

    def settle(self, command: str, outcome: Outcome, reason: str, turn: Turn) -> None:
        """Give the command its one and final ack."""
        entry = self.inbox.setdefault(command, InboxEntry(turn.now_s))
        entry.outcome, entry.reason = outcome, reason[:_REASON_MAX]
        self.touch(f"inbox/{command}")
        self.repeat(command, turn)

    def repeat(self, command: str, turn: Turn) -> None:
        """Give the final ack of a command (again), if it has one."""
        entry = self.inbox[command]
        if entry.outcome is not None:
            ack = CommandAcknowledged(command=command, outcome=entry.outcome, reason=entry.reason)
            turn.acks.append(Delivery(ack, command))

    # --- epochs ---

    def record_epoch(self, data: CommandData, now_s: float) -> None:
        """Remember the highest epoch of a job."""
        job, epoch = getattr(data, "job", None), getattr(data, "epoch", None)
        if job is None or epoch is None:
            return
        highest = max(epoch, self.highest(job))
        self.epochs.pop(job, None)
        self.epochs[job] = (highest, now_s)
        self.touch(f"epoch/{job}")

    def highest(self, job: str) -> int:
        """The highest epoch seen of a job, -1 if none."""
        return self.epochs.get(job, (-1, 0.0))[0]

    @property
    def leader_epoch(self) -> int:
        """The highest leader epoch seen of the cell, -1 if none."""
        return self._leaders.get(self._cell, -1)

    def record_leader(self, epoch: int) -> None:
        """Remember the highest leader epoch."""
        if epoch > self.leader_epoch:
            self._leaders[self._cell] = epoch
            self.touch(f"leader/{self._cell}")

    def mark_departed(self) -> None:
        """Record that the agent left for good."""
        self.back_s = _GONE
        self.touch("back")

    def mark_returned(self, now_s: float) -> None:
        """Record when it was started again, if it had left."""
        if self.back_s == _GONE:
            self.back_s = now_s
            self.touch("back")

    def take_removed(self) -> list[str]:
        """Give the nodes that were removed, once, and note which there are: they may go later."""
        removed, self.removed = self.removed, []
        for name in (*removed, *self.specs):
            self.touch(f"node/{name}")
        return removed

    # --- GPUs ---

    def usable(self, placement: Sequence[NodeGpus], job: str) -> dict[str, tuple[int, ...]]:
        """Check that training may take these GPUs now; those the job holds count as free.

        Raises:
            Refused: a GPU is unknown, on a node that is not lent, or occupied.
        """
        gang = self.gangs.get(job)
        chosen: dict[str, tuple[int, ...]] = {}
        for part in placement:
            spec = self.specs.get(part.node)
            if spec is None:
                raise Refused(f"placement: this agent has no node {part.node}")
            gpus = tuple(sorted(part.gpus))
            if gpus[-1] >= spec.gpu_count:
                raise Refused(
                    f"placement: {part.node} has no GPU {gpus[-1]}, only {spec.gpu_count} GPUs"
                )
            phase = self.nodes[part.node].phase
            if spec.lendable and phase != "lent":
                raise Refused(f"placement: {part.node} is not lent to training but {phase}")
            own = gang.placement.get(part.node, ()) if gang is not None else ()
            for gpu in gpus:
                held_by = self.holder[part.node][gpu]
                if held_by is not None and gpu not in own:
                    raise Refused(f"placement: GPU {gpu} of {part.node} is held by {held_by}")
            chosen[part.node] = gpus
        return dict(sorted(chosen.items()))

    def occupy(self, placement: Placement, job: str | None) -> None:
        """Record who holds these GPUs; None frees them."""
        for node, gpus in placement.items():
            for gpu in gpus:
                self.holder[node][gpu] = job

    def jobs_on(self, node: str) -> list[str]:
        """The jobs that hold GPUs of the node, by name."""
        return sorted({job for job in self.holder[node] if job is not None})

    # --- rows ---

    def touch(self, key: str) -> None:
        """Mark a row as changed."""
        self._changed[key] = None

    def rows(self) -> dict[str, Any]:
        """Everything, by row key."""
        return {
            "lease": self.lease_until_s,
            "back": self.back_s,
            **{f"leader/{cell}": epoch for cell, epoch in self._leaders.items()},
            **{f"node/{name}": node.to_row() for name, node in self.nodes.items()},
            **{f"gang/{job}": gang.to_row() for job, gang in self.gangs.items()},
            **{f"epoch/{job}": list(epoch) for job, epoch in self.epochs.items()},
            **{f"inbox/{name}": _inbox_row(entry) for name, entry in self.inbox.items()},
        }

    def take_changes(self) -> dict[str, Any]:
        """Give the rows that changed since the last call; a removed row is None."""
        changes = {key: self._row(key) for key in self._changed}
        self._changed.clear()
        return changes

    def _row(self, key: str) -> Any:
        kind, _, name = key.partition("/")
        if kind == "lease":
            return self.lease_until_s
        if kind == "leader":
            return self._leaders.get(name)
        if kind == "back":
            return self.back_s
        if kind == "inbox":
            return _inbox_row(self.inbox[name]) if name in self.inbox else None
        if kind == "epoch":
            return list(self.epochs[name]) if name in self.epochs else None
        if kind == "gang":
            return self.gangs[name].to_row() if name in self.gangs else None
        return self.nodes[name].to_row() if name in self.nodes else None

    def load(self, rows: Mapping[str, Any]) -> None:
        """Fill an empty memory from rows; gangs on nodes that were removed are left out.

        Raises:
            ValueError: the rows hold GPUs that this agent's nodes do not have.
        """
        removed: dict[str, None] = {}
        for key, row in rows.items():
            kind, _, name = key.partition("/")
            if row is None:
                continue
            if kind == "lease":
                self.lease_until_s = row
            elif kind == "leader":
                self._load_leader(name, row)
            elif kind == "back":
                self.back_s = row
            elif kind == "node" and name in self.nodes:
                self.nodes[name] = NodeState.from_row(row)
            elif kind == "node":
                removed[name] = None
            elif kind == "gang":
                self.gangs[name] = Gang.from_row(name, row)
            elif kind == "epoch":
                self.epochs[name] = (row[0], row[1])
            elif kind == "inbox":
                self.inbox[name] = InboxEntry(row[0], row[1], row[2])
        self.gangs = dict(sorted(self.gangs.items()))
        self.epochs = dict(sorted(self.epochs.items(), key=lambda item: (item[1][1], item[0])))
        self.inbox = dict(sorted(self.inbox.items(), key=lambda item: (item[1].time_s, item[0])))
        for job, gang in list(self.gangs.items()):
            placements = (gang.placement, *(left for _, left in gang.leaving))
            gone = [node for part in placements for node in part if node not in self.specs]
            if gone:
                removed.update(dict.fromkeys(gone))
                del self.gangs[job]
                self.touch(f"gang/{job}")
                continue
            for placement in placements:
                for node, gpus in placement.items():
                    if max(gpus) >= self.specs[node].gpu_count:
                        raise ValueError(
                            f"nodes: the saved state runs {job} on {node}, GPUs {gpus}, which "
                            "the configuration does not have; restore the node's old definition, "
                            "or move the agent's state file away to begin afresh"
                        )
                self.occupy(placement, job)
        self.removed = sorted(removed)

    def _load_leader(self, cell: str, epoch: int) -> None:
        if not cell:
            # An earlier release wrote one for all cells; it counts for the one it is started in.
            cell = self._cell
            self.touch("leader")
            self.touch(f"leader/{cell}")
        self._leaders[cell] = max(epoch, self._leaders.get(cell, -1))

    def forget(self, before_s: float) -> None:
        """Drop command ids and epochs last seen before then, but none of present gangs."""
        for command in _oldest(self.inbox, lambda entry: entry.time_s < before_s):
            if self.inbox[command].outcome is not None:
                del self.inbox[command]
                self.touch(f"inbox/{command}")
        for job in _oldest(self.epochs, lambda epoch: epoch[1] < before_s):
            if job not in self.gangs:
                del self.epochs[job]
                self.touch(f"epoch/{job}")


def _inbox_row(entry: InboxEntry) -> list[Any]:
    return [entry.time_s, entry.outcome, entry.reason]


def _oldest(rows: Mapping[str, Any], is_old: Callable[[Any], bool]) -> list[str]:
    """The keys at the front that are old; rows are in order of age."""
    old: list[str] = []
    for key, value in rows.items():
        if not is_old(value):
            break
        old.append(key)
    return old
