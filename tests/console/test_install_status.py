"""`tidegate edge-agent status`: what it says of an agent, or of none, and what it cannot know."""

import json
import os
from pathlib import Path

import pytest

from console.agent_status import lines
from runtime.executors.processes import boot_id
from services.config import load
from services.install import status as statuses, systemd
from services.install.layout import Layout
from tests.console.conftest import Run
from tests.console.installing import Site


def test_status_and_uninstall_of_a_tree(tidegate: Run, site: Site) -> None:
    assert "No agent is installed" in tidegate.refuses("edge-agent", "status", "--root", site.tree)
    none = tidegate.needs_nothing("edge-agent", "uninstall", "--root", site.tree)
    assert none.startswith("No agent is installed: there is no ")
    tidegate(*site.words())
    ran = tidegate.does("edge-agent", "status", "--root", site.tree, "--json", "-")
    said = json.loads(ran.out)
    assert (said["agent"], said["runs"], said["spool_messages"]) == ("edge-17", False, None)
    assert said["unit"] == {"state": None, "enabled": None, "restarts": None, "user": "tidegate"}
    ran = tidegate.does("edge-agent", "uninstall", "--root", site.tree)
    assert "removed /etc/tidegate/edge-agent.key" in ran.out
    assert "left    /var/lib/tidegate" in ran.out
    assert [path for path in site.tree.rglob("*") if path.is_file()] == []
    assert site.at("/var/lib/tidegate/workers").is_dir()
    tidegate("edge-agent", "uninstall", "--purge", "--root", site.tree)
    assert not site.at("/var/lib/tidegate").exists()


def test_a_state_file_that_one_may_not_read_says_nothing_of_the_agent(
    tmp_path: Path,
) -> None:
    memory, own = tmp_path / "agent.db", tmp_path / "own.toml"
    memory.touch(mode=0)
    own.write_text(
        f"[mqtt]\nurl = 'mqtt://b'\n[agent]\nname = 'e'\nstate_file = '{memory}'\n"
        "runs = 'simulated'\n"
    )
    loaded = load(own)
    root = not os.geteuid()
    if root:
        os.seteuid(65534)
    try:
        assert statuses.held(memory) == (None, None)
        status = statuses.Status(own, loaded)
        statuses._look_at_agent(status, loaded, Layout())
    finally:
        if root:
            os.seteuid(0)
    assert status.runs is None
    assert [one.split(",")[0] for one in status.problems] == [f"{memory} is closed to this user"]
    assert next(one.found for one in lines(status)) == "not known: this user may not look"


def test_a_run_folder_that_a_job_spoilt_stops_no_status(tidegate: Run, site: Site) -> None:
    folder = site.folder / "workers/runs/j/1"
    folder.mkdir(parents=True)
    (folder / "order.json").write_text("{}")
    (folder / "shim.json").write_text(json.dumps({"boot": boot_id()}))
    own = site.folder / "own.toml"
    own.write_text(
        f"bus = 'sqlite:{site.folder}/bus.db'\n[agent]\nname = 'edge-17'\nruns = 'processes'\n"
        f"owner = 'none'\ngpus = 1\nstate_file = '{site.folder}/agent.db'\n[agent.workers]\n"
        f"isolation = 'none'\nfolder = '{site.folder}/workers'\ncheckpoints = 'file://{site.folder}'\n"
    )
    ran = tidegate("edge-agent", "status", "--config", own, "--json", "-")
    assert ran.code == 1, ran.err
    assert json.loads(ran.out)["gangs"] == []


def test_a_unit_that_failed_is_a_problem_with_what_to_do(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidegate(*site.words())
    said = {
        "ActiveState": "failed",
        "SubState": "failed",
        "Result": "exit-code",
        "UnitFileState": "enabled",
    }
    unit = systemd.Unit({**said, "NRestarts": "7"}, "")
    status = statuses.Status(site.at("/etc/tidegate/edge-agent.toml"), unit=unit)
    monkeypatch.setattr(statuses, "booted", lambda: True)
    statuses._look_at_unit(status, Layout())
    (problem,) = status.problems
    assert "failed (failed, exit-code)" in problem
    assert "journalctl -u tidegate-edge-agent" in problem
