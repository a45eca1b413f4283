"""The page on writing a policy: its code runs, says what it prints, and keeps every promise."""

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from console import policies
from console.main import main
from scheduler.policies import interface
from scheduler.policies.catalogue import CATALOGUE
from scheduler.policies.interface import Snapshot
from scheduler.policies.registry import GIVE_BACK, KEEP_QUOTAS, POLICIES, _late, make_policy
from tests.property.test_policies import random_snapshot, snapshots
from tests.snapshots import faults

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/writing-a-policy.md").read_text(encoding="utf-8")
CODE, TRIAL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(OUTPUT,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What a reader has after typing in the example."""
    found: dict[str, Any] = {"__name__": "modest"}
    exec(compile(CODE, "writing-a-policy.md", "exec"), found)  # the page is ours
    return found


def test_the_page_prints_what_it_says(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the reader had the file; the trial has nothing else but what it imports.
    module = SimpleNamespace(Modest=names["Modest"])
    monkeypatch.setitem(sys.modules, "scheduler.policies.modest", module)
    exec(compile(TRIAL, "writing-a-policy.md", "exec"), {})
    assert capsys.readouterr().out == OUTPUT


def test_the_example_is_short() -> None:
    lines = [line for line in CODE.splitlines() if line.strip()]
    assert len(lines) <= 40


@given(seen=snapshots())
@settings(max_examples=60, deadline=None)
def test_the_example_keeps_every_promise(names: dict[str, Any], seen: Snapshot) -> None:
    assert faults(seen, names["Modest"](most=6).plan(seen)) == []


def test_the_example_is_listed_once_it_is_registered(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (late,) = re.findall(r'`"modest": (_late\(.*?\))`', PAGE)
    module = SimpleNamespace(Modest=names["Modest"])
    monkeypatch.setitem(sys.modules, "scheduler.policies.modest", module)
    monkeypatch.setitem(POLICIES, "modest", eval(late, {"_late": _late}))  # the page is ours
    monkeypatch.delitem(CATALOGUE, "modest", raising=False)  # the reader has it, too
    for arguments in (["policies"], ["policies", "modest"]):
        assert main(arguments) == 0
        assert "Least attained tenant first" in capsys.readouterr().out
    assert "Options with their defaults: `most=8`" in policies.page()
    assert make_policy("modest:most=2") == names["Modest"](most=2)


def test_the_files_that_the_page_names_are_there() -> None:
    paths = set(re.findall(r"`((?:scheduler|console|explain|tests)/[a-z_/]+\.py)`", PAGE))
    assert len(paths) > 5
    # Whoever follows the page has the example, too.
    example = {"scheduler/policies/modest.py"}
    assert {path for path in paths if not (ROOT / path).is_file()} <= example
    assert "_FIGURES: " in (ROOT / "explain/wording.py").read_text("utf-8")
    assert {"tide"} <= {*GIVE_BACK} & {*KEEP_QUOTAS}


def test_the_example_has_what_make_check_asks_for() -> None:
    tree = ast.parse(CODE)
    assert ast.get_docstring(tree)
    imports = [one.module for one in tree.body if isinstance(one, ast.ImportFrom)]
    ours = [module for module in imports if module and module.startswith("scheduler")]
    assert ours == sorted(ours)


def test_every_part_and_column_that_the_page_names_is_there() -> None:
    for module, name in re.findall(r"`([a-z_]+)\.([A-Za-z_]+)`", PAGE.split("## Parts")[1]):
        (source,) = (ROOT / "scheduler/policies").glob(f"*/{module}.py")
        assert re.search(rf"^(def|class) {name}\b", source.read_text("utf-8"), re.MULTILINE)
    seen = random_snapshot(np.random.default_rng(1))
    for table, column in re.findall(r"`(jobs|nodes)\.([a-z_]+)`", PAGE):
        assert isinstance(getattr(getattr(seen, table), column), np.ndarray)
    assert f"(n, {interface.NOTE})" in PAGE
