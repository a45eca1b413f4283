"""docs/cli.md: up to date, with every verb and every flag."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text
from typer.main import get_command

from console import reference
from console.verbs import RENAMED, make_app


def every(verb: Any) -> Iterator[Any]:
    yield verb
    for inner in getattr(verb, "commands", {}).values():
        yield from every(inner)


def test_the_page_is_what_the_code_says() -> None:
    assert reference.main(["--check"]) == 0, "run python -m console.reference"


def test_every_verb_and_flag_is_there_with_a_meaning() -> None:
    text = reference.page()
    whole: Any = get_command(make_app())
    shown = {path: verb for path, verb in whole.commands.items() if not verb.hidden}
    assert whole.commands.keys() - shown.keys() == RENAMED.keys()
    for path, verb in shown.items():
        assert f"## `tidegate {path}`\n" in text
        for inner in getattr(verb, "commands", {}):
            assert f"### `tidegate {path} {inner}`\n" in text
    flags = {flag for verb in every(whole) for one in verb.params for flag in one.opts}
    assert [
        flag for flag in flags - {"--version"} if flag.startswith("--") and f"`{flag}" not in text
    ] == []
    assert [
        line for line in text.splitlines() if line.startswith("| `--") and line.endswith("|  |")
    ] == []


def test_the_examples_of_a_verb_are_of_that_verb() -> None:
    def check(path: str, verb: Any) -> None:
        for paragraph in (verb.help or "").split("\n\n"):
            example = " ".join(paragraph.split())
            assert not example.startswith("Example: ") or path in example, example
        for name, inner in getattr(verb, "commands", {}).items():
            if not inner.hidden:
                check(f"{path} {name}", inner)

    check("tidegate", get_command(make_app()))


def test_help_shows_all_that_is_written() -> None:
    whole: Any = get_command(make_app())
    for verb in every(whole):
        for text in (verb.help, *(getattr(one, "help", None) for one in verb.params)):
            # `[gateway.auth]` is taken for markup, and vanishes.
            assert Text.from_markup(text or "").plain == (text or ""), verb.name
