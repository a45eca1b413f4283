"""The owner: away when confirmed, rolled back when not, brought back whatever happens."""

from pathlib import Path

import pytest

from runtime.core import NodeDrained, NodeHandedBack
from runtime.owners import Retry
from tests.lending import Scene

DRAINED, BACK = NodeDrained("s1"), NodeHandedBack("s1")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def lent(scene: Scene) -> Scene:
    assert scene.drain() is None
    assert scene.ends("drain") == DRAINED
    scene.asked()
    return scene


def test_drained_and_back(scene: Scene) -> None:
    assert scene.owner.next_due_s() == 0.0, "the first advance says what is lent"
    assert scene.at(0.0) is None
    assert scene.owner.next_due_s() is None
    scene.owner.drain("s1", 1.0)
    assert scene.owner.next_due_s() == 1.0
    assert scene.at(1.0) is None
    assert scene.asked() == ["drain s1"]
    assert scene.ends("drain") == DRAINED
    scene.owner.hand_back("s1", 2.0)
    assert scene.asked() == ["hand_back s1"]
    assert scene.at(3.0) is None
    assert scene.ends("hand_back") == BACK
    assert scene.owner.next_due_s() is None
    assert scene.owner.problems() == []
    assert (scene.owner.counters.drains, scene.owner.counters.hand_backs) == (1, 1)


def test_orders_may_be_repeated(scene: Scene) -> None:
    for _ in range(2):
        scene.drain()
    assert scene.asked() == ["drain s1"]
    assert scene.ends("drain") == DRAINED
    assert scene.drain() == DRAINED
    for _ in range(2):
        scene.hand_back()
    assert scene.asked() == ["hand_back s1"]
    assert scene.ends("hand_back") == BACK
    assert scene.hand_back() == BACK
    assert scene.asked() == []


def test_a_drain_that_fails_is_rolled_back_then_tried_again(scene: Scene) -> None:
    scene.drain()
    assert scene.ends("drain", "it hangs") is None
    assert scene.asked() == ["drain s1", "hand_back s1"]
    assert scene.owner.problems() == ["node s1: its owner does not leave (try 1): it hangs"]
    assert scene.ends("hand_back", now_s=10.0) is None
    assert scene.owner.next_due_s() == 15.0
    assert scene.at(14.9) is None
    assert scene.asked() == []
    scene.at(15.0)
    assert scene.asked() == ["drain s1"]
    assert scene.ends("drain", now_s=16.0) == DRAINED
    assert scene.owner.problems() == []
    counters = scene.owner.counters
    assert (counters.drains, counters.drain_failures, counters.rollbacks) == (1, 1, 1)


def test_after_three_tries_the_owner_keeps_its_node_until_the_next_order(scene: Scene) -> None:
    scene.owner.drain("s1", 0.0)
    now_s = 0.0
    for _ in range(3):
        scene.at(now_s)
        scene.ends("drain", "no", now_s)
        scene.ends("hand_back", now_s=now_s)
        now_s = scene.owner.next_due_s() or now_s
    assert scene.asked() == ["drain s1", "hand_back s1"] * 3
    assert scene.owner.next_due_s() is None
    assert scene.owner.problems() == [
        "node s1: its owner does not leave (try 3): no; given up until the next order"
    ]
    assert scene.owner.counters.drains_given_up == 1

    assert scene.hand_back("s1", now_s) == BACK, "it has it already"
    assert scene.asked() == []
    assert scene.owner.problems() == []
    scene.drain("s1", now_s)
    assert scene.asked() == ["drain s1"]


def test_a_hand_back_calls_a_drain_off(scene: Scene) -> None:
    scene.drain()
    scene.owner.hand_back("s1", 1.0)
    assert scene.asked() == ["drain s1", "hand_back s1"]
    assert scene.ends("drain") is None, "what was called off is not reported"
    assert scene.ends("hand_back") == BACK


def test_a_hand_back_called_while_rolling_back_is_reported_once_it_is_done(scene: Scene) -> None:
    scene.drain()
    scene.ends("drain", "no")
    assert scene.hand_back("s1", 1.0) is None
    assert scene.ends("hand_back", now_s=2.0) == BACK
    assert scene.at(1_000.0) is None
    assert scene.asked() == ["drain s1", "hand_back s1"]


def test_a_hand_back_that_fails_is_repeated_for_ever(lent: Scene) -> None:
    lent.owner.hand_back("s1", 0.0)
    pauses, now_s = [], 0.0
    for _ in range(30):
        assert lent.ends("hand_back", "port in use", now_s) is None
        due_s = lent.owner.next_due_s() or 0.0
        pauses.append(due_s - now_s)
        now_s = due_s
        lent.at(now_s)
    assert pauses == [5, 10, *[20] * 28]
    assert lent.asked() == ["hand_back s1"] * 31
    assert lent.owner.problems() == ["node s1: its owner cannot be brought back: port in use"]
    assert lent.owner.counters.hand_back_failures == 30
    assert lent.ends("hand_back", now_s=now_s) == BACK
    assert lent.owner.problems() == []


