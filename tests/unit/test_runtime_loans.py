"""Loans in the agent core: acknowledged when true, safe to repeat, superseded by a return."""

from runtime.core import (
    AgentCore,
    Birth,
    DrainNode,
    GangStopped,
    HandBackNode,
    NodeDrained,
    NodeHandedBack,
    NodeSpec,
    Outputs,
)
from schemas.commands import LendNode, ReturnNode
from schemas.events import NodeBorn
from tests.gangs import NOW_S, events, refusal, start, stop, tell

SPECS = [
    NodeSpec("own", "train", "training", 2, "A100", 80_000),
    NodeSpec("s1", "serve", "inference", 2, "A100", 80_000),
]
LEND = LendNode(node="s1", loan="L1")
RETURN = ReturnNode(node="s1", loan="L1")


def acks(outputs: Outputs) -> list[tuple[str, str]]:
    return [(ack.data.command, ack.data.outcome) for ack in outputs.acks]


def lent() -> AgentCore:
    core = AgentCore("a", SPECS)
    tell(core, "lend", LEND)
    core.handle(NodeDrained("s1"), NOW_S)
    return core


def test_lend_is_acknowledged_when_the_owner_has_left() -> None:
    core = AgentCore("a", SPECS)
    outputs = tell(core, "c1", LEND)
    assert outputs == Outputs(actions=(DrainNode("s1"),))
    assert tell(core, "c1", LEND) == Outputs(), "no outcome yet, so nothing to repeat"
    assert tell(core, "c2", LEND) == Outputs(), "the same wish waits for the same drain"
    assert acks(core.handle(NodeDrained("s1"), NOW_S)) == [("c1", "done"), ("c2", "done")]
    assert acks(core.handle(NodeDrained("s1"), NOW_S)) == []
    assert acks(tell(core, "c1", LEND)) == [("c1", "done")]
    assert acks(tell(core, "c3", LEND)) == [("c3", "done")], "it is so already"


def test_only_lent_nodes_take_gangs() -> None:
    core = AgentCore("a", SPECS)
    assert "s1 is not lent to training but owned" in refusal(tell(core, "c1", start(s1=[0])))
    tell(core, "c2", LEND)
    assert "but draining" in refusal(tell(core, "c3", start(epoch=2, s1=[0])))
    core.handle(NodeDrained("s1"), NOW_S)
    assert acks(tell(core, "c4", start(epoch=3, s1=[0]))) == [("c4", "done")]
    assert acks(tell(AgentCore("a", SPECS), "c5", start(own=[0]))) == [("c5", "done")]


def test_return_is_acknowledged_when_the_owner_has_it() -> None:
    core = lent()
    assert tell(core, "c1", RETURN) == Outputs(actions=(HandBackNode("s1"),))
    assert tell(core, "c2", RETURN) == Outputs()
    assert "but returning" in refusal(tell(core, "c3", start(s1=[0])))
    done = core.handle(NodeHandedBack("s1"), NOW_S)
    assert acks(done) == [("c1", "done"), ("c2", "done")]
    assert core.nodes["s1"].phase == "owned"
    assert acks(tell(core, "c4", RETURN)) == [("c4", "done")]


def test_return_is_refused_while_gangs_run() -> None:
    core = lent()
    tell(core, "c1", start(s1=[0]))
    assert refusal(tell(core, "c2", RETURN)) == "node: s1 still runs j; stop them first"
    tell(core, "c3", stop(checkpoint=False, grace_s=0.0))
    assert "still runs j" in refusal(tell(core, "c4", RETURN)), "asked is not gone"
    core.handle(GangStopped("j", 1, 0), NOW_S)
    assert tell(core, "c5", RETURN).actions == (HandBackNode("s1"),)


def test_return_supersedes_a_lend_under_way() -> None:
    core = AgentCore("a", SPECS)
    tell(core, "c1", LEND)
    outputs = tell(core, "c2", RETURN)
    assert acks(outputs) == [("c1", "refused")]
    assert outputs.actions == (HandBackNode("s1"),)
    assert core.handle(NodeDrained("s1"), NOW_S) == Outputs(), "the drain was called off"
    assert acks(core.handle(NodeHandedBack("s1"), NOW_S)) == [("c2", "done")]
    assert acks(tell(core, "c1", LEND)) == [("c1", "refused")]


def test_a_late_lend_of_an_ended_loan_is_refused() -> None:
    core = AgentCore("a", SPECS)
    assert acks(tell(core, "c1", RETURN)) == [("c1", "done")], "it is the owner's"
    assert "L1 of s1 has ended" in refusal(tell(core, "c2", LEND))
    assert tell(core, "c3", LendNode(node="s1", loan="L2")).actions == (DrainNode("s1"),)


def test_loans_do_not_mix() -> None:
    core = lent()
    assert "on loan L1" in refusal(tell(core, "c1", LendNode(node="s1", loan="L2")))
    assert "on loan L1, not L2" in refusal(tell(core, "c2", ReturnNode(node="s1", loan="L2")))
    tell(core, "c3", RETURN)
    assert "going back" in refusal(tell(core, "c4", LEND))


def test_training_nodes_and_strangers_are_not_lent() -> None:
    core = AgentCore("a", SPECS)
    assert "training pool" in refusal(tell(core, "c1", LendNode(node="own", loan="L")))
    assert "no node s9" in refusal(tell(core, "c2", ReturnNode(node="s9", loan="L")))


def test_birth_names_the_loan_and_reminds_the_owner() -> None:
    core = AgentCore.from_dict("a", SPECS, lent().to_dict())
    outputs = core.handle(Birth(), NOW_S)
    born = [event for event in events(outputs) if isinstance(event, NodeBorn)]
    assert [(event.node, event.loan) for event in born] == [("own", None), ("s1", "L1")]
    assert outputs.actions[1:] == (DrainNode("s1"),), "after the lease"
    tell(core, "c1", RETURN)
    again = AgentCore.from_dict("a", SPECS, core.to_dict()).handle(Birth(), NOW_S)
    assert again.actions[1:] == (HandBackNode("s1"),)
