"""Each message once, whatever the order and however often it comes."""

from hypothesis import given, strategies as st

from scheduler.dedupe import MISSING_MAX, SOURCES_MAX, Dedupe, Verdict

numbers = st.integers(0, 60)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), numbers), max_size=120))
def test_each_number_is_taken_once(come: list[tuple[str, int]]) -> None:
    dedupe = Dedupe()
    taken = [
        (source, number)
        for source, number in come
        if dedupe.take(source, 0, number) is not Verdict.DUPLICATE
    ]
    assert taken == list(dict.fromkeys(come)), "the first of each, in the order of coming"
    for source in ("a", "b"):
        seen = {number for name, number in come if name == source}
        expected = max(seen) + 1 - len(seen) if seen else 0
        assert dedupe.missing(source) == expected


@given(st.lists(numbers, min_size=1, max_size=40), numbers)
def test_what_was_taken_survives_a_snapshot(come: list[int], probe: int) -> None:
    dedupe, again = Dedupe(), Dedupe()
    for number in come:
        dedupe.take("a", 3, number)
    again.load(dedupe.to_dict())
    assert again.to_dict() == dedupe.to_dict()
    assert again.take("a", 3, probe) is dedupe.take("a", 3, probe)
    assert again.take("a", 2, 99) is Verdict.DUPLICATE, "of a boot that is over"
    assert again.take("a", 4, 0) is Verdict.FRESH


def test_far_jumps_take_constant_memory() -> None:
    dedupe = Dedupe()
    dedupe.take("a", 0, 10**18)
    assert dedupe.missing("a") == MISSING_MAX
    dedupe.take("a", 0, 2 * 10**18)
    assert dedupe.missing("a") == MISSING_MAX
    assert dedupe.take("a", 0, 10**18 - 1) is Verdict.DUPLICATE, "given up as lost"
    assert dedupe.take("a", 0, 2 * 10**18 - 1) is Verdict.LATE


def test_excused_gaps_are_not_asked_for_but_still_taken() -> None:
    dedupe = Dedupe()
    dedupe.take("a", 0, 5)
    dedupe.excuse()
    assert dedupe.missing("a") == 0
    dedupe.take("a", 0, 8)  # what came in between may have been taken before the restart
    assert dedupe.missing("a") == 0
    dedupe.take("a", 0, 11)
    assert dedupe.missing("a") == 2
    assert dedupe.take("a", 0, 3) is Verdict.LATE
    dedupe.forgive("a", 10)
    assert (dedupe.missing("a"), dedupe.take("a", 0, 9)) == (0, Verdict.DUPLICATE)


def test_a_flood_of_names_forgets_those_silent_longest() -> None:
    dedupe = Dedupe()
    dedupe.take("/agents/real", 1, 0)
    for number in range(SOURCES_MAX + 10):
        dedupe.take(f"/made/up/{number}", 0, 0)
        if number % 10_000 == 0:
            dedupe.take("/agents/real", 1, 1 + number // 10_000)
    assert len(dedupe.to_dict()) == SOURCES_MAX
    assert dedupe.take("/agents/real", 1, 1) is Verdict.DUPLICATE


def test_the_last_words_of_a_boot_are_taken_after_the_first_of_the_next() -> None:
    dedupe = Dedupe()
    dedupe.take("a", 1, 0)
    dedupe.take("a", 2, 0)
    assert dedupe.take("a", 1, 1) is Verdict.LATE
    assert dedupe.take("a", 1, 1) is Verdict.DUPLICATE
    again = Dedupe()
    again.load(dedupe.to_dict())
    assert again.take("a", 1, 0) is Verdict.DUPLICATE
    assert again.take("a", 1, 2) is Verdict.LATE
    assert again.take("a", 0, 0) is Verdict.DUPLICATE, "two boots ago"


@given(st.lists(st.integers(0, 10**18), max_size=300))
def test_no_source_can_make_it_keep_much(come: list[int]) -> None:
    dedupe = Dedupe()
    for number in come:
        dedupe.take("a", 0, number)
    assert dedupe.missing("a") <= MISSING_MAX
    assert len(str(dedupe.to_dict())) < 4000


@given(st.permutations(range(100)))
def test_a_window_of_messages_may_come_in_any_order(come: list[int]) -> None:
    """What several bridges share out between them is all taken, whichever is ahead."""
    dedupe = Dedupe()
    dedupe.take("a", 0, 0)
    assert all(dedupe.take("a", 0, 1 + number) is not Verdict.DUPLICATE for number in come)
    assert dedupe.missing("a") == 0


def test_every_second_message_of_a_window_may_be_late() -> None:
    dedupe = Dedupe()
    for number in [*range(1, 100, 2), *range(0, 100, 2)]:
        assert dedupe.take("a", 0, number) is not Verdict.DUPLICATE
