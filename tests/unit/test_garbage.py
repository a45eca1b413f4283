"""Cycles are looked for where nobody waits, and only if there is something to look through."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from scheduler import garbage


class _Ring:
    """Refers to itself: only a look for cycles ends it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    garbage.put_off()
    yield
    gc.set_threshold(*before)


def many() -> list[list[int]]:
    return [[number] for number in range(60_000)]


def test_a_plan_s_records_are_not_looked_through_while_they_are_made() -> None:
    ring = weakref.ref(_Ring())
    kept = many()
    assert ring() is not None, len(kept)


def test_between_ticks_cycles_are_found_once_there_is_enough_to_look_through() -> None:
    ring = weakref.ref(_Ring())
    garbage.look()
    assert ring() is not None
    kept = many()
    garbage.look()
    assert ring() is None, len(kept)


def test_old_cycles_are_found_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_WORTH", 100)
    ring = _Ring()
    gc.collect(0)
    gc.collect(1)  # it is among the oldest now
    old = weakref.ref(ring)
    del ring
    kept, looks = [], 0
    while old() is not None:
        kept.append([[number] for number in range(200)])
        garbage.look()
        looks += 1
        assert looks < 1000
    assert looks > 20  # the older they are, the more rarely
