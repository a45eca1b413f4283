"""Gangs and agents are found by whoever looks from outside, and ended if that is wished."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.core import GangStarted
from runtime.executors.processes import boot_id, identity
from runtime.owners.processes import start
from runtime.store import AgentStore
from services.install import removal, status as statuses
from services.install.gangs import end, named, running_gangs
from services.install.layout import Layout
from services.install.replicas import running_replicas
from services.install.status import held, waiting
from services.install.wanted import InstallError
from tests.patience import wait_until
from tests.workers import TRAINER, Bench, python


def test_a_gang_is_found_without_its_agent_and_can_be_told_to_leave(jig: Bench) -> None:
    root = jig.options.root
    assert running_gangs(root) == []
    jig.start(python(TRAINER), 0, 1)
    jig.hears(GangStarted)
    jig.executor.close()
    found = running_gangs(root)
    assert found is not None
    (gang,) = found
    assert (gang.job, gang.epoch, gang.gpus, gang.workers) == ("j", 1, 2, 2)
    assert named(found) == "j (2 GPUs, epoch 1)"
    assert end(found) == []
    assert running_gangs(root) == []
    assert jig.pids() == set()


def test_gangs_that_run_on_without_an_agent_are_not_removed_by_the_way(
    jig: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is installed any more, as after `uninstall --force`; their folders are in use."""
    root = jig.options.root
    monkeypatch.setattr(statuses, "WORKERS", root)
    monkeypatch.setattr(statuses, "CONFIG", tmp_path / "none.toml")
    monkeypatch.setattr(statuses, "find_unit", lambda _: None)
    monkeypatch.setattr(removal, "STATE", root)
    monkeypatch.setattr(removal, "ETC", tmp_path / "etc")
    monkeypatch.setattr(removal, "booted", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    jig.start(python(TRAINER), 0, 1)
    jig.hears(GangStarted)
    jig.executor.close()
    found = statuses.look(None, Layout())
    assert not found.installed
    with pytest.raises(InstallError, match=r"gangs run here: j \(2 GPUs, epoch 1\)"):
        removal.remove(found, Layout(), purge=True, force=False)
    assert root.is_dir()
    done = removal.remove(found, Layout(), purge=True, force=True)
    assert done.gone[0] == "running gangs, told to save and leave: j (2 GPUs, epoch 1)"
    assert not root.exists()


def test_servers_of_the_owner_that_run_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A next agent would know nothing of them, and lend the GPUs that they use."""
    state = tmp_path / "state"
    owner = state / "workers" / "owner"
    owner.mkdir(parents=True)
    (owner / "owner.json").write_text("{}")
    monkeypatch.setattr(statuses, "CONFIG", tmp_path / "none.toml")
    monkeypatch.setattr(statuses, "find_unit", lambda _: None)
    monkeypatch.setattr(removal, "STATE", state)
    monkeypatch.setattr(removal, "WORKERS", state / "workers")
    monkeypatch.setattr(removal, "ETC", tmp_path / "etc")
    monkeypatch.setattr(removal, "booted", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    record = owner / "of-owner.json"
    server = start(["sleep", "1000"], record=record, log=owner / "log")
    try:
        named = f"of-owner (process {server.identity.pid})"
        found = statuses.look(None, Layout())
        with pytest.raises(InstallError, match=re.escape(f"run here: {named}; stop them first")):
            removal.remove(found, Layout(), purge=True, force=False)
        assert record.exists()
        kept = removal.remove(found, Layout(), purge=False, force=False)
        assert f"servers of the owner that run on, unwatched: {named}" in kept.left
        removal.remove(found, Layout(), purge=True, force=True)
        assert not state.exists()
        assert server.code() is None
    finally:
        server.identity.send(signal.SIGKILL)
        wait_until(lambda: server.code() is not None)
    assert running_replicas(state / "workers") == []


def test_no_folder_no_gangs(tmp_path: Path) -> None:
    assert running_gangs(tmp_path / "none") == []
    assert end([]) == []


def _run_folder(root: Path, said: object, order: object = None, name: str = "j/1") -> Path:
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    usual = {"placement": {"n": [0]}, "launch": {"grace_s": 0.0}}
    (folder / "order.json").write_text(json.dumps(usual if order is None else order))
    (folder / "shim.json").write_text(json.dumps(said))
    return folder


def _myself(**other: object) -> dict[str, object]:
    me = identity(os.getpid())
    assert me is not None
    said = {"boot": boot_id(), "pid": me.pid, "started": me.started, "workers": [[0, 1, 2]]}
    return {key: value for key, value in {**said, **other}.items() if value is not None}


def test_what_this_process_would_be_as_a_gang(tmp_path: Path) -> None:
    _run_folder(tmp_path, _myself())
    found = running_gangs(tmp_path)
    assert found is not None
    assert [gang.supervisor.pid for gang in found] == [os.getpid()]


@pytest.mark.parametrize(
    "other",
    [
        {"pid": None},
        {"pid": "self"},
        {"pid": f"../proc/{os.getpid()}"},
        {"pid": True},
        {"pid": -1},
        {"pid": 10**400},
        {"started": None},
        {"started": [1]},
        {"workers": 3},
        {"workers": None},
        {"resize": "done"},
        {"resize": {"state": "done"}},
        {"resize": {"state": "done", "epoch": "2"}},
    ],
)
def test_what_a_job_may_have_written_is_no_gang_and_no_traceback(
    tmp_path: Path, other: dict[str, object]
) -> None:
    _run_folder(tmp_path, _myself(**other))
    assert running_gangs(tmp_path) == []


@pytest.mark.parametrize(
    "order",
    [
        [],
        {},
        {"placement": [], "launch": {"grace_s": 1}},
        {"placement": {"n": 1}, "launch": {"grace_s": 1}},
        {"placement": {}, "launch": {"grace_s": "long"}},
        {"placement": {}, "launch": {"grace_s": float("nan")}},
        {"placement": {}, "launch": {"grace_s": 10**400}},
    ],
)
def test_an_order_that_makes_no_sense_is_no_gang(tmp_path: Path, order: object) -> None:
    _run_folder(tmp_path, _myself(), order)
    assert running_gangs(tmp_path) == []


def test_odd_names_links_and_pipes_hold_up_nobody(tmp_path: Path) -> None:
    _run_folder(tmp_path, _myself(), name="j/epoch")
    _run_folder(tmp_path, _myself(), name="j\x1b[2J/1")
    good = _run_folder(tmp_path / "other", _myself())
    for name, make in (("link", os.symlink), ("pipe", lambda _, to: os.mkfifo(to))):
        folder = _run_folder(tmp_path, _myself(), name=f"{name}/1")
        (folder / "shim.json").unlink()
        make(good / "shim.json", folder / "shim.json")
    deep = _run_folder(tmp_path, {}, name="deep/1")
    (deep / "shim.json").write_text("[" * 100_000)
    assert running_gangs(tmp_path) == []


def test_no_gang_is_waited_for_for_ever(tmp_path: Path) -> None:
    _run_folder(tmp_path, _myself(), {"placement": {}, "launch": {"grace_s": 1e300}})
    found = running_gangs(tmp_path)
    assert found is not None
    assert [gang.grace_s for gang in found] == [3600.0]


def test_root_signals_no_process_of_another_user_than_the_files(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root has files of two users")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        try:
            found = identity(victim.pid)
            assert found is not None
            folder = _run_folder(tmp_path, _myself(pid=found.pid, started=found.started))
            gangs = running_gangs(tmp_path)
            assert gangs is not None
            (gang,) = gangs
            os.chown(folder / "shim.json", 65534, 65534)
            assert running_gangs(tmp_path) == []
            # Also where it became another's after it was found.
            assert gang.supervisor.alive()
            monkey = replace(gang, uid=65534, grace_s=-14.0)
            assert end([monkey]) == [monkey]
            assert victim.poll() is None
        finally:
            victim.kill()


def test_a_pipe_in_place_of_the_memory_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "agent.db")
    assert held(tmp_path / "agent.db") == (False, None)
    assert waiting(tmp_path / "agent.db") is None


def test_an_agent_that_runs_is_known_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    assert held(path) == (False, None)
    assert waiting(path) is None
    assert not path.exists(), "root looks, and the file must become the agent's"
    AgentStore.open(path).close()
    assert held(path) == (False, None)
    assert waiting(path) == 0
    code = (
        "import sys; from runtime.store import AgentStore\n"
        f"store = AgentStore.open({str(path)!r})\nprint('open', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        assert held(path) == (True, other.pid)
        other.kill()
    assert held(path) == (False, None)


def test_what_a_killed_agent_left_is_not_counted_without_its_newest(tmp_path: Path) -> None:
    """Its newest messages are in a file beside; none was said to wait, where a hundred did."""
    path = tmp_path / "a#b%20?.db"
    AgentStore.open(path).close()
    assert waiting(path) == 0, "whatever it is called"
    code = (
        "import os, sqlite3, sys; memory = sqlite3.connect(sys.argv[1])\n"
        "memory.execute('CREATE TABLE more (x)'); memory.commit(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.with_name(f"{path.name}-wal").stat().st_size > 0
    assert waiting(path) is None
