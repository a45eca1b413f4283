"""Reading metrics text: what is well-formed, what is refused, and what it costs to be refused."""

import math
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from runtime.metering import exposition
from runtime.metering.exposition import MalformedError, parse
from tests.metering.pages import page


def test_wanted_series_come_with_labels_and_values_as_written() -> None:
    read = parse(
        "# HELP a_total of things\n# TYPE a_total counter\n"
        'a_total{x="1",y="a \\"b\\" # {c}, d"} 4 1700000000000\n\n'
        "a_total 1e3\r\n"
        'b_bucket{le="+Inf"} 7 # {trace_id="abc"} 0.5 1700000000.1\n'
        "b_count NaN\n"
        '{"a.quoted.name"} 1\n'
        "other 1\n",
        {"a_total", "b_bucket", "b_count", "missing"},
    )
    assert read.names == {"a_total", "b_bucket", "b_count", "other"}
    first, second = read.series["a_total"]
    assert (first.labels, first.value) == ({"x": "1", "y": 'a "b" # {c}, d'}, 4.0)
    assert (second.labels, second.value) == ({}, 1000.0)
    assert read.series["b_bucket"][0].value == 7.0
    assert math.isnan(read.series["b_count"][0].value)
    assert "missing" not in read.series


def test_a_page_of_openmetrics_may_end_with_its_mark() -> None:
    """Its grammar asks for no line feed there; its server counted as fully loaded for ever."""
    assert parse("a 1\n# EOF", {"a"}).series["a"][0].value == 1.0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a 1\n<html>\n", "line 2: no metric begins with '<html>'"),
        ("a 1\nb\n", "line 2: no metric begins with 'b'"),
        ("a 1\nb{\n", "line 2: cannot read 'b{'"),
        ('b{x="1} 2\n', "line 1: cannot read"),
        ("b one\n", "line 1: cannot read 'b one'"),
        ("b 1_0\n", "line 1: cannot read"),
        ('b{x="1"} 2 soon\n', "line 1: cannot read"),
        ('b{x="1"}\n', "line 1: cannot read"),
        ("b \n", "line 1: no metric begins with 'b'"),
        ("a 1\nb 12", "line 2: the page is cut off here"),
        ("\x00\x01\n", "line 1: no metric begins with"),
    ],
)
def test_malformed_text_is_refused_by_line(text: str, what: str) -> None:
    with pytest.raises(MalformedError, match=what.replace("{", r"\{")):
        parse(text, {"b"})


def test_a_broken_series_that_nobody_wants_blinds_nobody() -> None:
    assert parse('a{x="} one\nb 1\n', {"b"}).series["b"][0].value == 1.0


def test_too_many_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "SERIES_MAX", 10)
    text = "".join(f'b{{x="{n}"}} 1\n' for n in range(11))
    assert len(parse(text, {"c"}).names) == 1
    with pytest.raises(MalformedError, match="line 11: more than 10 series"):
        parse(text, {"b"})


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(MalformedError, match="line 1: has more than 16384 characters"):
        parse(f'b{{x="{"y" * 1_000_000}"}} 1\n', {"b"})


def test_a_page_reads_the_same_the_second_time() -> None:
    wanted = exposition.parse(page("sglang"), ()).names
    assert parse(page("sglang"), wanted) == parse(page("sglang"), wanted)


@given(noise=st.text(max_size=100), at=st.integers(0, 400))
def test_whatever_is_on_the_page_nothing_else_is_raised(noise: str, at: int) -> None:
    good = page("tgi")
    for text in (noise, good[:at] + noise + good[at:], f"b{{{noise}}} {noise}\n", f"b {noise}\n"):
        with suppress(MalformedError):
            parse(text, {"b", "tgi_batch_current_size", "tgi_queue_size"})
