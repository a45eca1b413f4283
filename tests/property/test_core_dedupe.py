"""Each message once, whatever the order and however often it comes."""

import pytest
from hypothesis import given, strategies as st

from runtime.publisher import _BATCH
from scheduler import dedupe as module
from scheduler.dedupe import BELIEVED_S, JUMP_MAX, Dedupe, Verdict

numbers = st.integers(0, 60)
A = "/agents/a"


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), numbers), max_size=120))
def test_each_number_is_taken_once(come: list[tuple[str, int, int]]) -> None:
    dedupe = Dedupe()
    taken = [one for one in come if dedupe.take(*one, 1.0) is not Verdict.DUPLICATE]
    assert taken == list(dict.fromkeys(come)), "the first of each, in the order of coming"
    for source in ("a", "b"):
        boot = max((boot for name, boot, _ in come if name == source), default=0)
        seen = {number for name, of, number in come if (name, of) == (source, boot)}
        assert dedupe.missing(source) == (max(seen) + 1 - len(seen) if seen else 0)


@given(st.lists(st.tuples(st.integers(0, 2), numbers), min_size=1, max_size=40), numbers)
def test_what_was_taken_survives_a_snapshot(come: list[tuple[int, int]], probe: int) -> None:
    dedupe, again = Dedupe(), Dedupe()
    for boot, number in come:
        dedupe.take("a", boot, number, 1.0)
    again.load(dedupe.to_dict())
    assert again.to_dict() == dedupe.to_dict()
    assert again.boot("a") == dedupe.boot("a")
    assert again.take("a", 1, probe, 1.0) is dedupe.take("a", 1, probe, 1.0)
    assert again.take("a", 4, 0, 1.0) is Verdict.FRESH


@given(st.lists(st.integers(0, 2**53), max_size=60), st.lists(st.integers(0, 2**31), max_size=20))
def test_nothing_that_is_far_ahead_makes_a_message_old(jumps: list[int], boots: list[int]) -> None:
    dedupe = Dedupe()
    for number in jumps:
        dedupe.take(A, 5, number, 1.0)
    for boot in boots:
        dedupe.take(A, boot, 0, 1.0)
    for number in range(100):
        if number not in jumps and not (number == 0 and 5 in boots):
            assert dedupe.take(A, 5, number, 2.0) is not Verdict.DUPLICATE
    assert all(dedupe.take(A, 5, n, 2.0) is Verdict.DUPLICATE for n in (*range(100), *jumps))


def test_what_a_source_left_out_is_not_asked_for() -> None:
    dedupe = Dedupe()
    dedupe.take("a", 0, 0, 1.0)
    dedupe.take("a", 0, JUMP_MAX + 2, 1.0)
    assert (dedupe.missing("a"), dedupe.gaps) == (0, 0)
    dedupe.take("a", 0, JUMP_MAX + 5, 1.0)
    assert (dedupe.missing("a"), dedupe.gaps) == (2, 2)


def test_excused_gaps_are_not_asked_for_but_still_taken() -> None:
    dedupe = Dedupe()
    dedupe.take("a", 0, 5, 1.0)
    dedupe.excuse()
    assert dedupe.missing("a") == 0
    dedupe.take("a", 0, 8, 1.0)  # what came in between may have been taken before the restart
    assert dedupe.missing("a") == 0
    dedupe.take("a", 0, 11, 1.0)
    assert dedupe.missing("a") == 2
    assert dedupe.take("a", 0, 3, 1.0) is Verdict.LATE
    dedupe.forgive("a", 0, 10)
    assert (dedupe.missing("a"), dedupe.take("a", 0, 9, 1.0)) == (0, Verdict.LATE)


def test_the_highest_boot_is_believed_while_it_speaks() -> None:
    dedupe = Dedupe()
    dedupe.take(A, 7, 0, 1000.0)
    dedupe.take(A, 9, 0, 1001.0)
    dedupe.take(A, 7, 1, 1001.0 + BELIEVED_S)
    assert dedupe.boot(A) == 9
    dedupe.take(A, 9, 1, 1002.0)
    dedupe.take(A, 7, 2, 1002.5 + BELIEVED_S)
    assert dedupe.boot(A) == 7, "the other is silent, or never was of this source"
    dedupe.take(A, 8, 0, 0.0)
    assert dedupe.boot(A) == 8, "a later start, though its clock is lost"
    assert dedupe.boot("/agents/other") is None


def test_the_last_words_of_a_boot_are_taken_after_the_first_of_the_next() -> None:
    dedupe = Dedupe()
    dedupe.take("a", 1, 0, 1.0)
    dedupe.take("a", 2, 0, 2.0)
    assert dedupe.take("a", 1, 1, 1.0) is Verdict.FRESH
    assert dedupe.take("a", 1, 1, 1.0) is Verdict.DUPLICATE
    assert dedupe.boot("a") == 2


