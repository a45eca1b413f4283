"""Times in words, and JSON for programs."""

import contextlib
import io
import json
import math
from pathlib import Path

import pytest
import typer
from hypothesis import given, strategies as st
from rich.table import Table
from rich.text import Text

from console.bars import MARKS, bar, progress, sparkline
from console.output import emit_json, fail, out, say
from explain.moments import day_clock, duration, seconds_of
from explain.uses import USES
from explain.wording import Wording

MIDNIGHT_S = 1_767_571_200.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.44, "0.4 s"),
        (59.6, "1 min"),
        (61.0, "1 min 1 s"),
        (3599.6, "1 h"),
        (4350.0, "1 h 13 min"),
        (86_399.0, "1 d"),
        (90_000.0, "1 d 1 h"),
        (-120.0, "−2 min"),
        (math.inf, "for ever"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("after_s", "text"),
    [(0.0, "d0 00:00"), (23_400.0, "d0 06:30"), (86_399.9, "d0 23:59"), (90_061.0, "d1 01:01")],
)
def test_moments_are_told_from_the_day_the_log_began(after_s: float, text: str) -> None:
    assert day_clock(MIDNIGHT_S + after_s, MIDNIGHT_S) == text
    # A log that begins at noon has the same day and hours.
    assert day_clock(MIDNIGHT_S + after_s, MIDNIGHT_S + 43_200.0) == text


def test_moments_of_real_time_have_a_date() -> None:
    began_s = MIDNIGHT_S + 100 * 86_400.0
    assert day_clock(began_s + 86_400.0 + 23_400.0, began_s) == "2026-04-16 06:30"


@pytest.mark.parametrize("began_s", [MIDNIGHT_S, MIDNIGHT_S - 1e8])
@pytest.mark.parametrize("at_s", [1e15, 9e24, float("inf")])
def test_moments_that_no_calendar_has(at_s: float, began_s: float) -> None:
    assert day_clock(at_s, began_s) == "beyond year 9999"
    assert day_clock(-at_s, began_s) == "before year 1"
    assert Wording(began_s).value("deadline_s", -at_s) == "before year 1"


def test_what_is_no_number_is_no_moment() -> None:
    assert day_clock(float("nan"), MIDNIGHT_S) == day_clock(None, MIDNIGHT_S) == "–"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("45m", 2700), ("2h", 7200), ("1h30m", 5400), ("1.5d", 129_600), ("1h 30m", None)],
)
def test_lengths_of_time_are_read(text: str, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(ValueError, match="no length of time"):
            seconds_of(text)
    else:
        assert seconds_of(text) == pytest.approx(seconds)


@given(st.text(max_size=12))
def test_any_other_text_is_refused_as_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 < seconds_of(text) <= 315_360_000


def test_json_is_one_object_with_null_for_what_json_cannot_say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    emit_json({"a": math.nan, "b": [math.inf, 1.5], "c": "ü"}, "-")
    expected = {"a": None, "b": [None, 1.5], "c": "ü"}
    assert json.loads(capsys.readouterr().out) == expected
    target = tmp_path / "out.json"
    emit_json({"a": math.nan, "b": [-math.inf, 1.5], "c": "ü"}, str(target))
    assert json.loads(target.read_text(encoding="utf-8")) == expected


@pytest.mark.parametrize("letters", ["latin-1", "ascii"])
def test_json_is_utf_8_whatever_the_terminal_can_show(
    monkeypatch: pytest.MonkeyPatch, letters: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, letters, errors="replace"))
    emit_json({"reason": "für später"}, "-")
    assert json.loads(written.getvalue()) == {"reason": "für später"}


@pytest.mark.parametrize("path", ["none/out.json", "."])
def test_json_that_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], path: str
) -> None:
    with pytest.raises(typer.Exit) as stopped:
        emit_json({}, path)
    assert stopped.value.exit_code == 2
    assert capsys.readouterr().err.startswith("--json: ")


def test_a_failure_is_said_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        fail("x[0]: [bold] is no markup here")
    assert capsys.readouterr().err == "x[0]: [bold] is no markup here\n"


@given(st.lists(st.integers(0, 500), min_size=len(USES), max_size=len(USES)), st.integers(6, 60))
def test_a_bar_has_a_mark_for_everyone_and_never_more_than_its_width(
    counts: list[int], width: int
) -> None:
    uses = dict(zip(USES, counts, strict=True))
    text = bar(uses, width).plain
    if sum(counts) == 0:
        assert text == "no GPUs"
        return
    assert len(text) == min(sum(counts), width)
    for use, count in uses.items():
        assert (MARKS[use][0] in text) == (count > 0)


@given(st.floats(-1, 2, allow_nan=False), st.integers(1, 50))
def test_a_progress_bar_is_as_wide_as_asked(share: float, width: int) -> None:
    assert len(progress(share, width).plain) == width


def test_a_sparkline_spans_its_range() -> None:
    assert sparkline([0.0, 4.0, None, 8.0, 16.0], 8.0) == "▁▄ ██"


def test_what_others_wrote_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    wrote = "the\x1b]52;c;ZXZpbA==\x07 fan\x1b[2J\x9b31m\r is\u202e\tloud\u2066\n"
    table = Table("reason", "in a text")
    table.add_row(wrote, Text(wrote))
    out().print(table)
    out().print(wrote, markup=False)
    say(wrote)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "fan" in text
        assert not [one for one in text if one != "\n" and not one.isprintable()]
