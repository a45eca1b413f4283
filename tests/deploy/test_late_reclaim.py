"""docs/late-reclaim.md: each command as it stands there, and what the text says of it."""

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.deploy.test_pages import commands
from tests.golden.alter import Capture, ran

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_late_reclaim_is_found_and_prevented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    typed = commands(ROOT / "docs" / "late-reclaim.md")
    asked = [words[1:] for words in typed if words[0] == "tidegate"]
    found: dict[str, Any] = {}
    for words in asked:
        if words[:1] == ["branch"]:
            words = [*words, "--json", "-"]
        code, shown, why = ran(capsys, *words)
        assert code == 0, (words, why)
        found[" ".join(words)] = orjson.loads(shown) if words[0] == "branch" else shown
    history, better = (shown for words, shown in found.items() if words.startswith("loans history"))
    assert history.count(" 10 s") == 3
    assert "1672" in history
    # Called back at the moment at which they were due; afterwards five minutes earlier.
    assert history.count(" 0 s") == 4
    assert better.count(" 5 min ") == 4
    assert " 10 s" not in better
    (story,) = (shown for words, shown in found.items() if words.startswith("why"))
    assert "serve-002 goes back" in story
    (line,) = (shown for words, shown in found.items() if words.startswith("policy"))
    assert "tide:loans.lead_s=0:loans.warm_up_s=0" in line
    plain, short, enough = (shown for words, shown in found.items() if words.startswith("branch"))
    for one in (plain, short, enough):
        assert one["control"]["reclaims_late"] in (2, 3)
        assert one["branch"]["reclaims_late"] == 0
        assert one["branch"]["done"] == one["control"]["done"]
    missed = plain["control"]["short_gpu_h"]
    assert missed > 0.0
    assert [one["branch"]["short_gpu_h"] for one in (short, enough)] == [missed, 0.0]
    assert 5 < plain["control"]["lent_gpu_h"] - plain["branch"]["lent_gpu_h"] < 15
    # The record is older than today's `tide`, and says where; that a branch replays is held to
    # in tests/unit/test_branch.py.
    code, shown, _ = ran(capsys, "replay", "better.db", "--json", "-")
    assert code == 1
    assert orjson.loads(shown)["first_difference"]["number"] < 1600
