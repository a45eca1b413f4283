"""docs/branch.md: each command as it stands there, one after the other."""

from pathlib import Path

import orjson
import pytest

from tests.deploy.test_pages import commands
from tests.golden.alter import Capture, ran

PAGE = Path(__file__).resolve().parents[2] / "docs" / "branch.md"


@pytest.mark.slow
def test_what_the_page_does_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [words[1:] for words in commands(PAGE) if words[0] == "tidegate"]
    assert {words[0] for words in asked} == {"simulate", "branch", "replay", "jobs"}
    differ = []
    for words in asked:
        code, shown, why = ran(capsys, *words)
        assert code == 0, (words, why)
        if words[0] == "branch":
            assert "control" in shown
            differ.append("First decision that differs" in shown)
    assert sum(differ) >= 3
    code, shown, _ = ran(capsys, "replay", "other.db", "--json", "-")
    assert code == 0
    assert orjson.loads(shown)["identical"]
