"""Why a job lost its GPUs to a drain: who asked for it, and for what reason."""

from typing import Any

import pytest

from explain.answer import Answer, Reading
from explain.documents import why_document
from explain.history import history
from explain.standing import standing_of
from explain.story import Story
from scheduler.policies.interface import Plan, Target
from schemas.events import WorkerFailed
from schemas.journal import NO_DIGEST, JournalEntry, chain, decode_entry
from schemas.requests import CordonNode, DrainNode, UncordonNode
from tests.asked import ask
from tests.builders import Cell, node_born, request_of, submitted
from tests.console.stories import Teller

REASON = {
    "subject": "j0",
    "verb": "preempts",
    "rule": "operator.drain",
    "figures": [],
    "lost_to": [],
    "needs": [],
}
TARGET = {"job": "j0", "reason": "given up"}


def entry(at_s: float, kind: str, data: dict[str, Any], *facts: list[Any]) -> JournalEntry:
    stimulus = {"kind": kind, "at_s": at_s, "cause": ["", -1, -1, -1.0], "data": data}
    return chain(NO_DIGEST, 0, at_s, stimulus, {"facts": list(facts)}, policy="fifo")


def test_a_job_that_lost_its_gpus_to_a_drain_says_who_asked_and_why() -> None:
    story = Story("j0")
    request = {"subject": "ann", "reason": "new kernel", "args": {"verb": "node.drain"}}
    started = {"job": "j0", "allocation": {"n0": [0]}, "pool": "train", "step": 0}
    drain = {"node": "n0", "request": "r1", "by": "ann", "by_s": 900.0, "force": False}
    for one in (
        entry(1.0, "TimePassed", {}, ["GangStarting", started]),
        entry(2.0, "Requested", {"request": request}, ["DrainStarted", drain]),
        entry(
            3.0,
            "TimePassed",
            {},
            ["JobExplained", {"job": "j0", "reason": REASON}],
            ["GangCheckpointing", {"job": "j0", "reason": "preempted"}],
        ),
    ):
        story.take(one)
    (line,) = [line for line in history(story) if line.what == "told to leave"]
    assert line.detail == "preempted: n0 is drained by ann: new kernel"
    assert any(word in b'"DrainStarted"' for word in story.wanted), "it reads the drain's entry"


def test_a_drain_that_is_over_moves_no_job_any_more() -> None:
    """Its node was empty early, and is open again, long before the drain's time."""
    told = Teller()
    for name in ("n0", "n1"):
        told.feed(node_born(name))
    told.feed(submitted("a", gpus_min=1))

    def goes_to(name: str) -> None:
        told.adopt(Plan({"a": Target("train", ((name, 1),))}))
        told.acks()
        told.wait(30.0, 30.0)
        told.start_workers("a")

    goes_to("n0")
    drain = DrainNode(node="n0", by_s=told.now_s + 8 * 3600.0)
    told.feed(request_of(told.now_s, drain, "r1", subject="olga", reason="its fan"))
    told.wait(60.0)
    told.off("a", "preempted", 100)
    told.wait(60.0)
    assert told.state.standing.drains == {}
    told.feed(request_of(told.now_s, UncordonNode(node="n0"), "r2", subject="olga"))
    goes_to("n0")
    goes_to("n1")
    story = Story("a")
    for _, message in told.messages:
        one = decode_entry(message.value or b"")
        assert isinstance(one, JournalEntry)
        if any(word in (message.value or b"") for word in story.wanted):
            story.take(one)
    left, moved = (history(story)[place] for place in (-3, -1))
    assert "n0 is drained by olga: its fan" in left.detail
    assert (moved.what, moved.detail) == ("re-placed", "1 GPU on n1")


def test_a_job_that_waits_since_its_node_was_drained_says_so_before_all_else() -> None:
    cell, story = Cell(now_s=1000.0), Story("j0")
    cell.feed(node_born("n0"))
    cell.feed(submitted("j0", gpus_min=1))

    def asked() -> list[str]:
        reading = Reading("default", cell.state, 0.0, 1000.0, 1000.0)
        answer = Answer(reading, story, cell.job("j0"), tuple(history(story)))
        return list(why_document(answer).asked)

    request = {"subject": "ann", "reason": "new kernel", "args": {"verb": "node.drain"}}
    drain = {"node": "n0", "request": "r1", "by": "ann", "by_s": 900.0, "force": False}
    waits = {"job": "j0", "reason": REASON | {"verb": "waits", "rule": "market.outbid"}}
    told = ["told to leave its GPUs at d0 00:03, since n0 is drained by ann: new kernel"]
    for one, expected in (
        (entry(60.0, "TimePassed", {}, ["GangStarting", placed("n0")]), []),
        (entry(120.0, "Requested", {"request": request}, ["DrainStarted", drain]), []),
        (
            entry(
                180.0,
                "TimePassed",
                {},
                ["JobExplained", {"job": "j0", "reason": REASON}],
                ["GangCheckpointing", {"job": "j0", "reason": "preempted"}],
            ),
            told,
        ),
        (
            entry(
                240.0,
                "TimePassed",
                {},
                ["JobQueued", {"job": "j0", "reason": "preempted", "step": 5}],
                ["JobExplained", waits],
            ),
            told,
        ),
        (entry(300.0, "TimePassed", {}, ["GangStarting", placed("n1")]), []),
    ):
        story.take(one)
        assert asked() == expected, one.at_s


def onto(*nodes: str) -> dict[str, Any]:
    return {"job": "j0", "epoch": 2, "allocation": {node: [0] for node in nodes}}


