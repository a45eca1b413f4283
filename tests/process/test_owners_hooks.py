"""Hooks as real processes: they work, fail, hang, are missing, are called off, and survive us."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.owners import HookLender, HookOptions, Outcome
from tests.lending import PYTHON, failed, lines, outcome, swept
from tests.patience import wait_until
from tests.ports import alive


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path / "hooks") as place:
        yield place


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def drained(lender: HookLender, node: str = "s1") -> Outcome:
    lender.begin(node, "drain", time.time())
    return outcome(lender)


def options(drain: tuple[str, ...], **more: object) -> HookOptions:
    values = {"hand_back": ("true",), "confirm_every_s": 0.05, "kill_after_s": 0.3, **more}
    return HookOptions(drain, **values)  # type: ignore[arg-type]  # a test gives what it likes


def test_both_hooks_run_with_the_node_filled_in(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/a/home")
    said = tmp_path / "said"
    drain, back = (
        sh(f"echo drain {{node}} ${{HOME}} >> {said}"),
        sh(f"echo back {{node}} >> {said}"),
    )
    lender = HookLender(HookOptions(drain, back), folder)
    assert lender.next_due_s() is None
    assert drained(lender) == Outcome("s1", "drain")
    lender.begin("s1", "hand_back", time.time())
    assert outcome(lender) == Outcome("s1", "hand_back")
    assert lines(said) == ["drain s1 /a/home", "back s1"]
    assert lender.next_due_s() is None


def test_it_is_done_only_when_confirmed(folder: Path, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    confirm = sh(f"echo {{node}} >> {tries}; test $(wc -l < {tries}) -ge 3")
    lender = HookLender(options(("true",), confirm_drain=confirm), folder)
    assert drained(lender) == Outcome("s1", "drain")
    assert lines(tries) == ["s1"] * 3


def test_what_is_never_confirmed_has_failed(folder: Path) -> None:
    confirm = sh("echo GPU 3 is busy; exit 4")

    def operation(limit_s: float) -> Outcome:
        given = options(("true",), confirm_drain=confirm, confirm_timeout_s=limit_s)
        return drained(HookLender(given, folder))

    failed(operation, "drain hook: not confirmed within ", "left with status 4", "GPU 3 is busy")


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (sh("echo no such server >&2; exit 3"), "left with status 3; "),
        (sh("kill -9 $$"), "died of signal 9"),
        (("/does/not/exist",), "was not found (status 127); give its full path"),
        (("/etc/passwd",), "may not be run (status 126); make it executable"),
    ],
)
def test_a_hook_that_fails_says_why(folder: Path, hook: tuple[str, ...], says: str) -> None:
    assert says in drained(HookLender(options(hook), folder)).error


def test_a_hook_that_hangs_is_ended_with_all_it_started(folder: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hook = sh(f"trap '' TERM; sleep 600 & echo $$ $! > {pids}; echo up; wait; sleep 600")
    failed(
        lambda limit_s: drained(HookLender(options(hook, timeout_s=limit_s), folder)),
        "took too long and was ended",
        "ends: up",
    )
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_another_deed_ends_the_hook_that_runs_and_takes_its_turn(
    folder: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    drain = sh(
        f"trap 'echo saved >> {said}; exit 0' TERM; echo $$ > {tmp_path}/pid; sleep 600 & wait"
    )
    lender = HookLender(options(drain, hand_back=sh(f"echo back >> {said}")), folder)
    lender.begin("s1", "drain", time.time())
    lender.begin("s1", "drain", time.time())
    wait_until(lambda: not lender.poll(time.time()) and lines(tmp_path / "pid"), "it never began")
    lender.begin("s1", "hand_back", time.time())
    assert outcome(lender) == Outcome("s1", "hand_back")
    assert lines(said) == ["saved", "back"], "the first was over before the second began"
    assert lender.poll(time.time()) == []


def test_a_server_that_a_hook_starts_is_left_alone(folder: Path, tmp_path: Path) -> None:
    back = sh(f"sleep 600 & echo $! > {tmp_path}/pid")
    lender = HookLender(options(("true",), hand_back=back), folder)
    lender.begin("s1", "hand_back", time.time())
    assert outcome(lender) == Outcome("s1", "hand_back")
    assert drained(HookLender(options(("true",)), folder)) == Outcome("s1", "drain")
    server = int((tmp_path / "pid").read_text())
    assert alive(server)
    os.kill(server, signal.SIGKILL)


def test_the_log_is_bounded(folder: Path) -> None:
    hook = sh("i=0; while [ $i -lt 3000 ]; do echo line $i of many; i=$((i+1)); done; exit 1")
    lender = HookLender(options(hook, log_bytes=4096), folder)
    assert drained(lender).error.endswith("line 2999 of many")
    lender.poll(time.time())
    assert (folder / "s1.log").stat().st_size <= 4096


def test_a_log_that_cannot_be_used_fails_the_hook_and_not_the_agent(folder: Path) -> None:
    (folder / "s1.log").mkdir(parents=True)
    assert "s1.log" in drained(HookLender(options(("true",)), folder)).error


def test_nodes_do_not_wait_for_each_other(folder: Path) -> None:
    lender = HookLender(options(sh("test {node} = quick || sleep 600")), folder)
    lender.begin("slow", "drain", time.time())
    assert drained(lender, "quick") == Outcome("quick", "drain")


#: An agent that begins a drain, polls until the hook runs, and then waits to be killed.
AGENT = """
import sys, time
from pathlib import Path
from runtime.owners import HookLender, HookOptions
folder, said = Path(sys.argv[1]), sys.argv[2]
drain = ("sh", "-c", f"echo began $$ >> {said}; sleep 600; echo ended >> {said}")
lender = HookLender(HookOptions(drain, ("true",)), folder)
lender.begin("s1", "drain", time.time())
while True:
    lender.poll(time.time())
    time.sleep(0.01)
"""


def test_after_a_kill_the_hook_that_still_runs_is_ended_before_the_next(
    folder: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    agent = subprocess.Popen([PYTHON, "-c", AGENT, str(folder), str(said)])
    wait_until(lambda: lines(said), "the hook never began")
    agent.kill()
    agent.wait()
    (began,) = lines(said)
    orphan = int(began.split()[1])
    assert alive(orphan), "hooks outlive a killed agent"

    lender = HookLender(options(sh(f"echo again >> {said}")), folder)
    assert drained(lender) == Outcome("s1", "drain")
    assert lines(said) == [began, "again"]
    assert not alive(orphan)


@pytest.mark.parametrize(
    "wrong",
    [
        {"drain": ()},
        {"hand_back": ()},
        {"timeout_s": 0.0},
        {"confirm_timeout_s": -1.0},
        {"confirm_every_s": 0.0},
        {"kill_after_s": -1.0},
        {"log_bytes": 10},
    ],
)
def test_options_name_the_field_that_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        options(**{"drain": ("true",), **wrong})  # type: ignore[arg-type]
