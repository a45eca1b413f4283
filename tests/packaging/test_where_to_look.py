"""docs/architecture.md: its answers to "where is ...?" hold, and its layers are the held ones."""

import ast
import re

import pytest

from tests.packaging.test_packaging import CONFIG, PACKAGES, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def part(heading: str) -> str:
    """What stands under a heading."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


ROWS = [
    (question, re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", where))
    for question, where in re.findall(
        r"^\| (.+\?) \| (.+) \|$", part("Where to look"), re.MULTILINE
    )
]


def names(tree: ast.Module) -> set[str]:
    """The functions and classes of a module, and `Class.method`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = {one.name for one in tree.body if isinstance(one, kinds)}
    for one in tree.body:
        if isinstance(one, ast.ClassDef):
            found |= {f"{one.name}.{inner.name}" for inner in one.body if isinstance(inner, kinds)}
    return found


def test_there_are_questions() -> None:
    assert len(ROWS) >= 10
    assert [question for question, where in ROWS if not where] == []


@pytest.mark.parametrize(("question", "where"), ROWS, ids=[question for question, _ in ROWS])
def test_an_answer_is_where_the_page_says(question: str, where: list[tuple[str, str]]) -> None:
    for path, name in where:
        assert name in names(ast.parse((ROOT / path).read_text(encoding="utf-8"))), question


def test_the_page_has_the_layers_that_are_held() -> None:
    contract = CONFIG["tool"]["importlinter"]["contracts"][0]
    layers = [f"({one})" if "|" in one else one for one in reversed(contract["layers"])]
    assert f"`{' < '.join(layers)}`" in part("Folders, and who may import whom")


def test_the_page_says_what_each_package_holds() -> None:
    listed = re.findall(r"^(\w+)  +\S", part("Folders, and who may import whom"), re.MULTILINE)
    assert sorted(listed) == sorted([*PACKAGES, "web"])
