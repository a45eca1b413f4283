"""What the command says of its seeds: which hang, and what the storms came through."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler.service import SchedulerService
from tests.whole import coverage
from tests.whole.__main__ import main
from tests.whole.storm import draw
from tests.whole.world import Outcome, run


def _account(monkeypatch: pytest.MonkeyPatch, file: Path, *args: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr("sys.argv", ["whole", "--json", str(file), *args])
    code = main()
    return code, json.loads(file.read_text())


async def _turns(self: SchedulerService, records: object) -> None:
    while True:
        time.sleep(0.001)


@pytest.mark.parametrize("hang", ["turns", "waits"])
def test_a_seed_that_hangs_is_named(
    hang: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def waits(self: SchedulerService, records: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(SchedulerService, "tick", _turns if hang == "turns" else waits)
    args = ("--seeds", "2", "--seed", "5", "--patience", "1")
    code, account = _account(monkeypatch, tmp_path / "out.json", *args)
    assert code == 1
    assert account["stuck_seeds"] == [5, 6]
    assert [one["seed"] for one in account["broken_seeds"]] == [5, 6]
    said = capsys.readouterr().out
    assert "make simulate-faults SEEDS=1 SEED=6 VERBOSE=1" in said
    if hang == "turns":
        assert "test_account.py" in account["broken_seeds"][0]["laws"][0]


def test_the_account_says_what_was_come_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, account = _account(monkeypatch, tmp_path / "out.json", "--seeds", "1", "--hours", "0.5")
    assert code == 0
    assert account["stuck_seeds"] == []
    transitions, commands = account["transitions"], account["commands"]
    assert transitions["counts"]["job: queued GangStarting"] >= 1
    assert transitions["counts"]["command: issued CommandDone"] >= 1
    assert transitions["seen"] + len(transitions["never"]) == transitions["of"]
    assert set(transitions["counts"]) <= coverage.all_transitions()
    assert commands["counts"]["tidegate.gang.start.v1"] >= 1
    assert commands["seen"] <= commands["of"] == len(coverage.all_commands())


def test_an_error_of_the_harness_is_named_by_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> Outcome:
        raise RuntimeError("nothing is right")

    monkeypatch.setattr("tests.whole.written.broken", wrong)
    outcome = run(draw(5, 0.2))
    assert outcome.seed == 5
    assert outcome.broken == ["the run ended: RuntimeError: nothing is right"]
