"""Kill -9 at ten random moments: the demo goes on, loses nothing, and does nothing twice."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from bus.clock import PacedClock
from bus.sqlite import SqliteBus
from schemas.topics import COMMANDS, EVENTS, JOURNAL
from tests.patience import wait_until

KILLS = 10
SEED = int(os.environ.get("TIDEGATE_SEED", "11"))
MAIN = [sys.executable, "-c", "from console.main import main; main()"]
#: One more kill falls into the start, before there is a leader.
STARTING_S = 0.3


def _demo(log: Path, result: Path) -> list[str]:
    # Slow enough to be alive at every kill, fast enough to end.
    options = ["--hours", "8", "--seconds", "16", "--seed", "7", "--failures", "0.02", "--no-live"]
    return [*MAIN, "demo", *options, "--log", str(log), "--json", str(result)]


@pytest.mark.slow
async def test_a_demo_killed_ten_times_goes_on(tmp_path: Path) -> None:
    print(f"seed {SEED}")  # noqa: T201 - shown when it fails
    rng = random.Random(SEED)
    log, result = tmp_path / "run.db", tmp_path / "run.json"
    _killed(log, result, lambda _: time.sleep(STARTING_S))
    kills = 0
    for _ in range(KILLS):
        pause_s = rng.uniform(0.0, 1.4)
        before = _leaders(log)

        def led(process: subprocess.Popen[bytes], before: int = before, s: float = pause_s) -> None:
            _wait_for_leader(process, log, before)
            time.sleep(s)

        kills += _killed(log, result, led)
    assert kills >= KILLS // 2, "the demo ended before it could be killed"

    last = subprocess.run(_demo(log, result), capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    figures = json.loads(result.read_text())
    assert figures["invariant_violations"] == 0
    assert figures["jobs_submitted"] > 20

    replayed = subprocess.run(
        [*MAIN, "replay", str(log), "--json", "-"], capture_output=True, text=True, check=False
    )
    assert replayed.returncode == 0, replayed.stderr
    verdict = json.loads(replayed.stdout)
    assert verdict["identical"] is True
    assert verdict["state_hash"] == figures["state_hash"]
    assert verdict["decisions"] == figures["decisions"]

    bus = SqliteBus.open_readonly(log, PacedClock(0.0, None))
    try:
        events = {
            message["id"]: message
            async for record in bus.read(EVENTS.name)
            if record.value is not None
            for message in [orjson.loads(record.value)]
        }
        leaders = [
            record.offset
            async for record in bus.read(JOURNAL.name)
            if record.value is not None and b'"kind":"LeaderStarted"' in record.value
        ]
        issued = {
            orjson.loads(record.value)["id"]
            async for record in bus.read(COMMANDS.name)
            if record.value is not None
        }
    finally:
        await bus.close()
    assert len(leaders) > kills, "it began anew instead of going on"
    _no_accepted_job_is_lost(events, figures)
    _no_command_took_effect_twice(events, issued, tmp_path / "run.db.agents")


def _killed(log: Path, result: Path, wait: Callable[[subprocess.Popen[bytes]], None]) -> bool:
    """Run the demo, wait, kill it; tell whether it was still alive."""
    process = subprocess.Popen(
        _demo(log, result), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        wait(process)
    finally:
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode != 0


def _leaders(log: Path) -> int:
    """Count the leaders in the journal; 0 while there is none to read."""
    if not log.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{log}?mode=ro", uri=True, timeout=5.0)) as connection:
            query = (
                "SELECT count(*) FROM records JOIN topics ON topics.id = records.topic "
                "WHERE topics.name = ? AND instr(value, ?)"
            )
            wanted = (JOURNAL.name, b'"kind":"LeaderStarted"')
            found: int = connection.execute(query, wanted).fetchone()[0]
            return found
    except sqlite3.OperationalError:  # it is being made right now
        return 0


def _wait_for_leader(process: subprocess.Popen[bytes], log: Path, before: int) -> None:
    wait_until(lambda: process.poll() is not None or _leaders(log) > before, "a leader")


def _no_accepted_job_is_lost(events: dict[str, dict[str, object]], figures: dict[str, int]) -> None:
    accepted = {
        message["subject"]
        for message in events.values()
        if message["type"] == "tidegate.job.submitted.v1"
    }
    assert figures["jobs_submitted"] == len(accepted)


def _no_command_took_effect_twice(
    events: dict[str, dict[str, object]], issued: set[str], agents: Path
) -> None:
    """By the agents' own words: every worker of an epoch started at most once."""
    started = Counter(
        (data["job"], data["epoch"], data["node"])
        for message in events.values()
        if message["type"] == "tidegate.worker.started.v1"
        for data in [message["data"]]
        if isinstance(data, dict)
    )
    assert started, "nothing ever started"
    assert max(started.values()) == 1, started.most_common(3)
    outcomes: dict[str, set[str]] = {}
    for message in events.values():
        data = message["data"]
        if message["type"] == "tidegate.command.acknowledged.v1" and isinstance(data, dict):
            outcomes.setdefault(str(data["command"]), set()).add(str(data["outcome"]))
    assert outcomes.keys() <= issued
    assert all(len(outcome) == 1 for outcome in outcomes.values()), "a command had two outcomes"
    for path in sorted(agents.glob("*.db")):
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
