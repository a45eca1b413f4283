"""Owners of real processes in an agent that is killed in the middle; a real roll-back."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.core import NodeDrained, NodeHandedBack
from runtime.durable import write_json
from runtime.owners import (
    HookLender,
    HookOptions,
    ReplicaLender,
    ReplicaOptions,
    ReplicaSpec,
    Retry,
    ServedOwner,
)
from tests.lending import PYTHON, lines, living, report, served, swept
from tests.patience import wait_until
from tests.ports import alive

#: An agent that gives its owner one order and goes on until it is killed.
AGENT = """
import sys, time
from pathlib import Path
from tests.process.test_owners_crash import replicas
folder, order = Path(sys.argv[1]), sys.argv[2]
owner = replicas(folder)
getattr(owner, order)("s1", time.time())
while True:
    for said in owner.advance(time.time()):
        print(type(said).__name__, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path / "replicas"):
        yield tmp_path


def replicas(folder: Path) -> ServedOwner:
    """Two replicas that need until `go` is there to leave, and until `ready` to be ready."""
    script = (
        f"trap 'echo asked >> {folder}/asked;"
        f"while ! test -e {folder}/go; do sleep 0.02; done; exit 0' TERM;"
        f"echo up $$ >> {folder}/ups; while :; do sleep 0.02; done"
    )
    specs = [
        ReplicaSpec(f"r{i}", "s1", ("sh", "-c", script), ready=f"file://{folder}/ready.{i}")
        for i in range(2)
    ]
    options = ReplicaOptions(grace_s=600.0, restart_s=0.05, tend_every_s=0.1)
    lender = ReplicaLender(specs, ["s1"], folder / "replicas", options)
    return served(lender, folder)


def drained(owner: ServedOwner) -> None:
    owner.drain("s1", time.time())
    assert report(owner) == NodeDrained("s1")


def back(owner: ServedOwner) -> None:
    owner.hand_back("s1", time.time())
    assert report(owner) == NodeHandedBack("s1")


def kill_during(order: str, folder: Path, moment: Callable[[], object]) -> None:
    """Run an agent with one order, and kill it when `moment` has come."""
    agent = subprocess.Popen(
        [PYTHON, "-c", AGENT, str(folder), order],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],  # where `tests` is found
    )
    wait_until(moment, f"that never came in a {order}")
    agent.kill()
    said, _ = agent.communicate()
    assert said == b"", "it was to be killed before the end"


def test_killed_in_the_middle_of_everything_it_ends_well(folder: Path) -> None:
    kill_during("hand_back", folder, lambda: len(lines(folder / "ups")) == 2)
    first = living(folder / "ups")
    assert len(first) == 2, "replicas outlive the agent"

    kill_during("drain", folder, lambda: lines(folder / "asked"))
    assert living(folder / "ups") == first, "they may finish what they serve"
    owner = replicas(folder)
    owner.drain("s1", time.time())
    for _ in range(20):
        assert owner.advance(time.time()) == [], "they are still there"
    (folder / "go").touch()
    assert report(owner) == NodeDrained("s1")
    assert not living(folder / "ups")

    kill_during("hand_back", folder, lambda: len(lines(folder / "ups")) == 4)
    second = living(folder / "ups")
    assert len(second) == 2
    owner = replicas(folder)
    owner.hand_back("s1", time.time())
    for _ in range(20):
        assert owner.advance(time.time()) == [], "they are not ready yet"
    for index in range(2):
        (folder / f"ready.{index}").touch()
    assert report(owner) == NodeHandedBack("s1")
    assert living(folder / "ups") == second, "none was started twice"

    drained(owner)
    assert not living(folder / "ups")


def test_a_restart_with_the_node_lent_starts_nobody_there(folder: Path) -> None:
    (folder / "go").touch()
    drained(replicas(folder))
    drained(replicas(folder))
    assert not lines(folder / "ups")


def test_a_drain_hook_that_fails_half_way_is_rolled_back_by_the_other(tmp_path: Path) -> None:
    server, calls = tmp_path / "server", tmp_path / "calls"
    stop = f"test -e {server} && kill -9 $(cat {server}); rm -f {server}; echo stop >> {calls};"
    fails_once = f"test $(wc -l < {calls}) -gt 2 || exit 9"
    begin = f"test -e {server} || {{ sleep 600 & echo $! > {server}; }}; echo start >> {calls}"
    options = HookOptions(
        drain=("sh", "-c", stop + fails_once),
        hand_back=("sh", "-c", begin),
        confirm_hand_back=("sh", "-c", f"kill -0 $(cat {server})"),
    )
    owner = served(HookLender(options, tmp_path / "hooks"), tmp_path, Retry(first_s=0.05))
    back(owner)
    drained(owner)
    assert lines(calls) == ["start", "stop", "start", "stop"]
    assert owner.counters.rollbacks == 1
    assert not server.exists()
    back(owner)
    pid = int(server.read_text())
    assert alive(pid)
    os.kill(pid, 9)


def test_what_outlives_power_is_forced_to_the_disk_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write_json(tmp_path / "owner.json", {"a": 1})
    draft, folder = forced
    assert draft.startswith(str(tmp_path / ".owner.json."))
    assert folder == str(tmp_path)
