"""The rules of loans: lend, return, and what the owner reports.

Unlike other commands, these are acknowledged only when they are carried out: the owner has left the
node, or has it back. A node of a training pool has no other owner and cannot be lent.
"""

from runtime.core.memory import Memory, Refused, Turn
from runtime.core.messages import DrainNode, HandBackNode, NodeDrained, NodeHandedBack
from runtime.core.state import NodeState
from schemas.commands import LendNode, ReturnNode


class Loans:
    """Applies the rules. A command gives True if it is carried out now, False if later."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def lend(self, data: LendNode, command: str, turn: Turn) -> bool:
        node = self._lendable(data.node)
        if node.phase == "owned":
            if data.loan == node.last_loan:
                raise Refused(f"loan: {data.loan} of {data.node} has ended; name a new one")
            node.phase, node.loan = "draining", data.loan
            turn.actions.append(DrainNode(data.node))
        elif node.loan != data.loan:
            raise Refused(f"loan: {data.node} is on loan {node.loan}")
        elif node.phase == "returning":
            raise Refused(f"loan: {data.node} is going back from loan {node.loan}")
        return self._wait(data.node, node, "lent", command)

    def give_back(self, data: ReturnNode, command: str, turn: Turn) -> bool:
        node = self._lendable(data.node)
        if node.phase == "owned":
            node.last_loan = data.loan  # a late lend of this loan must not bring it back
            self._memory.touch(f"node/{data.node}")
            return True
        if node.loan != data.loan:
            raise Refused(f"loan: {data.node} is on loan {node.loan}, not {data.loan}")
        if jobs := self._memory.jobs_on(data.node):
            raise Refused(f"node: {data.node} still runs {', '.join(jobs[:8])}; stop them first")
        if node.phase != "returning":
            for lend in node.waiting:
                self._memory.settle(lend, "refused", f"superseded by {command}", turn)
            node.phase, node.waiting = "returning", []
            turn.actions.append(HandBackNode(data.node))
        return self._wait(data.node, node, "owned", command)

    def drained(self, report: NodeDrained, turn: Turn) -> None:
        node = self._memory.nodes.get(report.node)
        if node is not None and node.phase == "draining":
            node.phase = "lent"
            self._settle(report.node, node, turn)

    def handed_back(self, report: NodeHandedBack, turn: Turn) -> None:
        node = self._memory.nodes.get(report.node)
        if node is not None and node.phase == "returning":
            node.phase, node.last_loan, node.loan = "owned", node.loan, None
            self._settle(report.node, node, turn)

    def resume(self, turn: Turn) -> None:
        """Repeat to the owner what it may have forgotten in a restart."""
        for name, node in self._memory.nodes.items():
            if node.phase in ("draining", "lent"):
                turn.actions.append(DrainNode(name))
            elif node.phase == "returning":
                turn.actions.append(HandBackNode(name))

    def _lendable(self, name: str) -> NodeState:
        spec = self._memory.specs.get(name)
        if spec is None:
            raise Refused(f"node: this agent has no node {name}")
        if not spec.lendable:
            raise Refused(f"node: {name} is in a training pool; it has no owner to lend it")
        return self._memory.nodes[name]

    def _wait(self, name: str, node: NodeState, desired: str, command: str) -> bool:
        if node.phase == desired:
            return True
        node.waiting.append(command)
        self._memory.touch(f"node/{name}")
        return False

    def _settle(self, name: str, node: NodeState, turn: Turn) -> None:
        for command in node.waiting:
            self._memory.settle(command, "done", "", turn)
        node.waiting = []
        self._memory.touch(f"node/{name}")
