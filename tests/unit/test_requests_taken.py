"""Of a request that may come again it is known that it was taken, whoever else asks."""

from typing import Any

import pytest

from scheduler.core import standing
from scheduler.core.requests import repeated
from scheduler.core.standing import COUNTED_MAX, UNCOUNTED_MAX, Standing
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Decision
from schemas.requests import (
    LIFE_MAX_S,
    CancelJob,
    CordonNode,
    PrioritiseJob,
    UncordonNode,
    VerbData,
)
from tests.asked import ask
from tests.builders import Cell, node_born, request_of, submitted

DAY_S = 86_400.0


def ask_ahead(cell: Cell, ahead_s: float, args: VerbData, name: str, asked_s: float) -> Decision:
    """Somebody asked for this then, by the clock, which the cell's time is ahead of."""
    said = request_of(asked_s, args, name, expires_s=asked_s + 3600.0)
    return cell.feed(said.model_copy(update={"ahead_s": ahead_s}))


@pytest.mark.parametrize("days", [0.0, 2.0, 8.0])
def test_a_request_takes_effect_once_however_far_the_cell_is_ahead_of_the_clock(
    days: float,
) -> None:
    cell, ahead_s = Cell().told(node_born("n0"), submitted("j0")), days * DAY_S
    asked_s = cell.now_s - ahead_s
    ask_ahead(cell, ahead_s, PrioritiseJob(job="j0", priority=5), "first", asked_s)
    for number in range(300):  # ids are looked over now and then
        ask_ahead(cell, ahead_s, CordonNode(node="n9"), f"r{number}", asked_s)
    ask_ahead(cell, ahead_s, PrioritiseJob(job="j0", priority=0), "then", asked_s)
    cell.now_s += 60.0
    again = ask_ahead(cell, ahead_s, PrioritiseJob(job="j0", priority=5), "first", asked_s)
    assert again.facts == ()
    assert cell.job("j0").priority == 0


def test_in_a_cell_that_is_little_ahead_nothing_more_is_noted_of_a_request() -> None:
    cell = Cell().told(node_born("n0"))
    kinds = [
        [type(fact).__name__ for fact in ask_ahead(cell, by_s, args, name, cell.now_s - by_s).facts]
        for name, by_s, args in (
            ("near", DAY_S, CordonNode(node="n0")),
            ("far", DAY_S + 1.0, CordonNode(node="n9")),
        )
    ]
    assert kinds == [["NodeCordoned", "RequestDone"], ["RequestRefused", "RequestKeptLonger"]]
    assert cell.state.standing.taken["far"] == pytest.approx(cell.now_s + 3600.0)


def few(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A cell that remembers few requests."""
    for name, most in (("UNCOUNTED_MAX", 2), ("COUNTED_MAX", 6), ("_AT_ONCE", 2)):
        monkeypatch.setattr(standing, name, most)
    return Cell().told(node_born("n0"), submitted("j0"))


def insists(cell: Cell, times: int) -> None:
    """Bob asks for the same so often, by requests that are good for a week."""
    for number in range(times):
        cell.now_s += 1.0
        args = PrioritiseJob(job="j0", priority=number)
        life: dict[str, Any] = {"subject": "bob", "expires_s": cell.now_s + LIFE_MAX_S}
        ask(cell, args, id=f"bob-{number}", **life)
        assert cell.job().priority == number, "what is new is taken"


def test_nobody_is_refused_since_others_ask_often(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = few(monkeypatch)
    insists(cell, 30)
    ask(cell, CordonNode(node="n0"), id="ann")
    ask(cell, CancelJob(job="j0"), id="cancel", subject="bob")
    kept = cell.state.standing
    assert ("n0" in kept.cordons, cell.job().state) == (True, "cancelled")
    assert (len(kept.taken) <= 8, kept.forgotten_s, [*kept.forgotten]) == (
        True,
        0.0,
        ["job.priority bob"],
    )


def test_a_request_that_was_forgotten_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = few(monkeypatch)
    cordon = CordonNode(node="n0")
    first_s = cell.now_s
    for number in range(12):
        life = {"expires_s": first_s + 500.0 + number, "asked_s": first_s}
        ask(cell, cordon if number % 2 == 0 else UncordonNode(node="n0"), id=f"r{number}", **life)
    insists(cell, 10)
    assert "n0" not in cell.state.standing.cordons
    assert sum(f"r{number}" not in cell.state.standing.taken for number in range(0, 12, 2)) >= 2
    for number in range(0, 12, 2):
        life = {"expires_s": first_s + 500.0 + number, "asked_s": first_s}
        assert ask(cell, cordon, id=f"r{number}", **life).facts == ()
    old = request_of(first_s, cordon, "r2", expires_s=first_s + 502.0).request
    assert repeated(cell.state, old) == (
        "id",
        "may have been taken before: ann asked so often for node.cordon since that nobody can "
        "tell; ask less often",
    )
    assert ask(cell, cordon, id="new", expires_s=first_s + 600.0).facts != ()


def test_what_was_forgotten_of_many_is_kept_for_so_many_and_then_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = few(monkeypatch)
    monkeypatch.setattr(standing, "LINES_MAX", 3)
    for number in range(40):
        who = {"subject": f"u{number % 8}", "expires_s": cell.now_s + 100.0 + number}
        ask(cell, CordonNode(node="n9"), id=f"r{number}", **who)
    kept = cell.state.standing
    assert (len(kept.taken) <= 8, len(kept.forgotten)) == (True, 3)
    assert 0.0 < kept.forgotten_s <= min(kept.forgotten.values())
    for number in range(40):
        who = {"subject": f"u{number % 8}", "expires_s": cell.now_s + 100.0 + number}
        assert ask(cell, CordonNode(node="n9"), id=f"r{number}", **who).facts == ()


def test_of_very_many_requests_a_hundred_thousand_are_remembered() -> None:
    state, now_s = ClusterState(), 1e9
    kept = state.standing
    for number in range(UNCOUNTED_MAX + COUNTED_MAX + 5_000):
        kept.take(f"r{number}", now_s + LIFE_MAX_S + number / 1e3, now_s)
        if kept.crowded:
            kept.count(f"r{number}", "job.submit bob")
        assert len(kept.taken) <= 100_000
    cordon = request_of(now_s, CordonNode(node="n0"), "c").request
    assert repeated(state, cordon) is None


def test_a_state_of_before_there_were_counts_is_read_and_none_of_it_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few(monkeypatch)
    taken = {f"old-{number}": 2e9 for number in range(9)}
    kept = standing.standing_from({"taken": {**taken}, "forgotten_s": 1e9})
    kept.take("new", 2e9, 1e9)
    assert kept.crowded
    for number in range(9):
        kept.take(f"new-{number}", 2e9, 1e9)
        kept.count(f"new-{number}", "job.submit bob")
    assert taken.keys() <= kept.taken.keys()
    assert kept.forgotten_s == 1e9
    assert standing.standing_from(standing.standing_document(kept)) == kept


def test_counts_go_with_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    kept = Standing(forgotten={"old": 10.0, "new": 2e9})
    for number in range(255):
        kept.take(f"a{number}", 10.0, 0.0)
        kept.lines[f"a{number}"] = "old"
    kept.take("b", 2e9, 10.0 + LIFE_MAX_S)
    assert (kept.taken, kept.lines, kept.forgotten) == ({"b": 2e9}, {}, {"new": 2e9})
