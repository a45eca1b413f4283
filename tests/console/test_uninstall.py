"""`tidegate edge-agent uninstall`: what it removes, what it leaves, and what stops it."""

import shutil
import subprocess
import sys

import pytest

from services.install import removal, systemd
from services.process import END_S
from tests.console.conftest import Run
from tests.console.installing import Site
from tests.workers import DEEP


def test_what_cannot_be_removed_is_a_problem_and_no_bad_usage(tidegate: Run, site: Site) -> None:
    tidegate(*site.words())
    (stuck := site.at("/etc/tidegate/edge-agent.old")).mkdir()
    ran = tidegate("edge-agent", "uninstall", "--root", site.tree)
    assert (ran.code, ran.out) == (1, "")
    assert str(stuck) in ran.err
    assert ran.err.endswith(" It is not all removed; the same command goes on.\n")
    stuck.rmdir()
    assert "removed" in tidegate.does("edge-agent", "uninstall", "--root", site.tree).out
    assert not site.at("/etc/tidegate").exists()


def test_what_a_killed_installation_left_is_removed_too(tidegate: Run, site: Site) -> None:
    tidegate(*site.words())
    units = site.at("/etc/systemd/system")
    drafts = [
        site.at("/etc/tidegate/.edge-agent.key.17-18.draft"),
        site.at("/etc/tidegate/.trusted-k1.pem.17-18.draft"),
        units / ".tidegate-edge-agent.service.17-18.draft",
    ]
    for draft in (*drafts, other := units / ".other.service.17-18.draft"):
        draft.touch()
    ran = tidegate.does("edge-agent", "uninstall", "--root", site.tree)
    assert "removed /etc/tidegate/.edge-agent.key.17-18.draft" in ran.out
    assert not any(draft.exists() for draft in drafts)
    assert not site.at("/etc/tidegate").exists()
    assert other.exists()


def test_keys_of_others_and_disks_of_others_stay(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler of this machine trusts keys, too, and a store may be a disk of several."""
    tidegate(*site.words())
    other = site.at("/etc/tidegate/trusted-desk.pem")
    shutil.copy(site.public, other)
    store = site.at("/var/lib/tidegate/checkpoints")
    mounts = site.folder / "mounts"
    proc = "1 1 0:1 / /proc rw - proc proc rw\n"
    mounts.write_text(f"{proc}1 1 0:2 / {store} rw shared:1 - nfs4 nas:/all rw\n")
    monkeypatch.setattr(removal, "MOUNTS", mounts)
    ran = tidegate("edge-agent", "uninstall", "--purge", "--root", site.tree)
    assert ran.code == 1
    assert f"{store}, which is another disk" in ran.err.replace("\n", "")
    assert site.at("/etc/tidegate/edge-agent.toml").exists(), "nothing was done"
    mounts.write_text(proc)
    ran = tidegate.does("edge-agent", "uninstall", "--purge", "--root", site.tree)
    assert "removed /etc/tidegate/trusted-k1.pem" in ran.out
    assert "left    /etc/tidegate/trusted-desk.pem: public keys" in ran.out
    assert other.exists()


@pytest.mark.parametrize("kind", ["deep", "a link"])
def test_the_state_goes_however_deep_jobs_made_it_and_where_it_is_led_elsewhere(
    tidegate: Run, site: Site, kind: str
) -> None:
    state, elsewhere = site.at("/var/lib/tidegate"), site.at("/data/tidegate")
    if kind == "a link":
        elsewhere.mkdir(parents=True)
        state.parent.mkdir(parents=True)
        state.symlink_to("../../data/tidegate")
    tidegate.does(*site.words())
    if kind == "deep":
        subprocess.run([sys.executable, "-c", DEEP, state, "1500"], check=True)
    tidegate.does("edge-agent", "uninstall", "--purge", "--root", site.tree)
    assert not state.exists()
    assert not state.is_symlink()
    assert not elsewhere.exists()


def test_a_link_goes_whose_folder_was_removed_before(tidegate: Run, site: Site) -> None:
    """Whoever was cut off in between was told to give the same command again."""
    state = site.at("/var/lib/tidegate")
    tidegate.does(*site.words())
    shutil.rmtree(state)
    state.symlink_to("../../data/tidegate")
    tidegate.does("edge-agent", "uninstall", "--purge", "--root", site.tree)
    assert not state.is_symlink()


def test_a_state_that_leads_out_of_the_tree_is_left_alone(tidegate: Run, site: Site) -> None:
    state, outside = site.at("/var/lib/tidegate"), site.folder / "outside"
    outside.mkdir()
    (outside / "file").touch()
    state.parent.mkdir(parents=True)
    state.symlink_to(outside)
    tidegate(*site.words())
    ran = tidegate("edge-agent", "uninstall", "--purge", "--root", site.tree)
    assert ran.code == 1
    assert "leads out of the tree" in ran.err
    assert (outside / "file").exists()


def test_whoever_stops_the_service_waits_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent whose broker is away takes twenty seconds to end."""
    waited = {}

    def run(command: list[str], *, timeout: float, **_: object) -> subprocess.CompletedProcess[str]:
        waited[" ".join(command[1:])] = timeout
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    for words in (("show", "x"), ("restart", "x"), ("disable", "--now", "x")):
        systemd.systemctl(*words)
    assert waited["disable --now x"] == waited["restart x"] > END_S > waited["show x"]
