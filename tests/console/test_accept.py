"""`tidegate node accept` and `refuse`: what they put on a log, and what `nodes` lists."""

import shlex
from pathlib import Path

from scheduler.node_admission import command
from schemas.requests import AcceptNode, RefuseNode
from tests.builders import node_born, request_of
from tests.console.conftest import Run
from tests.console.stories import tell
from tests.console.test_operate import said


def test_the_command_of_a_dead_letter_is_taken_word_by_word(tidegate: Run, log: Path) -> None:
    born = node_born("x-1", agent="c:2", pool="p.2", kind="inference", gpus=3)
    born = born.model_copy(update={"speed_factor": 1 / 3})
    _, *words = shlex.split(command(born))
    ran = tidegate.does(*words, "--reason", "new", "--log", log)
    assert ran.out.startswith("x-1, spoken for by c:2: accepted in p.2 (inference), with at most 3")
    assert "is asked who it is" in ran.err
    (asked,) = said(log)
    assert asked.role == "operator"
    assert asked.args == AcceptNode(
        agent="c:2", node="x-1", pool="p.2", pool_kind="inference", gpu_count=3, speed_factor=1 / 3
    )


def test_a_node_or_all_of_an_agent_are_accepted(tidegate: Run, log: Path) -> None:
    as_edge = ("--pool", "edge", "--kind", "edge", "--gpus", "2", "--log", log)
    tidegate.does("node", "accept", "e9", *as_edge)
    tidegate.does("node", "accept", "e8", "--every-node", *as_edge)
    asked = [one.args for one in said(log)]
    assert [(one.agent, one.node) for one in asked if isinstance(one, AcceptNode)] == [
        ("e9", "e9"),
        ("e8", None),
    ]
    both = tidegate.refuses("node", "accept", "e9", "--agent", "a", "--every-node", *as_edge)
    assert "--agent: with --every-node" in both
    assert "was not accepted" in tidegate.refuses("node", "refuse", "e9", "--log", log)
    ran = tidegate("node", "accept", "n0", "--pool", "training", "--kind", "edge", "--gpus", "2",
                   "--dry-run", "--log", log)  # fmt: skip
    assert ran.code == 1
    assert "agent: is n0, but n0 is agent-training's" in ran.err


def test_what_stands_is_listed_with_the_nodes_and_can_be_taken_back(
    tidegate: Run, tmp_path: Path
) -> None:
    told, path = tell(), tmp_path / "run.db"
    args = AcceptNode(
        agent="e9", node="e9", pool="edge", pool_kind="edge", gpu_count=2, speed_factor=0.4
    )
    told.feed(request_of(told.now_s, args, "r1", reason="a new shop"))
    told.write(path, online=False)
    shown = tidegate.does("nodes", "--log", path).out
    assert "Accepted: e9 in edge (edge), at most 2 GPUs of speed 0.4, by " in shown
    assert "a new shop; `tidegate node refuse e9`" in " ".join(shown.split())
    (one,) = tidegate.tells("nodes", "--log", path)["accepted"].values()
    assert (one["agent"], one["node"], one["pool"], one["gpu_count"]) == ("e9", "e9", "edge", 2)
    assert "e9" in tidegate.does("audit", "--log", path).out
    tidegate.does("node", "refuse", "e9", "--log", path)
    assert [one.args for one in said(path)] == [RefuseNode(node="e9")]
