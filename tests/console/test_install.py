"""`tidegate edge-agent install`, as an operator types it: what it makes, changes and keeps."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from console.verbs import make_app
from services.install import layout
from services.install.layout import Layout
from tests.certificates import Authority
from tests.console.conftest import Run
from tests.console.installing import Site, mode

ROOT = Path(__file__).resolve().parents[2]

GANGS = "/etc/systemd/system/tidegate-gangs.service"


def test_help_teaches_all_of_it(tidegate: Run) -> None:
    ran = tidegate.does("edge-agent", "--help")
    for word in ("--config", "--set", "install", "status", "uninstall"):
        assert word in ran.out
    for verb in ("install", "status", "uninstall"):
        assert "Example: tidegate edge-agent" in tidegate("edge-agent", verb, "--help").out


def test_without_a_verb_it_is_still_the_agent(tidegate: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[mqtt]\nurl = 'mqtt://b'\n")
    refused = tidegate.refuses("edge-agent", "--config", file)
    assert "agent.name is not set" in refused
    assert "--config (docs/configuration.md), or --set agent.name=NAME." in refused
    assert "go after status" in tidegate.refuses("edge-agent", "--config", file, "status")


def test_a_tree_holds_everything_with_the_right_modes(tidegate: Run, site: Site) -> None:
    ran = tidegate.does(*site.words())
    assert "nothing was started" in ran.out
    config = site.at("/etc/tidegate/edge-agent.toml").read_text()
    assert 'key_file = "/etc/tidegate/edge-agent.key"' in config
    assert mode(site.at("/etc/tidegate/edge-agent.toml")) == 0o640
    assert mode(site.at("/etc/tidegate/edge-agent.key")) == 0o640
    assert mode(site.at("/etc/tidegate/edge-agent.pem")) == 0o644
    assert mode(site.at("/var/lib/tidegate")) == 0o750
    assert site.at("/var/lib/tidegate/checkpoints").is_dir()
    unit = site.at("/etc/systemd/system/tidegate-edge-agent.service")
    assert "KillMode=process" in unit.read_text()
    enabled = site.at("/etc/systemd/system/multi-user.target.wants/tidegate-edge-agent.service")
    assert str(enabled.readlink()) == "/etc/systemd/system/tidegate-edge-agent.service"
    assert not list(site.tree.rglob("*.draft"))
    assert not site.at(GANGS).exists()  # its agent is not root


def test_root_is_on_every_machine_and_is_neither_made_nor_left(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid in {os.geteuid(), 1000}:
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        said = tidegate.does(*site.words(isolation=None)).out
        assert "root (as it is)" in said
        assert "make the user" not in said
        assert ("! you are not root: on its machine, chown -R root" in said) == (uid != 0)
    assert site.at(GANGS).exists()
    added = site.at(f"{GANGS}.d")  # as `systemctl edit` does
    added.mkdir()
    gone = tidegate.does("edge-agent", "uninstall", "--root", site.tree).out
    assert "the user" not in gone
    assert f"removed {GANGS}" in gone
    assert f"{added}:settingsthatwereadded" in "".join(gone.split())  # however it is wrapped


def test_again_nothing_changes_and_without_options_all_is_kept(tidegate: Run, site: Site) -> None:
    tidegate(*site.words())
    config = site.at("/etc/tidegate/edge-agent.toml")
    before = config.read_text()
    ran = tidegate(*site.words())
    assert "new " not in ran.out
    assert "changed " not in ran.out
    config.write_text(before.replace("gpus = 2", "gpus = 3"))
    (site.at("/var/lib/tidegate") / "agent.db").write_text("kept")
    ran = tidegate.does("edge-agent", "install", "--root", site.tree)
    assert "gpus = 3" in config.read_text()
    ran = tidegate(*site.words())
    assert "-gpus = 3" in ran.out
    assert "+gpus = 2" in ran.out
    assert config.read_text() == before
    assert (site.at("/var/lib/tidegate") / "agent.db").read_text() == "kept"


@pytest.mark.parametrize("link", ["workers", "checkpoints", "deep"])
def test_root_follows_no_link_that_a_job_may_have_made(
    tidegate: Run, site: Site, link: str
) -> None:
    if os.geteuid():
        pytest.skip("only root gives folders away")
    victim = site.folder / "victim"
    victim.mkdir()
    victim.chmod(0o755)
    site.at("/etc").mkdir(parents=True)
    site.at("/etc/passwd").write_text("tidegate:x:990:990::/var/lib/tidegate:/bin/false\n")
    words = site.words(checkpoints="file:///var/lib/tidegate/deep/checkpoints")
    assert tidegate(*words).code == 0
    state = site.at("/var/lib/tidegate")
    for made in (state, state / "workers", state / "deep", state / "deep/checkpoints"):
        assert (made.stat().st_uid, made.stat().st_gid, mode(made)) == (990, 990, 0o750)
    place = state / ("deep/checkpoints" if link == "checkpoints" else link)
    shutil.rmtree(place)
    place.symlink_to(victim)
    assert "is a link or a file" in tidegate.refuses(*words)
    assert (victim.stat().st_uid, victim.stat().st_gid, mode(victim)) == (0, 0, 0o755)
    assert list(victim.iterdir()) == []
    place.unlink()
    assert tidegate(*words).code == 0


def test_a_dry_run_shows_all_and_writes_nothing(tidegate: Run, site: Site) -> None:
    ran = tidegate.does(*site.words(), "--dry-run")
    for part in ("name = ", "KillMode=process", "/etc/tidegate/edge-agent.key  0640"):
        assert part in ran.out
    assert "PRIVATE KEY" not in ran.out
    assert not site.tree.exists()


def test_an_authority_of_servers_alone_stops_nothing(tidegate: Run, site: Site) -> None:
    ran = tidegate.does(*site.words(ca=Authority(site.folder / "servers").ca))
    assert "not signed by the authority" in " ".join(ran.out.split())
    assert site.at("/etc/tidegate/edge-agent.toml").exists()


def test_a_configuration_of_ones_own_is_checked_and_kept(tidegate: Run, site: Site) -> None:
    file = site.folder / "own.toml"
    file.write_text(
        "[mqtt]\nurl='mqtt://b'\nca_file='ca.pem'\n[agent]\nname='edge-17'\nruns='simulated'\nnodes=['a']"
    )
    command = ["edge-agent", "install", "--config", file, "--root", site.tree]
    assert "agent.nodes is for another kind of agent" in tidegate.refuses(*command)
    file.write_text(file.read_text().replace("nodes=['a']", ""))
    ran = tidegate(*command)
    assert "mqtt.ca_file: ca.pem is relative" in ran.err
    file.write_text(file.read_text().replace("'ca.pem'", "'/etc/ca.pem'"))
    assert tidegate(*command).code == 0
    assert site.at("/etc/tidegate/edge-agent.toml").read_text() == file.read_text()


def test_this_machine_is_no_tree_whatever_it_is_called(tmp_path: Path) -> None:
    for root in ("/", "//", f"{tmp_path}{'/..' * len(tmp_path.parts)}", "/."):
        assert not Layout.of(Path(root)).staged, root
    assert Layout.of(tmp_path) == Layout(tmp_path)
    assert Layout.of(tmp_path / "none").staged


def test_the_manual_names_options_that_there_are() -> None:
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    commands = re.findall(r"tidegate/bin/tidegate (.+)", blocks.replace("\\\n", " "))
    assert len(commands) > 6
    group = typer.main.get_command(make_app())
    for command in commands:
        at, words = group, shlex.split(command)
        while isinstance(at, TyperGroup) and words and words[0] in at.commands:
            at = at.commands[words.pop(0)]
        known = {flag for one in at.params for flag in one.opts}
        assert {word for word in words if word.startswith("-") and word != "-"} <= known, command
    for file in layout.CONFIG, layout.KEY, layout.UNIT, layout.STATE:
        assert str(file) in text or file.name in text
