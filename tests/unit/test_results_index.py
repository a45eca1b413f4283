"""The index of docs/results is what its claims and raw files say; each page knows its own age."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.claim import NOT_RECORDED, Claim
from benchmarks.claims import CLAIMS, MEASURES
from benchmarks.gains import gains
from benchmarks.page_tables import with_tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
RUN: dict[str, Any] = {
    "command": "python -m benchmarks.x",
    "commit": "0123456789ab",
    "date": "2026-11-23",
    "minutes": 1.5,
    "machine": {"cpus": 2},
}


def test_the_index_is_what_claims_and_raw_files_say() -> None:
    assert results.check_index(RESULTS / "README.md") == []


def test_each_page_has_a_claim_and_names_code_that_is_there() -> None:
    pages = {page.name for page in RESULTS.glob("*.md")} - {"README.md"}
    assert pages == MEASURES.keys() == {claim.page for claim in CLAIMS}
    paths = {path for paths in MEASURES.values() for path in paths}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.json").write_text(json.dumps({**RUN, "value": 7}))
    page = tmp_path / "README.md"
    page.write_text(f"# Results\n\n{results.BEGIN}\n{results.END}\n\nMore.\n")
    return page


CLAIM = Claim("x.md", "a figure", lambda raw: f"{raw['value']} s", "one run", ("x.json",))


def test_a_claim_is_one_line_with_all_that_is_known(page: Path) -> None:
    page.write_text(results.with_index(page, [CLAIM]))
    assert (
        "| [x](x.md): a figure | **7 s** | `python -m benchmarks.x` | 1.5 | `0123456` | 2026-11-23"
        " | one run; raw: [1](data/x.json) |"
    ) in page.read_text()
    assert results.check_index(page, [CLAIM]) == []
    (page.parent / "data" / "x.json").write_text(json.dumps({**RUN, "value": 8}))
    assert "README.md: the table is not" in results.check_index(page, [CLAIM])[0]


def test_what_was_not_written_down_is_said_to_be_so(page: Path) -> None:
    typed = Claim("x.md", "a figure", "7 s", "one run")
    assert results.index([typed], page.parent / "data").count(NOT_RECORDED) == 4


@pytest.mark.parametrize("part", results.PROVENANCE)
def test_a_raw_file_that_says_nothing_of_its_run_is_refused(page: Path, part: str) -> None:
    run = {name: value for name, value in RUN.items() if name != part}
    (page.parent / "data" / "x.json").write_text(json.dumps({"a": RUN, "b": run}))
    assert results.check_index(page, [CLAIM]) == [f"x.json: says no {part}; or 'not recorded'"]


def test_a_raw_file_that_no_claim_names_is_refused(page: Path) -> None:
    assert results.check_index(page, []) == [
        "x.json: no claim names it; add one to benchmarks/claims_policies.py or claims_system.py"
    ]


@pytest.mark.parametrize(
    ("counts", "unrecorded", "said"),
    [
        ({"a1": 0}, False, "Measured at `a1`; of the code that it measures nothing is newer."),
        (
            {"a1": 1},
            False,
            "Measured at `a1`; of the code that it measures at least 1 commit is newer.",
        ),
        (
            {"a1": 23, "b2": 0, "c3": 199},
            True,
            "Measured at `a1`, `b2` and `c3`; of the code that it measures at least 20, 0 and 100"
            " commits are newer. Part of it was measured at a commit that was not recorded.",
        ),
        (
            {},
            True,
            "Measured at a commit that was not recorded, so that nobody knows how much of the code"
            " that it measures is newer.",
        ),
    ],
)
def test_a_page_says_how_much_is_newer(counts: dict[str, int], unrecorded: bool, said: str) -> None:
    assert results.line(counts, unrecorded=unrecorded) == f"*{said}*"
    assert results.holds(f"*{said}*", counts, unrecorded=unrecorded)
    assert not results.holds(f"*{said}*", {**counts, "d4": 1}, unrecorded=unrecorded)
    assert not counts or not results.holds(f"*{said}*", counts, unrecorded=not unrecorded)


@pytest.mark.parametrize(
    ("written", "now", "stands"),
    [
        (0, 0, True),
        (0, 1, False),
        (1, 4, True),
        (1, 5, False),
        (20, 99, True),
        (20, 100, False),
        (20, 19, False),
    ],
)
def test_a_count_stands_until_five_times_as_much_is_newer(
    written: int, now: int, stands: bool
) -> None:
    said = results.line({"a1": written}, unrecorded=False)
    assert results.holds(said, {"a1": now}, unrecorded=False) == stands


def test_a_line_is_put_below_the_title_once(tmp_path: Path) -> None:
    page = tmp_path / "x.md"
    page.write_text("# X\n\nText.\n")
    for said in ("*Measured at `a1`; one.*", "*Measured at `b2`; two.*"):
        page.write_text(results.with_line(page, said))
        assert page.read_text() == f"# X\n\n{said}\n\nText.\n"


def test_a_table_of_a_page_is_what_its_raw_files_say(tmp_path: Path) -> None:
    page, data = tmp_path / "capacity.md", RESULTS / "data"
    page.write_text((RESULTS / "capacity.md").read_text())
    assert results.check_tables([page], data) == []
    row = next(line for line in page.read_text().splitlines() if line.startswith("| 0.9 |"))
    page.write_text(page.read_text().replace(row, row.replace("0.9", "0.8")))
    said = results.check_tables([page], data)
    assert said == ["capacity.md: a table is not what its raw files say"]
    page.write_text(with_tables(page, data))
    assert row in page.read_text()


def test_a_table_that_is_still_empty_takes_nothing_of_the_page(tmp_path: Path) -> None:
    page, data = tmp_path / "tail.md", RESULTS / "data"
    empty = "<!-- table tail -->\n\n<!-- end of table -->\n"
    page.write_text(f"{empty}\nBetween the two.\n\n{empty}")
    made = with_tables(page, data)
    assert "\n<!-- end of table -->\n\nBetween the two.\n\n<!-- table tail -->\n" in made
    page.write_text(made)
    assert with_tables(page, data) == made


def test_the_table_of_the_readme_shows_the_best_other_policy_where_it_is_ahead_too() -> None:
    readme = ROOT / "README.md"
    assert readme in results.pages_with_tables(RESULTS)
    made = gains(RESULTS / "data")
    assert made in readme.read_text()
    day = json.loads((RESULTS / "data" / "day.json").read_text())["rows"]
    spent: dict[str, float] = {}
    for row in day:
        spent[row["policy"]] = spent.get(row["policy"], 0.0) + row["mean_spent_s"]
    best = min(spent.keys() - {"tide"}, key=lambda policy: spent[policy])
    (line,) = [line for line in made.splitlines() if "hours that a job spends" in line]
    assert spent["tide"] > spent[best]
    assert f"(+{100 * (spent['tide'] / spent[best] - 1):.1f} %) | `{best}`" in line
