"""Every page of docs: the commands, files and settings that it names are there."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from console.verbs import make_app
from services import reference
from services.config import load
from tests.deploy.test_compose_files import SERVICES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0].isalpha()}
#: Folders and files that a reader makes, and a name within a file.
NOT_HERE = ("build/", "compose/secrets/", "scheduler/policies/modest.py", "simulator/cores.Wire")
#: A type of message, and a module.
NO_SETTINGS = {"agent.rebirth", "log.send", "scheduler.goodput"}


def commands(page: Path) -> Iterator[list[str]]:
    """Every command of every block, in words, without the variables before it."""
    text = page.read_text(encoding="utf-8")
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if kind not in ("sh", ""):
            continue
        typed = re.sub(r"<<'?(\w+)'?(.*)\n(?:.*\n)*?\1\n", r"\2\n", block).replace("\\\n", " ")
        for line in typed.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set(";&|"):
                    if words:
                        yield words
                    words = []
                elif words or not re.fullmatch(r"\w+=.*", word):
                    words.append(word)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_names_what_there_is(page: Path) -> None:
    for words in commands(page):
        names = [Path(word).name for word in words]
        if "tidegate" in names:
            check_verb(words[names.index("tidegate") + 1 :])
        if words[:2] == ["docker", "compose"]:
            assert set(words) & SERVICES.keys() or words[4] in ("up", "ps"), words
        if words[0] == "make" and words[1:] and words[1].isalpha():
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in words:
            if (path := word.removeprefix("/")).startswith(("compose/", "docs/", "examples/")):
                assert (ROOT / path).exists(), words


@cache
def command() -> Any:
    """All verbs, as the command has them."""
    return typer.main.get_command(make_app())


def check_verb(words: list[str]) -> None:
    verb = command()
    while words and words[0] in getattr(verb, "commands", {}):
        verb, words = verb.commands[words[0]], words[1:]
    words = words[: words.index("--")] if "--" in words else words
    flags = {flag for one in verb.params for flag in (*one.opts, *one.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= flags | {"-", "--help"}, words
    load(None, [word for word in words if re.match(r"\w+\.\w+=", word)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_settings_in_the_text_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    quoted = [word for part in re.findall(r"`([^`\n]+)`", text) for word in part.split()]
    paths = {word.partition("::")[0] for word in quoted if word.partition("/")[0] in FOLDERS}
    assert [
        path
        for path in sorted(paths)
        if "/" in path and not path.startswith(NOT_HERE) and not (ROOT / path).exists()
    ] == []
    named = re.compile(r"(?:agent|scheduler|bridge|kafka|mqtt|http|log)(?:\.\w+)+")
    settings = {word.partition("=")[0] for word in quoted} - NO_SETTINGS
    assert {word for word in settings if named.fullmatch(word)} <= keys()


@cache
def keys() -> set[str]:
    """Every key of a configuration, with its section before it."""
    found, section = set(), ""
    for line in reference.page().splitlines():
        if heading := re.match(r"## `\[+([^\]]+)\]+`", line):
            section = heading[1].removesuffix(".NAME")
            found.add(section)
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.add(f"{section}.{row[1]}")
    return found


def test_commands_are_found() -> None:
    found = list(commands(ROOT / "docs" / "tutorial.md"))
    assert ["make", "demo"] in found
    assert ["tidegate", "why", "wide"] in found
    assert not any("[agent]" in words for words in found), "a file that is written is no command"
