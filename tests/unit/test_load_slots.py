"""What owners need is remembered by slots, whose length a leader's settings give."""

from scheduler.core.settings import Settings
from scheduler.core.stimuli import LeaderStarted
from scheduler.relevance import stimulus_of
from tests.builders import Cell, load, node_born


def heard(cell: Cell, *needs: int, every_s: float) -> list[float | None]:
    for needed in needs:
        cell.now_s += every_s
        cell.feed(load(needed))
    return cell.state.lenders["serve"].history


def test_slots_are_as_long_as_the_settings_say() -> None:
    usual, short = Cell(), Cell(settings=Settings(load_slot_s=10.0))
    for cell in (usual, short):
        cell.feed(node_born(kind="inference", pool="serve"))
    assert heard(usual, 3, 1, 2, every_s=10.0) == [3.0]
    assert heard(short, 3, 1, 2, every_s=10.0) == [3.0, 1.0, 2.0]


def test_slots_of_another_length_begin_anew() -> None:
    cell = Cell()
    cell.feed(node_born(kind="inference", pool="serve"))
    assert heard(cell, 3, 4, every_s=300.0) == [3.0, 4.0]
    same = Settings().to_dict()
    cell.feed(LeaderStarted("b", 2, "scripted", same))
    assert cell.state.lenders["serve"].history == [3.0, 4.0]
    cell.feed(LeaderStarted("c", 3, "scripted", same | {"load_slot_s": 10.0}))
    assert cell.state.lenders["serve"].history == []
    assert heard(cell, 1, 2, every_s=10.0) == [1.0, 2.0]


def test_an_owner_that_says_the_same_for_hours_is_heard_whatever_slots_last() -> None:
    cell = Cell(settings=Settings(load_slot_s=21_600.0))
    cell.feed(node_born(kind="inference", pool="serve"))
    told = 0
    for _ in range(120):
        cell.now_s += 60.0
        if (stimulus := stimulus_of(cell.state, load(2), cell.now_s)) is not None:
            told += 1
            cell.feed(stimulus)
        at_s = cell.state.lenders["serve"].at_s
        assert at_s is not None
        assert cell.now_s - at_s <= 300.0
    assert told <= 25  # and it is not told of every minute
