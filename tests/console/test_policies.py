"""`tidegate policies` and the page it is made from."""

import pytest

from console import policies
from scheduler.policies.catalogue import CATALOGUE
from scheduler.policies.interface import Plan, Snapshot
from scheduler.policies.registry import POLICIES
from tests.console.conftest import Run


def test_every_policy_is_in_the_catalogue_in_order() -> None:
    assert list(CATALOGUE) == list(POLICIES)


def test_all_are_listed_and_one_is_told_about(tidegate: Run) -> None:
    ran = tidegate.does("policies")
    assert set(POLICIES) <= {line.split()[0] for line in ran.out.splitlines() if line.strip()}
    one = tidegate("policies", "fifo")
    assert "First in, first out" in one.out
    assert "backfill=easy" in one.out
    assert "`" not in one.out  # it is read on a terminal, not as Markdown
    rows = tidegate.tells("policies")["policies"]
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(row["aims"] and row["knows"] and row["cost"] and row["source"] for row in rows)


@pytest.mark.parametrize("width", [80, 120, 160])
def test_what_does_not_fit_wraps_and_is_not_cut(
    tidegate: Run, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = tidegate("policies").out
    words = set(ran.split())
    for name, about in CATALOGUE.items():
        assert set(about.aims.split()) <= words, name
    assert "…" not in ran
    assert ("knows" in words, "source" in words) == (width >= 100, width >= 150)
    assert max(len(line) for line in (ran + tidegate("policies", "aryl").out).splitlines()) <= width


def test_a_policy_without_a_line_in_the_catalogue_is_told_of_all_the_same(
    tidegate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bare:
        """Do nothing, well."""

        name = "bare"

        def plan(self, _: Snapshot) -> Plan:
            return Plan()

    monkeypatch.setitem(POLICIES, "bare", Bare)
    assert "Do nothing, well" in tidegate("policies").out
    assert "Do nothing, well." in tidegate("policies", "bare").out
    (row,) = tidegate.tells("policies", "bare")["policies"]
    dash = "–"
    assert row == {
        "policy": "bare",
        "aims": "Do nothing, well",
        "knows": dash,
        "cost": dash,
        "source": dash,
    }
    assert f"| Do nothing, well | {dash} |" in policies.page()


def test_attributes_are_a_list_and_not_code() -> None:
    page = policies.page()
    assert "\n- `slot_s`: Grid" in page
    assert "\nIt knows no job's length and costs O(n log n)." in page
    assert "\n    " not in page
    assert "O(a linear program)" not in page


@pytest.mark.parametrize("flags", [(), ("--json", "-")])
def test_an_unknown_one_is_answered_with_those_there_are(
    tidegate: Run, flags: tuple[str, ...]
) -> None:
    said = tidegate.refuses("policies", "tyde", *flags)
    assert "policy 'tyde' is not known, nearest: tide; choose one of: afs" in said


def test_the_page_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert policies.main(["--check"]) == 0, "run python -m console.policies"
    assert capsys.readouterr().err == ""