def placed(*nodes: str) -> dict[str, Any]:
    return {"job": "j0", "allocation": {node: [0] for node in nodes}, "pool": "train", "step": 0}


def test_a_job_that_the_policy_moves_from_a_drained_node_says_so_whatever_the_policy_says() -> None:
    request = {"subject": "ann", "reason": "", "args": {"verb": "node.drain"}}
    drain = {"node": "n0", "request": "r1", "by": "ann", "by_s": 900.0, "force": False}
    gains = {"job": "j0", "reason": REASON | {"verb": "scales", "rule": "market.gain"}}
    over = {"node": "n0", "outcome": "called_off"}
    story = Story("j0")
    for one in (
        entry(1.0, "TimePassed", {}, ["GangStarting", placed("n0", "n1")]),
        entry(2.0, "Requested", {"request": request}, ["DrainStarted", drain]),
        entry(3.0, "TimePassed", {}, ["JobExplained", gains], ["GangScaling", onto("n1", "n2")]),
        entry(4.0, "TimePassed", {}, ["GangRunning", {"job": "j0"}], ["TargetDropped", TARGET]),
        entry(5.0, "TimePassed", {}, ["GangScaling", onto("n0", "n1")]),
        entry(6.0, "Requested", {"request": request}, ["DrainEnded", over]),
        entry(7.0, "TimePassed", {}, ["TargetDropped", TARGET], ["GangScaling", onto("n1")]),
    ):
        story.take(one)
    scaled = [line.detail for line in history(story) if line.what in ("scaled", "re-placed")]
    assert scaled == [
        "2 GPUs on n1, n2; n0 is drained by ann",
        "2 GPUs on n0, n1",
        "2 → 1 GPU",
    ]


def test_a_job_that_was_moved_for_a_drain_says_so_beside_what_the_policy_says() -> None:
    """What a policy says of a move is what the job gains; that alone would not be the cause."""
    cell, story = Cell(now_s=1000.0), Story("j0")
    cell.feed(node_born("n0"))
    cell.feed(submitted("j0", gpus_min=1))
    request = {"subject": "ann", "reason": "new kernel", "args": {"verb": "node.drain"}}
    drain = {"node": "n0", "request": "r1", "by": "ann", "by_s": 900.0, "force": False}
    gains = {"job": "j0", "reason": REASON | {"verb": "migrates", "rule": "market.price"}}
    for one in (
        entry(60.0, "TimePassed", {}, ["GangStarting", placed("n0")]),
        entry(120.0, "Requested", {"request": request}, ["DrainStarted", drain]),
        entry(180.0, "TimePassed", {}, ["JobExplained", gains], ["GangScaling", onto("n1")]),
        entry(240.0, "TimePassed", {}, ["GangRunning", {"job": "j0"}]),
    ):
        story.take(one)
    reading = Reading("default", cell.state, 0.0, 1000.0, 1000.0)
    answer = Answer(reading, story, cell.job("j0"), tuple(history(story)))
    assert answer.asked == ["moved at d0 00:03, since n0 is drained by ann: new kernel"]
    story.take(entry(300.0, "TimePassed", {}, ["GangScaling", onto("n1", "n2")]))
    assert answer.asked == [], "another change since"


def test_a_job_whose_only_node_is_cordoned_says_so_and_how_that_ends() -> None:
    cell = Cell(now_s=1000.0)
    cell.feed(node_born("n0"))
    cell.feed(node_born("n1"))
    cell.feed(submitted("j0", gpus_min=4))
    said = standing_of(cell.state, cell.job("j0"), 0.0)
    assert said == []
    ask(cell, CordonNode(node="n0"), reason="the fan is loud")
    assert standing_of(cell.state, cell.job("j0"), 0.0) == [], "n1 has room for it"
    ask(cell, CordonNode(node="n1"))
    said = standing_of(cell.state, cell.job("j0"), 0.0)
    assert [one.partition(",")[0] for one in said] == ["node n0", "node n1"]
    assert "cordoned by ann since d0 00:16: the fan is loud" in said[0]
    assert "`tidegate node uncordon n0` opens it" in said[0]


@pytest.mark.parametrize("drained", [True, False])
def test_a_gang_that_fails_as_it_leaves_says_of_what(drained: bool) -> None:
    told = Teller()
    for name in ("n0", "n1"):
        told.feed(node_born(name))
    told.feed(submitted("a", gpus_min=2, gpus_max=2))
    told.adopt(Plan({"a": Target("train", (("n0", 1), ("n1", 1)))}))
    told.acks()
    told.wait(30.0, 30.0)
    told.start_workers("a")
    if drained:
        drain = DrainNode(node="n0", by_s=told.now_s + 60.0)
        told.feed(request_of(told.now_s, drain, "r1", subject="olga", reason="its fan"))
        told.wait(60.0)
    else:
        told.adopt(Plan({"a": None}))
    error, epoch = "No module named 'train'", told.job("a").epoch
    for name, what in (("n0", "told to leave"), ("n1", "failed for good")):
        gpus = told.job("a").allocation[name]
        told.feed(
            WorkerFailed(
                job="a", epoch=epoch, node=name, gpus=gpus, error=error, retriable=False, step=0
            )
        )
        story = Story("a")
        for _, message in told.messages:
            one = decode_entry(message.value or b"")
            assert isinstance(one, JournalEntry)
            story.take(one)
        last = history(story)[-1]
        assert (last.what, last.detail) == (what, f"cannot be run: {error}")
