"""The owner under the agent's core, in any order of orders, outcomes, crashes and time.

Whatever happens: while the core calls the node lent, nothing of its owner is there, and once it has
been given back and operations succeed again, its owner has it.
"""

import tempfile
from pathlib import Path
from typing import Literal, get_args

from hypothesis import given, settings, strategies as st

from runtime.core import AgentCore, Birth, Command, DrainNode, HandBackNode, NodeSpec, Outputs
from runtime.owners import Outcome, Retry, ServedOwner
from runtime.owners.lender import Operation
from schemas.commands import LendNode, ReturnNode
from tests.effort import examples
from tests.lending import ScriptedLender, SetMeter

SPEC = NodeSpec("s1", "serve", "inference", 2, "cpu", 1_000)
Step = Literal[
    "lend", "lend well", "return", "succeed", "fail", "wait", "crash", "lose report", "lose file"
]
STEPS: tuple[Step, ...] = get_args(Step)


class Server(ScriptedLender):
    """A lender of one node that notes where its owner is, also across crashes of the agent."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there = True
        self.operation: Operation | None = None

    def begin(self, node: str, operation: Operation, now_s: float) -> None:
        self.operation, self.outcomes = operation, []
        if operation == "hand_back":
            self.is_there = True  # from its beginning on, something may be there

    def end(self, error: str) -> None:
        if self.operation is not None:
            if not error:
                self.is_there = self.operation == "hand_back"
            self.outcomes.append(Outcome("s1", self.operation, error))
            self.operation = None


class World:
    def __init__(self, folder: Path) -> None:
        self.file, self.now_s = folder / "owner.json", 0.0
        self.server = Server()
        self.rows: dict[str, object] = {}
        self.commands = self.loans = 0
        self.boot()

    def boot(self) -> None:
        self.server.operation, self.server.outcomes = None, []
        retry = Retry(first_s=5.0, max_s=20.0, drains=2)
        self.owner = ServedOwner(
            lambda _: SetMeter(), self.server, {"s1": 2}, self.file, self.now_s, retry=retry
        )
        self.core = AgentCore.from_dict("a", [SPEC], self.rows)
        self.act(self.core.handle(Birth(), self.now_s))

    def act(self, outputs: Outputs) -> None:
        for key, row in self.core.take_changes().items():
            self.rows[key] = row
            if row is None:
                del self.rows[key]
        for action in outputs.actions:
            if isinstance(action, DrainNode):
                self.owner.drain(action.node, self.now_s)
            elif isinstance(action, HandBackNode):
                self.owner.hand_back(action.node, self.now_s)

    def order(self, data: LendNode | ReturnNode) -> None:
        self.commands += 1
        command = Command(f"c{self.commands}", data, self.now_s)
        self.act(self.core.handle(command, self.now_s))

    def advance(self) -> None:
        for report in self.owner.advance(self.now_s):
            self.act(self.core.handle(report, self.now_s))

    def phase(self) -> str:
        return self.core.nodes["s1"].phase

    def do(self, step: Step) -> None:
        match step:
            case "lend":
                self.loans += 1
                self.order(LendNode(node="s1", loan=f"L{self.loans}"))
            case "lend well":
                for part in ("wait", "lend", "succeed"):
                    self.do(part)
                    self.advance()
            case "return":
                loan = self.core.nodes["s1"].loan or f"L{self.loans}"
                self.order(ReturnNode(node="s1", loan=loan))
            case "succeed":
                self.server.end("")
            case "fail":
                self.server.end("no")
            case "wait":
                self.now_s += 150.0
            case "crash":
                self.boot()
            case "lose report":
                self.owner.advance(self.now_s)
                self.boot()
            case "lose file":
                self.file.unlink(missing_ok=True)
                self.boot()


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.booleans()), max_size=40))
def test_lent_means_left_and_returned_means_there(steps: list[tuple[Step, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for step, advances in steps:
            world.do(step)
            if advances:
                world.advance()
            if world.phase() == "lent":
                assert not world.server.is_there, "training and its owner are on one node"
        for _ in range(12):
            world.do("return")
            world.do("wait")
            world.advance()
            world.do("succeed")
            world.advance()
        assert world.phase() == "owned"
        assert world.server.is_there
