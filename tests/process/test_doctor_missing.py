"""What the doctor says of what is not there, a name or a folder, and looks at all the same."""

import json
import socket
import tempfile
from pathlib import Path

import pytest

from bus.clock import SystemClock
from runtime.checkpoints.disk import STORE_DISK
from runtime.checkpoints.store import CheckpointStore
from services.doctor import bus, certificates, permissions, store
from services.doctor.finding import Finding
from services.doctor.runner import run_checks
from tests.certificates import Authority
from tests.ports import free_port
from tests.process.ward import Ward, as_nobody, ward

__all__ = ["ward"]  # the fixture

_NAMELESS = "agent.name is not set: no agent starts without it;"


@pytest.fixture
def edge(ward: Ward) -> Ward:
    """An edge server whose broker is away, and which has no name."""
    del ward.settings["agent.name"], ward.settings["bus"]
    ward.settings["mqtt.url"] = f"mqtt://127.0.0.1:{free_port()}"
    return ward


def _of_name(found: list[Finding]) -> list[Finding]:
    return [one for one in found if "agent.name" in one.found + one.fix]


# --- a name --------------------------------------------------------------------------------------


def test_a_nameless_edge_agent_is_told_so_once_and_its_broker_is_looked_at(edge: Ward) -> None:
    name, broker = edge.says(bus.check)
    assert (name.verdict, name.found.startswith(_NAMELESS)) == ("problem", True)
    assert "--set agent.name=NAME or TIDEGATE_AGENT__NAME" in name.fix
    assert broker.verdict == "problem"
    assert "nothing listens" in broker.found
    with socket.create_server(("127.0.0.1", 0)) as server:
        edge.settings["mqtt.url"] = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        found = edge.says(bus.check)
    assert [one.verdict for one in found] == ["problem", "ok"]


def test_of_all_checks_one_speaks_of_the_name_and_none_of_kafka(edge: Ward) -> None:
    files = Authority(edge.folder).sign("edge-17")
    edge.settings |= {"mqtt.ca_file": files.ca, "mqtt.cert_file": files.cert}
    edge.settings["mqtt.key_file"] = files.key
    found = run_checks(edge.context(clock=SystemClock()))
    assert len(_of_name(found)) == 1
    assert not any("kafka." in one.found + one.fix for one in found)
    assert {"store", "disk", "permissions"} <= {one.check for one in found}


def test_a_certificate_is_judged_without_a_name(edge: Ward) -> None:
    files = Authority(edge.folder).sign("edge-17")
    edge.settings["mqtt.cert_file"], edge.settings["mqtt.key_file"] = files.cert, files.key
    good = edge.only(certificates.check)
    assert (good.verdict, "is good until" in good.found) == ("ok", True)
    old = Authority(edge.folder).sign("edge-17", begins=-20.0, ends=-10.0)
    edge.settings["mqtt.cert_file"], edge.settings["mqtt.key_file"] = old.cert, old.key
    assert "sign a new one for edge-17" in edge.only(certificates.check).fix


@pytest.mark.parametrize(
    ("settings", "speaks_of"),
    [
        ({"mqtt.url": "mqtt://127.0.0.1:1"}, "127.0.0.1"),
        ({"agent.gpus": 2}, "mqtt.url is not set"),
        ({"agent.nodes": "a,b"}, "kafka.bootstrap is not set"),
        ({"agent.gpus": 2, "bus": "sqlite:/nowhere/bus.db"}, "/nowhere/bus.db"),
    ],
)
def test_whoever_means_an_agent_needs_its_name(
    ward: Ward, settings: dict[str, object], speaks_of: str
) -> None:
    ward.settings = settings
    name, other = ward.says(bus.check)
    assert name.found.startswith(_NAMELESS)
    assert speaks_of in other.found


@pytest.mark.parametrize(
    "settings", [{}, {"kafka.bootstrap": ""}, {"kafka.bootstrap": "127.0.0.1:1"}]
)
def test_other_roles_have_no_agent_and_speak_to_kafka(
    ward: Ward, settings: dict[str, object]
) -> None:
    ward.settings = settings
    if settings.get("kafka.bootstrap"):
        ward.settings["mqtt.url"] = "mqtt://127.0.0.1:1"  # a bridge's
    (found,) = ward.says(bus.check)
    assert "name is not set" not in found.found
    assert "kafka" in (found.found + found.fix).lower()


