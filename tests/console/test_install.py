"""`tidegate edge-agent install`, `status`, `uninstall`, as an operator types them."""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from console.agent_status import lines
from console.verbs import make_app
from runtime.executors.processes import boot_id
from services.config import load
from services.install import layout, removal, setup as setups, status as statuses, systemd
from services.install.layout import Layout
from services.process import END_S
from tests.certificates import Authority
from tests.console.conftest import Run

ROOT = Path(__file__).resolve().parents[2]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class Site:
    """A tree, and the files that an operator has been given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"
        self.authority = Authority(folder / "certs")
        self.files = self.authority.sign("edge-17")
        self.public = folder / "trusted.pem"
        self.private = folder / "signing.pem"
        openssl = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(self.private)]
        subprocess.run(openssl, check=True, capture_output=True)
        openssl = ["openssl", "pkey", "-in", str(self.private), "-pubout", "-out", str(self.public)]
        subprocess.run(openssl, check=True)
        self.options: dict[str, object] = {
            "--name": "edge-17",
            "--broker": "mqtts://broker:8883",
            "--checkpoints": "file:///var/lib/tidegate/checkpoints",
            "--ca": self.files.ca,
            "--cert": self.files.cert,
            "--key": self.files.key,
            "--trusted-key": f"k1={self.public}",
            "--gpus": 2,
            "--gpu-type": "cpu",
            "--owner": "none",
            "--isolation": "none",
            "--root": self.tree,
        }

    def words(self, **other: object) -> list[object]:
        """Give the command; `ca=None` leaves an option out."""
        chosen = {**self.options, **{f"--{k.replace('_', '-')}": v for k, v in other.items()}}
        options = [word for option, value in chosen.items() if value for word in (option, value)]
        return ["edge-agent", "install", *options]

    def at(self, path: str) -> Path:
        return self.tree / path.lstrip("/")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


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


def test_root_is_on_every_machine_and_is_neither_made_nor_left(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid in {os.geteuid(), 1000}:
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        said = tidegate.does(*site.words(isolation=None)).out
        assert "root (as it is)" in said
        assert "make the user" not in said
        assert ("! you are not root: on its machine, chown -R root" in said) == (uid != 0)
    assert "the user" not in tidegate.does("edge-agent", "uninstall", "--root", site.tree).out


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


def test_every_mistake_is_named_by_its_option_at_once(tidegate: Run, site: Site) -> None:
    other = Authority(site.folder / "other").sign("edge-9", begins=-9, ends=-1)
    ran = tidegate(
        *site.words(
            cert=other.cert,
            checkpoints="ftpx://x",
            broker="https://broker",
            trusted_key=f"k1={site.private}",
            gpu_type=None,
        )
    )
    assert ran.code == 2
    lines = ran.err.splitlines()
    for start, part in {
        "--broker": "write mqtt://HOST:PORT",
        "--checkpoints": "use file:///folder",
        "--cert": "ended on",
        "--key": "not the key of the certificate",
        "--trusted-key": "openssl pkey -in",
        "--gpus": "a tree has none to look at",
    }.items():
        assert any(line.startswith(start) and part in line for line in lines), (start, ran.err)
    assert any("is for edge-9, but the agent is edge-17" in line for line in lines)
    assert not site.tree.exists()


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"name": None}, "--name is missing: who the agent is"),
        ({"broker": "mqtt://broker"}, "certificates are for mqtts://broker:8883"),
        ({"broker": "mqtts://u:secret@broker"}, "mqtt.password_file"),
        ({"cert": None}, "--key: goes with --cert"),
        ({"trusted_key": "k1"}, "is not KID=FILE"),
        ({"key": "/none.key"}, "--key: /none.key: No such file"),
        ({"config": "/none.toml"}, "--config: the file says what --name would"),
        ({"broker": "b:8883"}, "--broker: 'b:8883' is no MQTT address; write mqtts://HOST:PORT"),
        ({"checkpoints": "file://x/y"}, "--checkpoints: file://x/y: names another machine"),
        ({"gpus": -1}, "--gpus: input should be greater than or equal to 1"),
        ({"gpu_type": "a b"}, "--gpu-type: string should match"),
        ({"environment": "/none.env"}, "--environment: /none.env: No such file"),
    ],
)
def test_a_mistake_leaves_nothing_behind(
    tidegate: Run, site: Site, other: dict[str, object], part: str
) -> None:
    said = tidegate.refuses(*site.words(**other))
    assert part in said
    assert "secret" not in said
    assert not site.tree.exists()


def test_one_file_that_is_missing_hides_no_other_mistake(tidegate: Run, site: Site) -> None:
    other = Authority(site.folder / "other").sign("edge-9")
    said = tidegate.refuses(*site.words(ca="/none.pem", cert=other.cert, key=None, gpus=-1))
    for part in (
        "--ca: /none.pem: No such file",
        "is for edge-9, but the agent is edge-17",
        "--key: ",
        "--gpus: input should be greater",
    ):
        assert part in said
    ran = tidegate(*site.words(cert="/none.pem", key="/none.key"))
    assert "--cert: /none.pem" in ran.err
    assert "--key: /none.key" in ran.err


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


def test_nothing_to_go_by_is_told_with_an_example(tidegate: Run, site: Site) -> None:
    said = tidegate.refuses("edge-agent", "install", "--root", site.tree)
    assert "tidegate edge-agent install --name edge-17 --broker mqtts://HOST:8883" in said
    assert "--owner none --trusted-key k1=trusted-k1.pem" in said, "else the next try is refused"


def test_without_systemd_it_says_how_to_run_it_by_hand(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setups, "booted", lambda: False)
    monkeypatch.setattr(setups, "_check_reach", lambda *_: None)
    own = site.folder / "own.toml"
    own.write_text("[mqtt]\nurl = 'mqtt://b'\n[agent]\nname = 'edge-17'\nruns = 'simulated'\n")
    said = tidegate.refuses("edge-agent", "install", "--config", own)
    assert "systemd does not run this machine" in said
    assert "edge-agent --config FILE" in said


def test_who_may_not_install_is_told_so_by_another_code_than_who_asks_wrongly(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setups, "booted", lambda: True)
    monkeypatch.setattr(setups, "_check_reach", lambda *_: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    own = site.folder / "own.toml"
    own.write_text("[mqtt]\nurl = 'mqtt://b'\n[agent]\nname = 'edge-17'\nruns = 'simulated'\n")
    ran = tidegate("edge-agent", "install", "--config", own)
    assert (ran.code, "installing takes root" in ran.err) == (1, True), ran


def test_what_the_user_may_not_enter_is_told_before_anything_is_done(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = site.folder / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(setups, "program_of", lambda _: [str(closed / "tidegate")])
    own = site.folder / "own.toml"
    own.write_text("[mqtt]\nurl = 'mqtt://b'\n[agent]\nname = 'edge-17'\nruns = 'simulated'\n")
    said = tidegate.refuses("edge-agent", "install", "--config", own, "--dry-run")
    assert "--user: tidegate may not enter" in said
    assert "python3 -m venv /opt/tidegate" in said


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


def test_this_machine_is_no_tree_whatever_it_is_called(tmp_path: Path) -> None:
    for root in ("/", "//", f"{tmp_path}{'/..' * len(tmp_path.parts)}", "/."):
        assert not Layout.of(Path(root)).staged, root
    assert Layout.of(tmp_path) == Layout(tmp_path)
    assert Layout.of(tmp_path / "none").staged


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
    mounts.write_text(f"proc /proc proc rw 0 0\nnas:/all {store} nfs4 rw 0 0\n")
    monkeypatch.setattr(removal, "_MOUNTS", mounts)
    ran = tidegate("edge-agent", "uninstall", "--purge", "--root", site.tree)
    assert ran.code == 1
    assert f"{store}, which is another disk" in ran.err.replace("\n", "")
    assert site.at("/etc/tidegate/edge-agent.toml").exists(), "nothing was done"
    mounts.write_text("proc /proc proc rw 0 0\n")
    ran = tidegate.does("edge-agent", "uninstall", "--purge", "--root", site.tree)
    assert "removed /etc/tidegate/trusted-k1.pem" in ran.out
    assert "left    /etc/tidegate/trusted-desk.pem: public keys" in ran.out
    assert other.exists()


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
