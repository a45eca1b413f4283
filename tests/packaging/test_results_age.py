"""Each page of docs/results says, by git's history, how much of its code is newer."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.claim import Claim
from benchmarks.claims import MEASURES
from benchmarks.results import History, NoHistoryError

PATHS = ("code",)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def change(folder: Path, name: str) -> str:
    """Commit a change of a file; give the commit."""
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(file.read_text() + "more\n" if file.exists() else "first\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-m", name)
    return git(folder, "rev-parse", "--short=12", "HEAD")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Make a repository with one commit of code."""
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init")
    change(folder, "code/a.py")
    return folder


def test_pages_say_how_much_is_newer() -> None:
    try:
        false = [
            (page.name, said)
            for page, said in results.ages(results.ROOT / "docs" / "results", History(results.ROOT))
        ]
    except NoHistoryError as error:
        pytest.skip(f"THE AGE OF PAGES IS NOT CHECKED: {error}")
    assert false == [], "`python -m benchmarks.results --write` writes these lines"


def test_only_what_touches_the_code_is_newer(clone: Path) -> None:
    measured = git(clone, "rev-parse", "HEAD")
    change(clone, "docs.md")
    assert History(clone).newer(measured, PATHS) == 0
    change(clone, "code/b.py")
    change(clone, "code/a.py")
    assert History(clone).newer(measured, PATHS) == 2
    (clone / "docs.md").write_text("not committed")
    assert History(clone).newer(measured, PATHS) == 2
    (clone / "code" / "c.py").write_text("not committed: the commit that will be is counted")
    assert History(clone).newer(measured, PATHS) == 3
    git(clone, "add", "-A")
    git(clone, "commit", "-m", "c")
    assert History(clone).newer(measured, PATHS) == 3


def test_a_page_whose_line_is_missing_or_false_is_told_of(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = git(clone, "rev-parse", "HEAD")
    run = {"command": "x", "commit": measured, "date": "x", "minutes": 1, "machine": "x"}
    (clone / "data").mkdir()
    (clone / "data" / "x.json").write_text(json.dumps(run))
    (clone / "x.md").write_text("# X\n\nText.\n")
    name = "x.md"
    monkeypatch.setattr(results, "MEASURES", {name: PATHS})
    claims = [Claim(name, "a figure", "7", "-", ("x.json",))]

    def wrong() -> list[str]:
        return [said for _, said in results.ages(clone, History(clone), claims)]

    at = f"*Measured at `{measured[:7]}`; of the code that it measures"
    assert wrong() == [f"{at} nothing is newer.*"]
    (clone / name).write_text(results.with_line(clone / name, wrong()[0]))
    assert wrong() == []
    change(clone, "code/a.py")
    assert wrong() == [f"{at} at least 1 commit is newer.*"]
    (clone / name).write_text(results.with_line(clone / name, wrong()[0]))
    assert wrong() == []
    (clone / name).write_text((clone / name).read_text().replace("at least 1", "at least 3"))
    assert wrong() == [f"{at} at least 1 commit is newer.*"]


def test_without_history_nothing_is_said(clone: Path, tmp_path: Path) -> None:
    measured = git(clone, "rev-parse", "HEAD")
    change(clone, "code/b.py")
    git(tmp_path, "clone", "-q", "--depth", "1", clone.as_uri(), "shallow")
    (clone / "inner").mkdir()
    for folder in (tmp_path / "shallow", tmp_path, clone / "inner"):
        with pytest.raises(NoHistoryError):
            History(folder).newer(measured, PATHS)
    with pytest.raises(LookupError, match="not in this history; if it was rebased"):
        History(clone).newer("0123456789ab", PATHS)


def test_without_history_the_command_says_so_and_checks_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise NoHistoryError("this is a shallow clone")

    monkeypatch.setattr(History, "newer", refuse)
    assert results.main(["--check"]) == 0
    assert "THE AGE OF PAGES WAS NOT CHECKED: this is a shallow clone" in capsys.readouterr().err


def test_every_page_has_its_line() -> None:
    for name in MEASURES:
        text = (results.ROOT / "docs" / "results" / name).read_text(encoding="utf-8")
        assert text.splitlines()[2].startswith("*Measured at "), name
