"""docs/security.md and docs/results/faults.md name the test behind each defence; they are there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
FAULTS = (ROOT / "docs" / "results" / "faults.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE + FAULTS)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 20
    assert PAGE.count("tests/") == len(re.findall(r"`tests/[\w/]+\.py::\w+`", PAGE))


def test_every_test_that_it_names_exists() -> None:
    missing = []
    for file, name in NAMED:
        path = ROOT / file
        tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        if name not in [node.name for node in ast.walk(tree) if isinstance(node, functions)]:
            missing.append(f"{file}::{name}")
    assert not missing


def test_every_threat_has_a_defence_and_a_test() -> None:
    table = PAGE.split("| threat | defence | held by |", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    assert len(rows) > 15
    assert all(len(row) == 3 and "tests/" in row[2] for row in rows)


def test_what_a_client_of_the_gateway_may_try_has_an_answer_and_a_test() -> None:
    table = PAGE.split("| it tries | what comes of it | held by |", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    assert all(len(row) == 3 and row[1].strip() and "tests/" in row[2] for row in rows)
    tried = " ".join(row[0] for row in rows)
    for what in (
        *("no token", "forged", "ended", "revoked", "another issuer", "tampered", "host's name"),
        *("CSRF", "another gateway's secret", "`subject`", "cancel another", "log", "pseudonyms"),
        *("as a whole", "again", "another person's", "reads", "streams", "requests", "sign-ins"),
        *("slowly", "huge body", "cursor", "header"),
    ):
        assert what in tried, what


def test_every_fault_that_was_shown_has_a_test() -> None:
    table = FAULTS.split("| held by |\n", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[1:]]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 38
    assert all("`tests/" in row[3] for row in rows)


def test_every_reason_that_is_counted_is_explained() -> None:
    for file in ("runtime/gate.py", "runtime/core/agent.py"):
        for literal in re.findall(
            r"^(?:Kind|Objection) = Literal\[(.*)\]", (ROOT / file).read_text(), re.M
        ):
            for reason in re.findall(r'"(\w+)"', literal):
                assert f"`{reason}`" in PAGE
