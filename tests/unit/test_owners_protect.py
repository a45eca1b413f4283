"""PROTECT: every state with every happening, and what a count of needed GPUs makes of them."""

from itertools import product
from typing import get_args

import pytest

from runtime.owners.protect import Gpu, Happening, Protection, ProtectTimes

TIMES = ProtectTimes()
NOW_S = 1_000.0

FREE = Gpu()
RUN = Gpu("run", 2)
KEPT = Gpu("protect", 2, NOW_S + 5)
OVER = Gpu("protect", 2, NOW_S)

#: What follows, for each state that is there and each thing that happens.
TABLE: dict[tuple[Gpu, Happening], Gpu] = {
    (FREE, "needed"): Gpu("run", 0),
    (FREE, "idle"): FREE,
    (FREE, "returned"): Gpu("protect", 0, NOW_S + 30),
    (FREE, "left"): FREE,
    (FREE, "time"): FREE,
    (RUN, "needed"): RUN,
    (RUN, "idle"): Gpu("protect", 2, NOW_S + 60),
    (RUN, "returned"): RUN,
    (RUN, "left"): FREE,
    (RUN, "time"): RUN,
    (KEPT, "needed"): Gpu("run", 3),
    (KEPT, "idle"): KEPT,
    (KEPT, "returned"): KEPT,
    (KEPT, "left"): FREE,
    (KEPT, "time"): KEPT,
    # At its very end a protection is over, and its hits are forgotten.
    (OVER, "needed"): Gpu("run", 0),
    (OVER, "idle"): FREE,
    (OVER, "returned"): Gpu("protect", 0, NOW_S + 30),
    (OVER, "left"): FREE,
    (OVER, "time"): FREE,
}


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(product((FREE, RUN, KEPT, OVER), get_args(Happening)))


@pytest.mark.parametrize(("before", "what"), TABLE, ids=str)
def test_transition(before: Gpu, what: Happening) -> None:
    assert before.after(what, NOW_S, TIMES) == TABLE[before, what]


@pytest.mark.parametrize(("before", "what"), TABLE, ids=str)
def test_without_protection_nothing_is_kept(before: Gpu, what: Happening) -> None:
    after = before.after(what, NOW_S, ProtectTimes(multiplier=0.0))
    assert after.state != "protect" or after == before


@pytest.mark.parametrize(
    ("hits", "kept_s"), [(0, 30), (1, 45), (2, 60), (5, 105), (6, 120), (7, 120), (10**9, 120)]
)
def test_who_comes_back_soon_is_waited_for_longer_up_to_a_bound(hits: int, kept_s: float) -> None:
    assert TIMES.kept_s(hits) == kept_s
    assert ProtectTimes(multiplier=2.0).kept_s(hits) == 2 * kept_s


@pytest.mark.parametrize("gpu", [FREE, RUN, KEPT, OVER], ids=str)
def test_rows_bring_back_what_was_written(gpu: Gpu) -> None:
    assert Gpu.from_row(gpu.to_row()) == gpu


@pytest.mark.parametrize(
    "row", [[], ["run"], ["lent", 0, 0.0], ["run", "1", 0.0], ["run", 1, None]]
)
def test_other_rows_are_refused(row: list[object]) -> None:
    with pytest.raises(ValueError, match="not the state of a GPU"):
        Gpu.from_row(row)


@pytest.mark.parametrize("name", ["base_s", "bonus_s", "max_s", "multiplier"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_times_name_the_field_that_is_wrong(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        ProtectTimes(**{name: value})


def states(protection: Protection) -> list[str]:
    return [gpu.state for node in protection.nodes for gpu in protection.gpus(node)]


def test_need_that_falls_is_kept_until_its_time_is_over() -> None:
    protection = Protection({"a": 2, "b": 2}, TIMES)
    assert protection.need(3, ["a", "b"], 0.0) == 3
    assert states(protection) == ["run", "run", "run", "free"]
    assert protection.need(1, ["a", "b"], 10.0) == 3
    assert states(protection) == ["run", "protect", "protect", "free"]
    assert protection.next_end_s() == 40.0
    assert protection.need(1, ["a", "b"], 39.9) == 3
    assert protection.need(1, ["a", "b"], 40.0) == 1
    assert protection.next_end_s() is None


def test_a_gpu_that_is_needed_again_and_again_is_kept_longer() -> None:
    protection = Protection({"a": 1}, TIMES)
    now_s, kept = 0.0, []
    for _ in range(8):
        protection.need(1, ["a"], now_s)
        protection.need(0, ["a"], now_s)
        kept.append((protection.next_end_s() or 0.0) - now_s)
        now_s += 29.0
    assert kept == [30, 45, 60, 75, 90, 105, 120, 120]


def test_the_kept_gpu_with_most_hits_is_needed_first() -> None:
    protection = Protection({"a": 3}, TIMES)
    protection.from_row("a", [["protect", 0, 50.0], ["protect", 3, 50.0], ["free", 0, 0.0]])
    protection.need(1, ["a"], 0.0)
    assert protection.gpus("a") == (Gpu("protect", 0, 50.0), Gpu("run", 4), FREE)


def test_more_than_there_is_stays_more() -> None:
    protection = Protection({"a": 2}, TIMES)
    assert protection.need(7, ["a"], 0.0) == 7
    assert protection.need(0, ["elsewhere"], 0.0) == 0


def test_what_comes_back_is_kept() -> None:
    protection = Protection({"a": 2, "b": 1}, TIMES)
    protection.left("a")
    assert protection.need(3, ["a", "b"], 0.0) == 3
    assert states(protection) == ["free", "free", "run"], "what is away serves nobody"
    protection.returned("a", 10.0, kept=True)
    assert protection.need(0, ["a", "b"], 39.0) == 3
    protection.returned("a", 39.0, kept=True)
    assert protection.need(0, ["a", "b"], 40.0) == 1, "told twice is not kept twice"


def test_leaving_moves_what_is_needed_to_free_gpus() -> None:
    protection = Protection({"a": 2, "b": 2}, TIMES)
    protection.need(2, ["a", "b"], 0.0)
    protection.need(1, ["a", "b"], 1.0)
    assert protection.leave("a", ["a", "b"], 2.0)
    assert states(protection) == ["free", "free", "run", "protect"]
    assert protection.need(1, ["a", "b"], 2.0) == 2


def test_nobody_leaves_while_what_is_kept_has_no_other_place() -> None:
    protection = Protection({"a": 2, "b": 1}, TIMES)
    protection.need(2, ["a", "b"], 0.0)
    assert not protection.leave("a", ["a", "b"], 1.0)
    protection.need(1, ["a", "b"], 1.0)
    assert not protection.leave("a", ["a", "b"], 30.9)
    assert states(protection) == ["run", "protect", "free"]
    assert protection.leave("a", ["a", "b"], 31.0), "the protection is over"


def test_a_clock_set_back_protects_for_no_longer_than_the_most() -> None:
    protection = Protection({"a": 1}, TIMES)
    protection.from_row("a", [["protect", 0, 1e12]])
    protection.need(0, ["a"], 100.0)
    assert protection.next_end_s() == 220.0


def test_rows_of_another_machine_are_cut_and_filled() -> None:
    protection = Protection({"a": 2}, TIMES)
    protection.from_row("a", [["run", 0, 0.0]])
    assert states(protection) == ["run", "free"]
    protection.from_row("a", [["run", 0, 0.0]] * 5)
    assert protection.to_row("a") == [["run", 0, 0.0]] * 2
