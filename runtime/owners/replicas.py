"""A lender whose owner is a group of local processes: replicas that it stops and starts.

It supervises them all the time: replicas of nodes that are not drained are kept up, also after a
restart of the agent or the machine, and a replica that dies is restarted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.owners.lender import Operation, Outcome
from runtime.owners.replica import Replica, ReplicaOptions, ReplicaSpec


@dataclass(slots=True)
class _Node:
    replicas: list[Replica]
    is_told: bool = False
    operation: Operation | None = None
    until_s: float = math.inf


class ReplicaLender:
    """A Lender by scaling: a drain stops the replicas of a node, a hand-back starts them."""

    def __init__(
        self,
        specs: Sequence[ReplicaSpec],
        nodes: Iterable[str],
        folder: Path,
        options: ReplicaOptions | None = None,
        gpus: Mapping[str, Sequence[Path]] | None = None,
    ) -> None:
        """Find the replicas that run already. Nothing is started before the first `poll`.

        Args:
            specs: All replicas.
            nodes: The nodes that may be lent.
            folder: Where logs, locks and identities are kept; made if need be.
            options: How replicas are supervised.
            gpus: By node, the lock files of its GPUs, which its replicas then hold together and
                gangs hold alone (`runtime.executors.locks`).

        Raises:
            ValueError: two have one name, a name or `ready` is not usable, or a node has none.
            OSError: the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._options = options or ReplicaOptions()
        self._nodes: dict[str, _Node] = {node: _Node([]) for node in nodes}
        self._due_s = 0.0
        names: set[str] = set()
        for spec in specs:
            if not spec.name or "/" in spec.name or spec.name in names:
                raise ValueError(f"replicas: {spec.name!r} must be a file name that no other has")
            if spec.name == "owner":  # owner.json, beside its record, says which nodes are lent
                raise ValueError(f"replicas: no replica may be called {spec.name}; rename it")
            if spec.node not in self._nodes:
                raise ValueError(f"replicas: {spec.name} names {spec.node}, which is no node here")
            if not spec.argv:
                raise ValueError(f"replicas: {spec.name} has no argv; name a command")
            names.add(spec.name)
            self._nodes[spec.node].replicas.append(
                Replica(spec, self._options, folder, (gpus or {}).get(spec.node, ()))
            )
        for name, node in self._nodes.items():
            if not node.replicas:
                raise ValueError(
                    f"replicas: none serves on {name}; a drain of it would be no drain"
                )

    def begin(self, node: str, operation: Operation, now_s: float) -> None:
        known, options = self._nodes[node], self._options
        if known.operation == operation:
            return
        leaves_s = options.grace_s + options.kill_timeout_s
        limit_s = leaves_s if operation == "drain" else options.ready_timeout_s
        known.operation, known.until_s, self._due_s = operation, now_s + limit_s, now_s
        self._want(known, up=operation == "hand_back", now_s=now_s)

    def poll(self, now_s: float) -> list[Outcome]:
        outcomes = []
        self._due_s = math.inf
        for name, node in self._nodes.items():
            if not node.is_told:  # nodes that are to be drained are named before the first poll
                self._want(node, up=True, now_s=now_s)
            due_s = min(replica.step(now_s) for replica in node.replicas)
            self._due_s = min(self._due_s, due_s)
            if node.operation is not None and (error := self._verdict(node, now_s)) is not None:
                outcomes.append(Outcome(name, node.operation, error))
                node.operation = None
        return outcomes

    def next_due_s(self) -> float | None:
        return self._due_s

    def problems(self) -> list[str]:
        return [
            f"replica {replica.spec.name} on {name}: {replica.error}"
            for name, node in self._nodes.items()
            for replica in node.replicas
            if replica.error
        ]

    def _want(self, node: _Node, *, up: bool, now_s: float) -> None:
        node.is_told = True
        for replica in node.replicas:
            replica.want(up, now_s)

    def _verdict(self, node: _Node, now_s: float) -> str | None:
        """Give "" if the operation is done, the error if it took too long, else None."""
        if node.operation == "drain":
            missing = [replica for replica in node.replicas if not replica.is_down]
            wrong = "still there after SIGKILL"
        else:
            missing = [replica for replica in node.replicas if not replica.is_ready]
            wrong = "not ready"
        if not missing:
            return ""
        if now_s < node.until_s:
            return None
        names = ", ".join(
            f"{one.spec.name} ({one.error})" if one.error else one.spec.name for one in missing
        )
        return f"{wrong}: {names}"
