"""The Compose files, as far as they can be checked without Docker.

No engine starts them here. The schema is the Compose Specification's own (schema/LICENSE).
"""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml
from typer.core import TyperGroup

from bus.signing import Signer, Verifier
from console.verbs import make_app
from services.config import Config, load

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
FILES = ("compose.yaml", "brokers.yaml")
EXTRAS: set[str] = set(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
)
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    return document


DEPLOYMENT = read("compose.yaml")
SERVICES: dict[str, dict[str, Any]] = DEPLOYMENT["services"]
#: Those that run a verb of `tidegate`.
ROLES = {name: one for name, one in SERVICES.items() if one.get("command", [""])[0] == "tidegate"}


def mounts(service: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    for one in service.get("volumes", []):
        if isinstance(one, str):
            source, target, *_ = one.split(":")
            found.append((source, target))
        else:
            found.append((one["source"], one["target"]))
    return found


def config(name: str) -> Config:
    """Load a service's configuration as its container would."""
    service = ROLES[name]
    inside = service["command"][service["command"].index("--config") + 1]
    (source,) = [source for source, target in mounts(service) if target == inside]
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in service.get("environment", {}).items():
            patch.setenv(variable, value)
        return load(COMPOSE / source)


# --- both files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_file_is_what_the_compose_specification_says(name: str) -> None:
    schema = json.loads((Path(__file__).parent / "schema" / "compose-spec.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(read(name))


def test_the_schema_refuses_a_slip_of_the_pen() -> None:
    schema = json.loads((Path(__file__).parent / "schema" / "compose-spec.json").read_text())
    wrong = {"services": {"kafka": {"image": "apache/kafka:4.1.0", "volume": []}}}
    assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)


@pytest.mark.parametrize("name", FILES)
def test_images_are_pinned_and_the_two_files_agree(name: str) -> None:
    images = {service: one["image"] for service, one in read(name)["services"].items()}
    for image in images.values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image), f"{image} names no version"
    pom = (COMPOSE / "kafka" / "pom.xml").read_text()
    (kafka,) = re.findall(r"<kafka.version>(.*)</kafka.version>", pom)
    assert images["kafka"] == f"apache/kafka:{kafka}"
    assert images["mosquitto"] == SERVICES["mosquitto"]["image"]


@pytest.mark.parametrize("name", FILES)
def test_volumes_and_networks_are_declared_and_used(name: str) -> None:
    document = read(name)
    services = document["services"].values()
    named = {
        source for one in services for source, _ in mounts(one) if re.fullmatch(r"[\w-]+", source)
    }
    assert named == set(document["volumes"])
    networks = {network for one in services for network in one.get("networks", [])}
    assert networks == set(document.get("networks", {}))


@pytest.mark.parametrize("name", FILES)
def test_every_lasting_service_has_a_health_check(name: str) -> None:
    for service, one in read(name)["services"].items():
        assert ("healthcheck" in one) == (service != "certs"), service


def test_variables_of_the_brokers_file_are_those_that_the_command_sets() -> None:
    text = (COMPOSE / "brokers.yaml").read_text()
    used = set(re.findall(r"\$\{(\w+)", text))
    assert used == {"KAFKA_PORT", "MOSQUITTO_PORT", "BROKERS_DIR", "CLUSTER_ID"}
    command = (COMPOSE / "brokers").read_text()
    assert '"BROKERS_DIR": str(ROOT), "CLUSTER_ID": CLUSTER_ID' in command
    assert "$" not in (COMPOSE / "compose.yaml").read_text().replace("$$", "")


# --- the deployment -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `certs` hands out, for each service its folder."""
    folder = tmp_path_factory.mktemp("deployment") / "secrets"
    for _ in range(2):  # the second time there is nothing to make
        done = subprocess.run(
            [COMPOSE / "hand-out", folder, "edge-7"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder


def test_a_password_that_was_never_written_is_made(tmp_path: Path) -> None:
    """Of a hand-out that was killed the file was there, and nobody could sign in at Grafana."""
    (tmp_path / "authority").mkdir()
    (tmp_path / "authority" / "grafana").touch()
    subprocess.run([COMPOSE / "hand-out", tmp_path], capture_output=True, check=True)
    assert re.fullmatch("[0-9a-f]{32}\n", (tmp_path / "grafana" / "password").read_text())


def test_everything_mounted_is_there_or_handed_out(secrets: Path) -> None:
    for service, one in SERVICES.items():
        for source, _ in mounts(one):
            if source.startswith("./secrets"):
                assert (secrets.parent / source).is_dir(), service
            elif source.startswith("."):
                assert (COMPOSE / source).exists(), f"{service} mounts {source}"


def test_published_ports_are_distinct_and_only_devices_come_from_outside() -> None:
    published = {
        name: [str(port).rpartition(":")[0] for port in one["ports"]]
        for name, one in SERVICES.items()
        if "ports" in one
    }
    every = [port.rpartition(":")[2] for ports in published.values() for port in ports]
    assert len(set(every)) == len(every)
    assert published.pop("mosquitto") == ["8883"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert DEPLOYMENT["networks"]["bus"]["internal"]


def test_nothing_runs_as_root_but_what_hands_keys_out() -> None:
    # Kafka's image has a user of its own, 1000; the others say theirs.
    for name, one in SERVICES.items():
        if name in ("certs", "kafka"):
            assert "user" not in one
        else:
            assert re.fullmatch(r"[1-9]\d*:\d+", one["user"]), name
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    assert dockerfile.rindex("\nUSER tidegate\n") > dockerfile.rindex("\nFROM ")
    assert {one["user"] for one in ROLES.values()} == {"10001:10001"}
    assert "useradd --uid 10001" in dockerfile


@pytest.mark.parametrize("name", sorted(ROLES))
def test_command_is_a_verb_and_its_configuration_is_good(name: str) -> None:
    service = ROLES[name]
    verbs = typer.main.get_command(make_app())
    assert isinstance(verbs, TyperGroup)
    _, verb, *arguments = service["command"]
    flags = {flag for option in verbs.commands[verb].params for flag in option.opts}
    assert {argument for argument in arguments if argument.startswith("-")} <= flags

    loaded = config(name)
    # The probe asks where the role answers, for everybody on the network.
    assert service["healthcheck"]["test"] == ["CMD", "tidegate-ready", str(loaded.http.port)]
    assert loaded.http.host == "0.0.0.0"
    # Who it is, is what the service is called; a bridge's and a device's certificate say the same.
    said = {
        "scheduler": loaded.scheduler.name,
        "bridge": loaded.bridge.name,
        "cloud-agent": loaded.agent.name,
        "edge-agent": loaded.agent.name,
    }
    assert said[verb] == name
    assert service["build"]["args"]["ROLE"] in EXTRAS
    assert service["build"]["args"]["ROLE"] == verb.partition("-")[0] or verb in EXTRAS
    assert service["image"] == f"tidegate-{service['build']['args']['ROLE']}:{VERSION}"
    if "agent" in verb:
        assert loaded.agent.state_file == Path("/var/lib/tidegate/agent.db")
        assert "/var/lib/tidegate" in [target for _, target in mounts(service)]


@pytest.mark.parametrize("name", sorted(ROLES))
def test_files_named_in_a_configuration_are_handed_to_the_service(name: str, secrets: Path) -> None:
    loaded = config(name)
    targets = {target: source for source, target in mounts(ROLES[name])}
    own = secrets / Path(targets["/run/tidegate"]).relative_to("secrets")
    named = [loaded.mqtt.ca_file, loaded.mqtt.cert_file, loaded.mqtt.key_file]
    named += [str(loaded.scheduler.signing_key_file or ""), str(loaded.bridge.group_file or "")]
    named += [*loaded.agent.trusted_keys.values()]
    for file in filter(None, named):
        assert file.startswith("/run/tidegate/")
        assert (own / Path(file).name).is_file(), file
    if "agent" in ROLES[name]["command"][1]:
        # The keys that agents trust are those of the scheduler.
        leader = config("scheduler-1").scheduler
        key = secrets / "scheduler" / Path(str(leader.signing_key_file)).name
        signer = Signer.from_file(leader.signing_key_id, key)
        trusted = {
            kid: str(own / Path(file).name) for kid, file in loaded.agent.trusted_keys.items()
        }
        assert Verifier.of(trusted).problem(b"x", signer.headers(b"x")) is None
        assert not list(own.glob("signing-*")), "an agent must not be able to give orders"
    if loaded.mqtt.cert_file:
        subject = ["openssl", "x509", "-noout", "-subject", "-in", str(own / "client.pem")]
        said = subprocess.run(subject, capture_output=True, text=True, check=True).stdout
        assert said.strip().endswith(f"CN = {name}")


def test_each_private_key_is_handed_to_one_service_and_read_by_its_user(secrets: Path) -> None:
    holders: dict[bytes, set[str]] = {}
    for file in secrets.glob("*/*"):
        if file.parent.name == "authority":
            continue
        assert file.stat().st_mode & 0o777 == 0o400
        if b"PRIVATE KEY" in file.read_bytes():
            holders.setdefault(file.read_bytes(), set()).add(file.parent.name)
    assert all(len(services) == 1 for services in holders.values())
    given = {name for services in holders.values() for name in services}
    assert given == {"mosquitto", "scheduler", "bridge-1", "bridge-2", "edge-1", "edge-2", "edge-7"}
    users = {"scheduler": 10001, "mosquitto": 1883, "grafana": 472}
    if os.geteuid() == 0:
        assert {name: (secrets / name).stat().st_uid for name in users} == users


def test_all_roles_list_the_same_cells_and_reach_the_same_brokers() -> None:
    loaded = [config(name) for name in ROLES]
    assert len({one.kafka.cells for one in loaded}) == 1
    assert all(one.cell in one.kafka.cells for one in loaded)
    assert {one.kafka.bootstrap for one in loaded} == {"kafka:9092", ""}
    assert {one.mqtt.url.get_secret_value() for one in loaded} == {"mqtts://mosquitto:8883", ""}


def test_prometheus_scrapes_every_role_where_it_answers() -> None:
    document = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yaml").read_text())
    scraped = {
        (job["job_name"], target)
        for job in document["scrape_configs"]
        for one in job["static_configs"]
        for target in one["targets"]
    }
    assert scraped == {
        (service["command"][1], f"{name}:{config(name).http.port}")
        for name, service in ROLES.items()
    }


def test_kafka_of_the_deployment_keeps_the_shared_settings() -> None:
    def settings(name: str) -> dict[str, str]:
        lines = (COMPOSE / "kafka" / name).read_text().splitlines()
        pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
        return {key: value for key, _, value in pairs}

    shared, deployment = settings("broker.properties"), settings("deployment.properties")
    assert shared.items() <= deployment.items()
    (data,) = [target for source, target in mounts(SERVICES["kafka"]) if source == "kafka-data"]
    assert deployment["log.dirs"] == data


def test_the_image_copies_what_git_has_and_leaves_secrets_out() -> None:
    kept = (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines()
    assert kept[1] == "*"
    names = [line.removeprefix("!") for line in kept if line.startswith("!")]
    assert all((ROOT / name).exists() for name in names)
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["build-backend"]
    assert set(backend["module-name"]) <= set(names)
    assert "/compose/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
