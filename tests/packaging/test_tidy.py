"""The tree stays tidy: short files, honest names, described packages, no machine's own paths."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = _CONFIG["tool"]["uv"]["build-backend"]["module-name"]

MAX_LINES = 400
#: Files allowed to be longer, with the length they may have. Entries only shrink or go.
RATCHET: dict[str, int] = {}

#: Words that say nothing about what a module holds, or that have another name here.
BANNED_WORDS = {
    "common",
    "helper",
    "helpers",
    "manager",
    "managers",
    "misc",
    "task",
    "tasks",
    "util",
    "utils",
}

#: Module names that would hide a standard module when a file is run by its path.
BANNED_MODULES = {
    "calendar",
    "code",
    "logging",
    "queue",
    "random",
    "select",
    "signal",
    "time",
    "types",
}

#: A home or work folder of one machine, but not the middle of a longer path or of a web address.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/-])(?:/(?:root|work)\b(?!-)|/(?:home|Users)/\w|[A-Z]:\\Users)"
)

#: Made by tools, never written by us.
GENERATED = {
    ".git",
    ".venv",
    ".uv",
    ".brokers",
    ".slurm",
    ".kubernetes",
    "demo-real",
    "secrets",
    "build",
    "dist",
    "__pycache__",
    "node_modules",
}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def every_file(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in GENERATED or path.name.endswith("_cache") or path.name == ".hypothesis":
            continue
        if path.is_dir() and not path.is_symlink():
            yield from every_file(path)
        elif path.is_file():
            yield path


def test_no_module_is_too_long() -> None:
    lengths = {named(path): len(path.read_bytes().splitlines()) for path in modules()}
    too_long = {
        name: length for name, length in lengths.items() if length > RATCHET.get(name, MAX_LINES)
    }
    assert not too_long, f"split these, the limit is {MAX_LINES} lines"


def test_the_ratchet_only_tightens() -> None:
    lengths = {name: len((ROOT / name).read_bytes().splitlines()) for name in RATCHET}
    assert lengths == RATCHET
    assert all(length > MAX_LINES for length in lengths.values())


#: `[text](target)` and `![text](target)`, but not within backticks.
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)(?!`)")


def pages() -> list[Path]:
    named_pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return named_pages + sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", pages(), ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    paths = [target.partition("#")[0] for target in targets if "://" not in target]
    broken = [path for path in paths if path and not (page.parent / path).exists()]
    assert not broken, "these links lead nowhere"


def test_links_are_found() -> None:
    assert LINK.findall("see [a](b.md#c) and ![d](e/f.svg)") == ["b.md#c", "e/f.svg"]


def test_names_say_what_they_hold() -> None:
    bad = [
        named(path)
        for path in modules()
        if path.stem in BANNED_MODULES
        or any(BANNED_WORDS & set(part.split("_")) for part in path.relative_to(ROOT).parts[:-1])
        or BANNED_WORDS & set(path.stem.split("_"))
    ]
    assert not bad, "rename these after what they do"


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_every_folder_of_modules_is_a_described_package() -> None:
    undescribed = []
    for folder in sorted({path.parent for path in modules()}):
        init = folder / "__init__.py"
        if not init.is_file() or not ast.get_docstring(ast.parse(init.read_bytes())):
            undescribed.append(named(init))
    assert not undescribed, "each of these needs a docstring that says what the package is"


def test_no_file_mentions_a_path_of_one_machine() -> None:
    found = []
    for path in every_file():
        data = path.read_bytes()
        if b"\0" in data[:8192]:  # not text
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{named(path)}:{number}")
    assert not found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("cd " + "/" + "work/main", True),
        ("see `/" + "root/.cache`", True),
        ("/" + "home/ann/tidegate", True),
        ("https://example.org/" + "home/ann", False),
        ("docs/" + "work", False),
        ("/" + "workload.json", False),
    ],
)
def test_machine_paths_are_recognised(text: str, is_found: bool) -> None:
    assert bool(MACHINE_PATH.search(text)) == is_found