def test_what_is_due_does_not_wait_for_a_clock_that_was_set_back(lent: Scene) -> None:
    """Else an owner whose server did not start at once has it back hours later."""
    lent.hand_back(now_s=7200.0)
    assert lent.asked() == ["hand_back s1"]
    lent.ends("hand_back", "no room", now_s=7201.0)
    lent.at(1.0)
    assert lent.owner.next_due_s() == 6.0
    lent.at(6.0)
    assert lent.asked() == ["hand_back s1"]
    assert lent.ends("hand_back", now_s=7.0) == BACK
    assert lent.owner.next_due_s() is None


def test_a_rollback_that_fails_is_repeated_before_any_drain(scene: Scene) -> None:
    scene.drain()
    scene.ends("drain", "no")
    scene.ends("hand_back", "no either")
    assert len(scene.owner.problems()) == 2
    scene.at(5.0)
    assert scene.asked() == ["drain s1", "hand_back s1", "hand_back s1"]
    scene.ends("hand_back", now_s=6.0)
    assert len(scene.owner.problems()) == 1


def test_a_drain_waits_for_the_hand_back_before_it(lent: Scene) -> None:
    lent.owner.hand_back("s1", 0.0)
    lent.drain("s1", 1.0)
    assert "drain s1" not in lent.asked()
    assert lent.ends("hand_back", now_s=2.0) == BACK
    lent.at(2.0)
    assert lent.asked() == ["drain s1"]
    assert lent.ends("drain") == DRAINED


# --- restarts ---


def test_a_drain_cut_short_by_a_crash_is_begun_anew_and_rolled_back_if_it_fails(
    scene: Scene,
) -> None:
    scene.drain()
    scene.begin()
    scene.drain("s1", 1.0)
    assert scene.asked() == ["drain s1"]
    scene.ends("drain", "no")
    assert scene.asked() == ["hand_back s1"]


def test_a_lent_node_is_confirmed_again_but_never_rolled_back(lent: Scene) -> None:
    lent.begin()
    lent.drain("s1", 1.0)
    for turn in range(5):
        lent.ends("drain", "no", now_s=1_000.0 * turn)
        lent.at(1_000.0 * turn + 999)
    assert lent.asked() == ["drain s1"] * 6, "training may be there"
    assert lent.owner.problems()
    assert lent.ends("drain") == DRAINED
    lent.owner.hand_back("s1", 9_000.0)
    assert lent.asked() == ["hand_back s1"]


def test_a_hand_back_cut_short_by_a_crash_ends_well(lent: Scene) -> None:
    lent.hand_back("s1", 1.0)
    lent.begin()
    lent.hand_back("s1", 2.0)
    assert lent.asked() == ["hand_back s1"]
    assert lent.ends("hand_back") == BACK


def test_a_node_that_nobody_calls_lent_any_more_goes_back(lent: Scene) -> None:
    lent.begin()
    assert lent.at(1.0) is None
    assert lent.asked() == ["hand_back s1"]
    assert lent.ends("hand_back") is None, "nobody asked"
    assert lent.owner.next_due_s() is None


def test_where_nothing_is_known_the_owner_is_brought_in_first(scene: Scene) -> None:
    scene.file.unlink()
    scene.begin()
    assert scene.owner.serving() == ()
    assert scene.hand_back("s2") is None
    assert scene.asked() == ["hand_back s1", "hand_back s2"]
    assert scene.owner.problems() == [], "so it is with every new agent"
    assert scene.ends("hand_back") is None, "nobody asked for s1"
    assert scene.owner.serving() == ("s1",)


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"nodes": {"s1": {"phase": "gone"}}}', b"\xff"])
def test_of_a_damaged_file_the_worst_is_assumed(lent: Scene, damage: bytes) -> None:
    lent.file.write_bytes(damage)
    lent.begin()
    assert "cannot be read" in lent.owner.problems()[0]
    lent.drain()
    assert sorted(lent.asked()) == ["drain s1", "hand_back s2"]
    assert "cannot be read" in lent.owner.problems()[0], "until it is clear again"
    lent.ends("drain", "no")
    assert lent.asked() == [], "perhaps training is there"


def test_no_drain_is_reported_that_is_not_written_down(scene: Scene) -> None:
    scene.drain()
    scene.file.unlink(missing_ok=True)
    scene.file.mkdir()
    assert scene.ends("drain") is None
    assert "no drain is reported" in scene.owner.problems()[0]
    assert scene.owner.next_due_s() == 1.0
    scene.file.rmdir()
    assert scene.at(1.0) == DRAINED
    assert scene.owner.problems() == []


def test_a_hand_back_is_reported_though_it_cannot_be_written_down(lent: Scene) -> None:
    """The owner had its node, and the scheduler went on calling it late."""
    lent.file.unlink()
    lent.file.mkdir()
    lent.hand_back()
    assert lent.ends("hand_back") == BACK
    assert lent.at(1.0) is None, "once"


def test_the_lender_s_problems_are_the_owner_s(scene: Scene) -> None:
    scene.lender.trouble = ["replica r on s1: it died"]
    assert scene.owner.problems() == ["replica r on s1: it died"]


@pytest.mark.parametrize("wrong", [{"first_s": 0.0}, {"max_s": 1.0}, {"drains": 0}])
def test_retries_name_what_is_wrong(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Retry(**wrong)  # type: ignore[arg-type]
