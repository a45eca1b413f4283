"""`tidegate policies` and the page it is made from."""

import json

import pytest

from console import policies
from scheduler.policies.catalogue import CATALOGUE
from scheduler.policies.registry import POLICIES
from tests.console.conftest import Run


def test_every_policy_is_in_the_catalogue_in_order() -> None:
    assert list(CATALOGUE) == list(POLICIES)


def test_all_are_listed_and_one_is_told_about(tidegate: Run) -> None:
    ran = tidegate("policies")
    assert ran.code == 0
    assert set(POLICIES) <= {line.split()[0] for line in ran.out.splitlines() if line.strip()}
    one = tidegate("policies", "srtf")
    assert "Shortest remaining time first" in one.out
    assert "`patience=1.0`" in one.out
    rows = json.loads(tidegate("policies", "--json", "-").out)["policies"]
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(row["aims"] and row["knows"] and row["cost"] and row["source"] for row in rows)


@pytest.mark.parametrize("flags", [(), ("--json", "-")])
def test_an_unknown_one_is_answered_with_those_there_are(
    tidegate: Run, flags: tuple[str, ...]
) -> None:
    ran = tidegate("policies", "tyde", *flags)
    assert ran.code == 2
    assert "policy 'tyde' is not known; choose one of: afs" in ran.err


def test_the_page_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert policies.main(["--check"]) == 0, "run python -m console.policies"
    assert capsys.readouterr().err == ""