@given(st.lists(st.integers(0, 10**18), max_size=600))
def test_no_source_can_make_it_keep_much(come: list[int]) -> None:
    dedupe = Dedupe()
    for number in come:
        dedupe.take("a", 0, number, 1.0)
    assert len(str(dedupe.to_dict())) < 16_000


@given(st.permutations(range(100)))
def test_a_window_of_messages_may_come_in_any_order(come: list[int]) -> None:
    """What several bridges share out between them is all taken, whichever is ahead."""
    dedupe = Dedupe()
    dedupe.take("a", 0, 0, 1.0)
    assert all(dedupe.take("a", 0, 1 + number, 1.0) is not Verdict.DUPLICATE for number in come)
    assert dedupe.missing("a") == 0


def test_every_second_message_of_a_window_may_be_late() -> None:
    dedupe = Dedupe()
    for number in [*range(1, 100, 2), *range(0, 100, 2)]:
        assert dedupe.take("a", 0, number, 1.0) is not Verdict.DUPLICATE


def test_the_events_of_what_an_agent_publishes_at_once_may_come_after_its_telemetry() -> None:
    """Each topic is stored by itself, on Kafka perhaps by another broker, and may fail alone."""
    dedupe = Dedupe()
    for number in [*range(1, _BATCH, 2), *range(0, _BATCH, 2)]:
        assert dedupe.take(A, 0, number, 1.0) is not Verdict.DUPLICATE
    assert dedupe.missing(A) == 0


# --- more streams than are kept ----------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "SOURCES_MAX", 100)
    return 100


@pytest.mark.parametrize("extra", [0, 1, 400])
def test_nothing_is_taken_twice_however_many_sources_there_are(few: int, extra: int) -> None:
    dedupe, at_s = Dedupe(), 0.0
    names = [f"/agents/{number}" for number in range(few + extra)]
    for number in range(3):
        for name in names:
            at_s += 1.0
            verdict = dedupe.take(name, 7, number, at_s)
            assert verdict in (Verdict.FRESH, Verdict.LATE), "what is new is taken"
    for number in range(3):
        for index, name in enumerate(names):
            said_s = 1.0 + number * len(names) + index
            verdict = dedupe.take(name, 7, number, said_s)
            assert verdict in (Verdict.DUPLICATE, Verdict.FORGOTTEN)
    assert dedupe.gaps == 0
    assert all(dedupe.missing(name) == 0 for name in names), "nobody is asked to say all again"


def test_who_submits_pushes_out_no_agent(few: int) -> None:
    dedupe = Dedupe()
    dedupe.take(A, 1, 0, 1.0)
    for number in range(10 * few):
        dedupe.take(f"/operators/cli-{number}", 0, 0, 2.0 + number)
    assert dedupe.take(A, 1, 0, 1.0) is Verdict.DUPLICATE
    assert dedupe.take(A, 1, 1, 1.0) is Verdict.FRESH


@pytest.mark.parametrize("stops", [False, True])
def test_an_agent_that_starts_again_and_again_pushes_out_no_other(few: int, stops: bool) -> None:
    """A process that fails at its start and is started again, for days."""
    dedupe, loops = Dedupe(), "/agents/loops"
    dedupe.take(A, 1, 0, 1.0)
    for boot in range(10 * few):
        assert dedupe.take(loops, boot, 0, 2.0 + boot) is Verdict.FRESH
        assert dedupe.boot(loops) == boot
    if stops:
        before, dedupe = dedupe, Dedupe()
        dedupe.load(before.to_dict())
        assert dedupe.to_dict() == before.to_dict()
    for boot in range(10 * few):
        verdict = dedupe.take(loops, boot, 0, 2.0 + boot)
        assert verdict in (Verdict.DUPLICATE, Verdict.FORGOTTEN), "nothing is taken twice"
    assert dedupe.take(A, 1, 0, 1.0) is Verdict.DUPLICATE
    assert dedupe.take(A, 1, 1, 1.0) is Verdict.FRESH, "what it said before is taken"


def test_what_was_forgotten_survives_a_snapshot(few: int) -> None:
    dedupe, again = Dedupe(), Dedupe()
    for number in range(few + 10):
        dedupe.take(f"/operators/{number}", 0, 0, float(number))
    again.load(dedupe.to_dict())
    assert dedupe.forgotten_s("/operators/x") == again.forgotten_s("/operators/x") == 9.0
    for one in (dedupe, again):
        assert one.take("/operators/9", 0, 0, 9.0) is Verdict.FORGOTTEN
        assert one.take("/operators/new", 0, 0, 9.5) is Verdict.FRESH
        assert one.take("/operators/new", 0, 1, 9.0) is Verdict.FORGOTTEN
