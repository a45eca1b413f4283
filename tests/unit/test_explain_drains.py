"""Why a job lost its GPUs to a drain: who asked for it, and for what reason."""

from typing import Any

from explain.history import history
from explain.story import Story
from schemas.journal import NO_DIGEST, JournalEntry, chain

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
        entry(3.0, "TimePassed", {}, ["JobExplained", gains], ["GangScaling", placed("n1", "n2")]),
        entry(4.0, "TimePassed", {}, ["GangRunning", {"job": "j0"}], ["TargetDropped", TARGET]),
        entry(5.0, "TimePassed", {}, ["GangScaling", placed("n0", "n1")]),
        entry(6.0, "Requested", {"request": request}, ["DrainEnded", over]),
        entry(7.0, "TimePassed", {}, ["TargetDropped", TARGET], ["GangScaling", placed("n1")]),
    ):
        story.take(one)
    scaled = [line.detail for line in history(story) if line.what in ("scaled", "re-placed")]
    assert scaled == ["2 → 2 GPUs; n0 is drained by ann", "2 → 2 GPUs", "2 → 1 GPUs"]
