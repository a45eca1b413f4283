"""The law of gangs that were given up finds who runs on, and accuses no gang that left before."""

from typing import Any

import orjson
import pytest

from bus.contract import Record
from schemas.topics import JOURNAL
from tests.chaos.owners import Effect
from tests.whole.laws_gangs import given_up

Fact = tuple[str, dict[str, Any]]


def gang(name: str, epoch: int, *gpus: int, node: str = "n") -> Fact:
    return name, {"job": "j", "epoch": epoch, "allocation": {node: list(gpus)}}


def of_node(name: str, *gpus: int, **more: Any) -> Fact:
    return name, {"job": "j", "node": "n", "gpus": list(gpus), **more}


START, GONE = gang("GangStarting", 1, 0, 1), of_node("GpusReleased", 0, 1)
STRAY = of_node("StrayFound", 0, 1, epoch=1)
AGAIN = gang("GangStarting", 2, 0, node="m")


def found(journal: list[list[Fact]], ended: int | None, epoch: int = 1) -> list[str]:
    """Hold a gang that was begun by the first entry to the law; it ended before the numbered."""
    records = []
    for number, facts in enumerate(journal):
        written = {"number": number, "at_s": 0.0, "decision": {"facts": facts}}
        written["stimulus"] = {"kind": "TimePassed", "cause": ["", -1, 0, 0.0], "data": {}}
        value = orjson.dumps({"data": written})
        records.append(Record(JOURNAL.name, 0, "", value, {}, 0.0))
    effects = [Effect("a", "start", 0.0, "j", epoch, "n", (0, 1), 1)]
    if ended is not None:
        effects.append(Effect("a", "ended", 0.0, "j", epoch, "n", (0, 1), ended))
    return list(given_up(records, effects))


@pytest.mark.parametrize("between", [0, 3])
def test_who_has_left_before_that_is_known_was_not_given_up(between: int) -> None:
    others: list[list[Fact]] = [[] for _ in range(between)]
    assert found([[START], *others, [GONE], [AGAIN]], 1 + between) == []
    assert found([[START], *others, [GONE, AGAIN]], 1) == []


def test_whoever_runs_on_has_gpus_that_are_free() -> None:
    assert "given up by entry 1, ended before entry 3" in found([[START], [GONE], []], 3)[0]
    assert "given up by entry 1, ended before entry inf" in found([[START], [GONE], []], None)[0]


def test_nobody_has_begun_what_runs() -> None:
    assert "given up by entry -1" in found([[], []], 2)[0]


def test_who_is_known_to_run_on_was_not_given_up() -> None:
    assert found([[START], [GONE, STRAY], [], [GONE]], 3) == []
    assert "given up by entry 2" in found([[START], [GONE, STRAY], [GONE]], 3)[0]


def test_gpus_of_a_lost_node_are_free_once_it_has_joined_again_and_nobody_is_known_there() -> None:
    lost, back = ("NodeLost", {"node": "n"}), ("NodeJoined", {"node": "n"})
    assert found([[START], [GONE, lost], [back, STRAY], [GONE]], 3) == []
    assert "given up by entry 1" in found([[START], [GONE, lost], [back], [STRAY]], 3)[0]
    assert "given up by entry 1" in found([[START], [GONE, lost], []], 3)[0]
    assert "given up by entry 3" in found([[START], [GONE, lost], [back, STRAY], [GONE]], 4)[0]


def test_a_gang_that_is_known_to_run_on_is_given_up_if_another_is_begun() -> None:
    journal = [[START], [GONE, STRAY], [AGAIN], [GONE]]
    assert "epoch 2 is begun by entry 2 while it runs" in found(journal, 3)[0]
    assert found(journal, 2) == []


def test_a_gang_that_changes_its_size_keeps_what_it_leaves_until_it_has_left() -> None:
    assert found([[START], [gang("GangScaling", 2, 0)], [GONE]], 2) == []
