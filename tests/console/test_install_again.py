"""Installing where there was an agent, or half of one; and what may not go wrong on the way."""

import os
from pathlib import Path

import pytest

from services.install import setup, systemd
from tests.console.conftest import Run
from tests.console.installing import Site, mode


def test_jobs_can_go_through_a_state_that_was_made_for_an_agent_of_another_user(
    tidegate: Run, site: Site
) -> None:
    """Uninstalled, and installed anew with a user for each tenant: the folder is still there."""
    if os.geteuid():
        pytest.skip("only root gives folders away")
    site.at("/etc").mkdir(parents=True)
    users = "root:x:0:0::/:/bin/sh\ntidegate:x:990:990::/var/lib/tidegate:/bin/false\n"
    site.at("/etc/passwd").write_text(users)
    tidegate.does(*site.words())
    assert mode(site.at("/var/lib/tidegate")) == 0o750
    tidegate.does("edge-agent", "uninstall", "--root", site.tree)
    tidegate.does(*site.words(isolation="tenant"))
    assert mode(site.at("/var/lib/tidegate")) == 0o711
    site.at("/var/lib/tidegate").chmod(0o755)
    tidegate.does(*site.words(isolation="tenant"))
    assert mode(site.at("/var/lib/tidegate")) == 0o755, "as somebody wishes it"


def _with_environment(site: Site, content: bytes) -> list[object]:
    own, file = site.folder / "own.toml", site.folder / "store.env"
    own.write_text("[agent]\nname = 'edge-17'\nruns = 'simulated'\n[mqtt]\nnamespace = 'n'\n")
    file.write_bytes(content)
    return ["edge-agent", "install", "--config", own, "--environment", file, "--root", site.tree]


@pytest.mark.parametrize("of_it", [0o640, 0o644])
def test_a_configuration_that_is_kept_elsewhere_stays_there(
    tidegate: Run, site: Site, of_it: int
) -> None:
    """It was said to be the same, and became a file of its own, that nobody looked after."""
    tidegate.does(*site.words())
    config, own = site.at("/etc/tidegate/edge-agent.toml"), site.at("/opt/edge.toml")
    own.parent.mkdir()
    config.rename(own)
    config.symlink_to("../../opt/edge.toml")
    own.chmod(of_it)
    again = tidegate.does("edge-agent", "install", "--root", site.tree)
    assert "same    /etc/tidegate/edge-agent.toml" in again.out
    assert config.is_symlink()
    assert mode(own) == of_it
    tidegate.does(*site.words(gpus=3))
    assert not config.is_symlink(), "another one was asked for"
    assert "gpus = 2" in own.read_text()


@pytest.mark.parametrize(
    "line", [b"export A=b", b"=x", b"\xff\xfe=1", b"just words", b"A=b\0c", b"1A=b", b"A=\xff"]
)
def test_an_environment_of_which_the_agent_gets_nothing_is_refused(
    tidegate: Run, site: Site, line: bytes
) -> None:
    words = _with_environment(site, b"# of the store\nAWS_REGION=x\n" + line + b"\n")
    assert "of line 3 the agent gets nothing; write NAME=VALUE" in tidegate.refuses(*words)
    # What is there already is passed over, as systemd does: one could not even uninstall.
    tidegate.does(*_with_environment(site, b"AWS_REGION=x\n"))
    site.at("/etc/tidegate/edge-agent.env").write_bytes(line + b"\n")
    tidegate.does("edge-agent", "install", "--root", site.tree)
    tidegate.does("edge-agent", "uninstall", "--root", site.tree)


def test_a_configuration_is_checked_with_the_environment_that_is_given_beside_it(
    tidegate: Run, site: Site
) -> None:
    *words, _, _ = _with_environment(site, b"TIDEGATE_MQTT_URL=mqtts://broker:8883\n")
    ran = tidegate.does(*words, "--user", "root", "--dry-run")
    assert "/etc/tidegate/edge-agent.env" in ran.out


@pytest.mark.parametrize("option", ["ca", "cert"])
def test_no_private_key_is_written_where_all_can_read_it(
    tidegate: Run, site: Site, option: str
) -> None:
    """Some programs want certificate and key in one file."""
    both = site.folder / "both.pem"
    one = site.files.ca if option == "ca" else site.files.cert
    both.write_bytes(Path(str(one)).read_bytes() + Path(str(site.files.key)).read_bytes())
    said = tidegate.refuses(*site.words(**{option: both}))
    assert f"--{option}: {both} holds a private key, too" in said
    assert not site.at("/etc/tidegate").exists()


def test_a_step_that_fails_is_no_refusal(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*words: str) -> str:
        raise systemd.SystemdError(f"systemctl {' '.join(words)}: Failed to connect to bus")

    monkeypatch.setattr(setup, "systemctl", fails)
    monkeypatch.setattr(setup, "_check_machine", lambda: None)
    monkeypatch.setattr(setup, "_open_folder", lambda _: None)
    monkeypatch.setattr(setup, "_state_folder", lambda *_: None)
    written: list[object] = []
    monkeypatch.setattr(setup, "_write", lambda path, *_: written.append(path))
    *words, _, _ = _with_environment(site, b"TIDEGATE_MQTT_URL=mqtts://broker:8883\n")
    ran = tidegate(*words, "--user", "root")
    assert written, "so something was changed"
    assert ran.code == 1
    assert "Failed to connect to bus. It is not all installed" in " ".join(ran.err.split())
