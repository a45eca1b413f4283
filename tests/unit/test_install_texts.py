"""The configuration and the unit that an installation writes, as texts."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from runtime.metering.nvml import type_name
from services.config import load
from services.install.changes import changes
from services.install.environment import as_service, service_environment, wrong_lines
from services.install.layout import CONFIG, ENVIRONMENT, GANGS_UNIT, KEY, Layout
from services.install.texts import (
    Server,
    config_text,
    gangs_unit_text,
    program_of,
    unit_text,
)
from services.install.wanted import CLOSED, File

SERVER = Server("edge-17", "mqtts://broker:8883", "s3://bucket/folder", 4, "L4", 24_576)


def test_the_configuration_is_short_and_says_what_was_asked(tmp_path: Path) -> None:
    layout, text = Layout(tmp_path), config_text(SERVER)
    keys = [line for line in text.splitlines() if " = " in line]
    assert len(keys) <= 12
    (tmp_path / "t.toml").write_text(text)
    with as_service(layout):
        config = load(tmp_path / "t.toml")
    assert config.agent.workers is not None
    assert config.agent.workers.checkpoints == "s3://bucket/folder"
    assert (config.agent.name, config.agent.gpus, config.agent.runs) == ("edge-17", 4, "processes")
    assert config.mqtt.options().tls is not None


def test_certificates_and_keys_are_named_where_they_are_put() -> None:
    said = tomllib.loads(
        config_text(Server("e", "mqtts://b", "s3://b/c", 1, "cpu", None, True, True, ("k1", "k-2")))
    )
    assert said["mqtt"]["key_file"] == str(KEY)
    assert said["agent"]["trusted_keys"]["k-2"] == "/etc/tidegate/trusted-k-2.pem"
    assert "gpu_memory_mib" not in said["agent"]


def test_any_text_survives_toml() -> None:
    odd = 's3://b/"\\ü\U0001f600'
    said = tomllib.loads(config_text(Server("e", "mqtt://b", odd, 1, "cpu")))
    assert said["agent"]["workers"]["checkpoints"] == odd


def _settings(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if "=" in line and line[0] != "#"]
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_ends_the_agent_alone_and_hinders_no_worker() -> None:
    said = _settings(unit_text("edge-17", ["/opt/tidegate/bin/tidegate"], "tidegate", "gpus"))
    assert said["ExecStart"] == f"/opt/tidegate/bin/tidegate edge-agent --config {CONFIG}"
    kept = {"KillMode": "process", "Restart": "always", "Delegate": "yes", "OOMPolicy": "continue"}
    assert kept.items() <= said.items()
    assert (said["User"], said["Group"]) == ("tidegate", "gpus")
    assert said["After"] == said["Wants"] == "network-online.target"
    # Each of these, or what implies it, would reach the workers.
    assert not {"NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome"} & said.keys()


def test_an_agent_that_is_root_has_a_service_for_its_gangs() -> None:
    units = {user: _settings(unit_text("e", ["/t"], user, "g")) for user in ("root", "tidegate")}
    assert GANGS_UNIT.name in units["root"]["Wants"].split()
    assert GANGS_UNIT.name in units["root"]["After"].split()
    assert GANGS_UNIT.name not in unit_text("e", ["/t"], "tidegate", "g")
    said = _settings(gangs_unit_text())
    kept = {"KillMode": "process", "Restart": "always", "Delegate": "yes", "OOMPolicy": "continue"}
    assert kept.items() <= said.items()


@pytest.mark.process
@pytest.mark.parametrize(
    "program", ["/opt/tidegate/bin/tidegate", "/opt/a b/100%/tidegate", "/opt/$x/tidegate"]
)
def test_systemd_takes_the_unit(tmp_path: Path, program: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here: apt-get install systemd")
    real = tmp_path / program.lstrip("/")
    real.parent.mkdir(parents=True)
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    units = tmp_path / "tidegate-edge-agent.service", tmp_path / GANGS_UNIT.name
    units[0].write_text(unit_text("edge 100%", [str(real)], "root", "root"))
    units[1].write_text(gangs_unit_text())
    for unit in units:
        unit.chmod(0o644)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)], capture_output=True, text=True
    )
    about_it = [line for line in done.stderr.splitlines() if "tidegate" in line]
    assert about_it == [], done.stderr


def test_the_command_beside_the_interpreter_is_what_starts(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    assert program_of(interpreter) == [str(interpreter), "-m", "console.main"]
    (tmp_path / "tidegate").touch()
    assert program_of(interpreter) == [str(tmp_path / "tidegate")]


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA L4", "L4"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
        ("é!", "gpu"),
    ],
)
def test_a_product_gives_a_name(product: str, name: str) -> None:
    assert type_name(product) == name


def test_what_changes_is_shown_and_secrets_are_not(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    text = 'url = "mqtt://u:hidden@h"\npassword = "hidden"\ngpus = {}\n'
    files = [
        File(CONFIG, text.format(2).encode(), CLOSED),
        File(KEY, b"hidden key", CLOSED),
    ]
    assert [one.kind for one in changes(files, layout)] == ["new", "new"]
    place = layout.here(CONFIG)
    place.parent.mkdir(parents=True)
    place.write_text(text.format(1))
    place.chmod(0o644)
    config, key = changes(files, layout)
    assert config.kind == "changed"
    assert list(config.difference) == ["mode 0644 becomes 0640", "-gpus = 1", "+gpus = 2"]
    assert "hidden" not in str([*config.difference, *key.difference])
    place.write_text(text.format(2))
    place.chmod(CLOSED)
    assert changes(files, layout)[0].kind == "same"


@pytest.mark.parametrize(
    "text",
    [
        "password='hidden'",
        '"password" = "hidden"',
        'password="hidden"',
        "'password' = 'hidden' # of the broker",
        "kafka = { username = 'u', password = 'hidden' }",
        "mqtt.password = 'hid\\'den'",
        'password = """\nhidden\n"""',
        "password = '''\nhidden",
        'url = "mqtt://u:hid@den@h"',
        "url = 'mqtts://h/n?token=hidden'",
        "checkpoints = 's3://b/c?sig=hidden'",
        "api_token = 'hidden'",
        "AWS_SECRET_ACCESS_KEY = 'hidden'",
    ],
)
def test_no_spelling_shows_a_secret(tmp_path: Path, text: str) -> None:
    layout = Layout(tmp_path)
    wanted = File(CONFIG, f"gpus = 2\n{text}\nname = 'e'\n".encode(), CLOSED)
    (new,) = changes([wanted], layout)
    assert new.difference[0] == "+gpus = 2"
    assert "hid" not in str(new.difference)
    assert "den" not in str(new.difference)
    place = layout.here(CONFIG)
    place.parent.mkdir(parents=True)
    place.write_text(f"{text.replace('hid', 'old')}\n")
    (changed,) = changes([wanted], layout)
    assert "hid" not in str(changed.difference)
    assert "old" not in str(changed.difference)


def test_names_of_files_that_hold_secrets_are_shown(tmp_path: Path) -> None:
    line = 'password_file = "/etc/tidegate/password"'
    (new,) = changes([File(CONFIG, line.encode(), CLOSED)], Layout(tmp_path))
    assert new.difference == [f"+{line}"]


def test_the_services_environment_is_its_files_and_nothing_of_the_shells(tmp_path: Path) -> None:
    file = Layout(tmp_path).here(ENVIRONMENT)
    shell = {"TIDEGATE_MQTT_URL": "mqtt://elsewhere", "PATH": "/bin", "AWS_REGION": "x"}
    assert service_environment(file, shell) == {"PATH": "/bin", "AWS_REGION": "x"}
    file.parent.mkdir(parents=True)
    file.write_text('# of the store\nAWS_REGION="y"\n\nTIDEGATE_HTTP__PORT=1=2\n')
    found = service_environment(file, shell)
    assert found == {"PATH": "/bin", "AWS_REGION": "y", "TIDEGATE_HTTP__PORT": "1=2"}


def test_an_environment_is_read_as_systemd_reads_it(tmp_path: Path) -> None:
    """Expected is what systemd 252 makes of it."""
    file = tmp_path / "store.env"
    file.write_text(
        'A=1\\\n2\nKEY="-----BEGIN\nx y=\n-----END" \nC = d e \n# "c\r\n'
        """ I='q\nr'\nJ=a\\b\nG="a\\"\\z"b\nZ="last\n"""
    )
    assert service_environment(file, {}) == {
        "A": "12",
        "KEY": "-----BEGIN\nx y=\n-----END",
        "C": "d e",
        "I": "q\nr",
        "J": "ab",
        "G": 'a"\\zb',
        "Z": "last\n",
    }
    assert wrong_lines(file.read_bytes()) == []
    assert wrong_lines(b'A="b\nc"\n=x\n\nexport B=\\\n2\nC=3\nwords\nD=\xff\n') == [3, 5, 8, 9]
