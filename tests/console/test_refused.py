"""What `nodes` and `why` say of commands that agents refused or do not answer, and of drains."""

import asyncio
from pathlib import Path

import pytest

from console.panel import plain_panel
from explain.answer import Answer
from explain.reading import read_refusals
from explain.refusals import RECENT_S
from scheduler.core.stimuli import TimePassed
from schemas.requests import CordonNode, DrainNode, VerbData
from tests.builders import request_of
from tests.console.conftest import Run
from tests.console.stories import Teller
from tests.unit.test_explain import on_a_bus, ordered, reading_of, story_of


def shown(tidegate: Run, told: Teller, path: Path) -> str:
    told.write(path)
    return " ".join(tidegate.does("nodes", "--log", path).out.split())


def why_of(told: Teller) -> str:
    answer = Answer.of(reading_of(told), story_of(told, "ran"))
    assert answer is not None
    return plain_panel(answer, 400)


def test_a_refused_start_names_its_agent_and_why(tidegate: Run, tmp_path: Path) -> None:
    told = ordered()
    assert "refused" not in why_of(told)
    told.acks("refused")
    said = "Agent agent-training refused StartGang of ran at d0 06:00: test."
    assert said in why_of(told)
    path = tmp_path / "run.db"
    assert said in shown(tidegate, told, path)
    (row,) = tidegate.tells("nodes", "--log", path)["refusals"]
    assert (row["agent"], row["kind"], row["reason"]) == ("agent-training", "StartGang", "test")


def test_an_agent_that_does_not_answer_is_named_with_where_it_says_why(
    tidegate: Run, tmp_path: Path
) -> None:
    told = ordered()
    assert "answer" not in shown(tidegate, told, tmp_path / "just-sent.db")
    told.now_s += 70.0
    told.feed(TimePassed())
    open_ = shown(tidegate, told, tmp_path / "open.db")
    assert "has not answered StartGang of ran, sent 2 times, last at d0 06:01; what no" in open_
    told.now_s += 700.0
    told.feed(TimePassed())
    late = shown(tidegate, told, tmp_path / "late.db")
    said = "Agent agent-training never answered StartGang of ran, given up at d0 06:12"
    assert said in late
    assert "its log and `tidegate doctor` on its machine say so" in late
    assert said in why_of(told)


@pytest.mark.parametrize(("later_s", "count"), [(60.0, 1), (RECENT_S + 60.0, 0)])
def test_what_was_refused_long_ago_is_not_told(later_s: float, count: int) -> None:
    told = ordered()
    told.acks("refused")
    told.acks()
    told.now_s += later_s
    told.feed(TimePassed())

    async def found() -> int:
        return len(await read_refusals(await on_a_bus(told), reading_of(told)))

    assert asyncio.run(found()) == count


def asks(told: Teller, args: VerbData, name: str, reason: str) -> None:
    told.feed(request_of(told.now_s, args, name, reason=reason))


def test_a_drain_says_its_own_reason_beside_that_of_the_cordon(
    tidegate: Run, tmp_path: Path
) -> None:
    told, path = ordered(), tmp_path / "run.db"
    told.up("ran")
    asks(told, CordonNode(node="n0"), "r0", "its fan")
    asks(told, DrainNode(node="n0", by_s=told.now_s + 900.0), "r1", "a new kernel")
    told.write(path)
    document = tidegate.tells("nodes", "--log", path)
    assert document["drained_because"] == {"n0": "a new kernel"}
    said = tidegate.does("nodes", "--log", path).out
    for part in ("a new kernel", "cordoned by ann", "its fan"):
        assert part in " ".join(said.split()), said


def test_a_drain_that_cordoned_its_node_says_why_once(tidegate: Run, tmp_path: Path) -> None:
    told, path = ordered(), tmp_path / "run.db"
    told.up("ran")
    asks(told, DrainNode(node="n0", by_s=told.now_s + 900.0), "r1", "a new kernel")
    told.write(path)
    said = " ".join(tidegate.does("nodes", "--log", path).out.split())
    assert said.count("kernel") == 1
    assert "cordoned" not in said
