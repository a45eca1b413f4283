"""No circle of imports: not of modules, nor of folders; `lint-imports` holds the layers above them.

All imports count: also those within functions, and those for type checkers alone, which
`lint-imports` and Python itself are content with.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.packaging.test_packaging import PACKAGES, ROOT

Graph = dict[str, set[str]]
MODULES = {
    ".".join((path.parent if path.name == "__init__.py" else path.with_suffix("")).parts): source
    for package in PACKAGES
    for source in (ROOT / package).rglob("*.py")
    for path in (source.relative_to(ROOT),)
}
FOLDERS = sorted(name for name, source in MODULES.items() if source.name == "__init__.py")


def imported(tree: ast.AST, modules: Mapping[str, object]) -> Iterator[str]:
    """Every module of ours that this one names in an import, wherever that is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            for one in node.names:
                full = f"{node.module}.{one.name}"
                if (found := full if full in modules else str(node.module)) in modules:
                    yield found


@pytest.fixture(scope="module")
def imports() -> Graph:
    """What each module imports."""
    return {
        name: {one for one in imported(ast.parse(source.read_text()), MODULES) if one != name}
        for name, source in MODULES.items()
    }


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """A circle of a graph; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def within(folder: str, imports: Graph) -> Graph:
    """The imports of what is directly in a folder: its files, and its folders as a whole."""
    depth, before = folder.count(".") + 2, f"{folder}."

    def part(name: str) -> str:
        return ".".join(name.split(".")[:depth])

    found: Graph = {}
    for name, others in imports.items():
        if name.startswith(before):
            mine = found.setdefault(part(name), set())
            mine |= {part(one) for one in others if one.startswith(before)} - {part(name)}
    return found


def test_modules_import_in_no_circle(imports: Graph) -> None:
    assert circle(imports) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_in_a_folder_imports_in_no_circle(folder: str, imports: Graph) -> None:
    """So that each folder can be read, tested and moved without those that build on it."""
    assert circle(within(folder, imports)) == []


def test_a_circle_is_found() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from runtime.a import x\n"
    assert [*imported(ast.parse(source), {"runtime.a": None})] == ["runtime.a"]
    graph = {"runtime.a.x": {"runtime.b"}, "runtime.b": {"runtime.a.y"}, "runtime.a.y": set()}
    assert circle(graph) == []
    assert set(circle(within("runtime", graph))) == {"runtime.a", "runtime.b"}