@pytest.mark.parametrize(
    "said",
    [
        {"agent.nodes": "a,b"},
        {"agent.gpus_per_node": 8},
        {"agent.pool": "train", "agent.pool_kind": "training"},
        {"agent.runs": "slurm"},
    ],
)
def test_of_a_clusters_agent_nothing_of_mqtt_is_looked_at(
    edge: Ward, said: dict[str, object]
) -> None:
    """As in one file for the agents of a cluster and for a bridge."""
    del edge.settings["agent.gpus"]
    edge.settings |= {"agent.name": "train", "kafka.bootstrap": f"127.0.0.1:{free_port()}", **said}
    for name in ("ca_file", "cert_file", "key_file", "password_file"):
        edge.settings[f"mqtt.{name}"] = edge.folder / "absent"
    (found,) = edge.says(bus.check)
    assert "kafka.bootstrap" in found.fix
    for one in (certificates.check, permissions.check):
        assert not [found for found in edge.says(one) if "mqtt" in found.found + found.fix]
    edge.settings["kafka.key_file"] = edge.folder / "absent"
    assert "correct kafka.key_file" in [found.fix for found in edge.says(permissions.check)]


def test_of_an_edge_servers_agent_nothing_of_kafka_is_looked_at(edge: Ward) -> None:
    edge.settings |= {"agent.name": "edge-17", "kafka.key_file": edge.folder / "absent"}
    assert edge.only(permissions.check).verdict == "ok"
    edge.settings["mqtt.key_file"] = edge.folder / "absent"
    assert edge.only(permissions.check).fix == "correct mqtt.key_file"


# --- the folder of the store ---------------------------------------------------------------------


def test_a_store_that_can_be_made_is_said_to_be_made_and_is(ward: Ward) -> None:
    ward.settings["agent.workers.checkpoints"] = f"file://{ward.folder}/a room/absent"
    (ward.folder / "a room").mkdir()
    assert f"(findmnt '{ward.folder}/a room')" in ward.only(store.check).fix
    url = f"file://{ward.folder}/absent"
    ward.settings["agent.workers.checkpoints"] = url
    found = ward.only(store.check)
    assert found.verdict == "warning"
    assert f"no folder {ward.folder}/absent yet; the first checkpoint makes it" in found.found
    assert f"findmnt {ward.folder}" in found.fix
    assert not (ward.folder / "absent").exists()
    (ward.folder / "weights").write_text("x")
    CheckpointStore(url).commit("j", 1, 1, ward.folder / "weights", 1.0)
    assert (ward.folder / "absent").is_dir()
    assert ward.only(store.check).verdict == "ok"


def test_a_store_of_which_more_is_missing_is_rather_not_mounted(ward: Ward) -> None:
    (ward.folder / "link").symlink_to(ward.folder / "unmounted")
    (ward.folder / "file").write_text("")
    for path in ("absent/store", "link", "link/store", "file/store"):
        ward.settings["agent.workers.checkpoints"] = f"file://{ward.folder}/{path}"
        found = ward.only(store.check)
        assert (found.verdict, "there is no folder" in found.found) == ("problem", True), path
        assert "mkdir -p" in found.fix
    assert not (ward.folder / "absent").exists()


def test_a_store_whose_disk_the_agent_misses_is_a_problem(ward: Ward) -> None:
    disk, memory = ward.folder / "disk", ward.folder / "runs" / STORE_DISK
    (disk / "store").mkdir(parents=True)  # as it lies on the machine's own, once that is away
    url = f"file://{disk}/store"
    ward.settings |= {"agent.workers.checkpoints": url, "agent.workers.folder": str(memory.parent)}
    assert ward.only(store.check).verdict == "ok"
    assert not memory.exists()
    memory.parent.mkdir(exist_ok=True)
    memory.write_text(json.dumps({"url": url, "mounted": str(disk)}))
    found = ward.only(store.check)
    assert found.verdict == "problem"
    assert f"{disk} is not mounted any more" in f"{found.found}: {found.fix}"
    assert f"remove {memory}" in found.fix
    assert list((disk / "store").iterdir()) == []


@pytest.mark.parametrize(("mode", "verdict"), [(0o777, "warning"), (0o555, "problem")])
def test_a_store_that_may_not_be_made_is_a_problem(ward: Ward, mode: int, verdict: str) -> None:
    # Not below pytest's own folders, which nobody else may enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(mode)
        ward.settings["agent.workers.checkpoints"] = f"file://{folder}/absent"
        assert [one.verdict for one in as_nobody(ward, "store")] == [verdict]
