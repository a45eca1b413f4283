"""The agent as a service of a real systemd: what is said of restarts, gangs and limits."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.executors.cgroups import GANGS
from services.install.layout import CONFIG, GANGS_UNIT, UNIT, UNIT_NAME
from tests.deploy.own_systemd import Systemd, own_systemd
from tests.patience import wait_until

TIDEGATE = Path(sys.executable).with_name("tidegate")
NEW = ("--name", "edge-1", "--owner", "none", "--gpus", "2", "--gpu-type", "cpu",
       "--checkpoints", "file:///srv/checkpoints", "--broker")  # fmt: skip
#: Joins a cgroup as a gang does, in which it then stays.
GANG = """
import sys, time
from pathlib import Path
from runtime.executors.cgroups import make_cgroup
made, notes = make_cgroup(None, "gang", None, None)
made.join()
Path(sys.argv[1]).write_text(str(made.path))
time.sleep(600)
"""
#: A test that hangs.
HANGS = """
import sys, time
from pathlib import Path
from tests.deploy.own_systemd import own_systemd
with own_systemd(Path(sys.argv[1])) as found:
    print(found.pid, flush=True)
    time.sleep(600)
"""
pytestmark = [pytest.mark.slow, pytest.mark.broker]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Systemd]:
    with own_systemd(tmp_path) as found:
        yield found


def main_pid(machine: Systemd) -> str:
    return machine.did("systemctl", "show", "-P", "MainPID", UNIT_NAME).strip()


def test_gangs_of_an_installed_agent_may_have_limits_and_outlive_it(
    machine: Systemd, mqtt_url: str
) -> None:
    machine.did(TIDEGATE, "edge-agent", "install", *NEW, mqtt_url)
    assert machine.is_active(UNIT_NAME)
    assert machine.is_active(GANGS_UNIT.name)
    machine.did("systemd-run", "--slice=system.slice", sys.executable, "-c", GANG, "/run/at")
    wait_until(lambda: machine.run("cat", "/run/at").stdout == f"{GANGS}/gang")
    processes = machine.did("cat", GANGS / "gang" / "cgroup.procs").split()
    assert processes

    some = machine.controller()
    for place in (Path("/sys/fs/cgroup"), GANGS.parent, GANGS):
        machine.did("sh", "-c", f"echo +{some} > {place}/cgroup.subtree_control")
    limits = machine.did("ls", GANGS / "gang").split()
    assert any(file.startswith(f"{some}.") for file in limits)

    before = main_pid(machine)
    machine.did(TIDEGATE, "edge-agent", "install")  # brought up to date
    assert machine.is_active(UNIT_NAME)
    assert main_pid(machine) != before
    before = main_pid(machine)
    machine.did("systemctl", "kill", "--signal=KILL", "--kill-who=main", UNIT_NAME)
    wait_until(lambda: machine.is_active(UNIT_NAME) and main_pid(machine) not in ("0", before))
    # Nor is a gang hurt by what becomes of the service that only holds its cgroup.
    machine.run("systemctl", "restart", GANGS_UNIT.name)
    assert machine.did("cat", GANGS / "gang" / "cgroup.procs").split() == processes

    gone = machine.did(TIDEGATE, "edge-agent", "uninstall")
    assert {str(CONFIG), str(UNIT), str(GANGS_UNIT)} <= set(gone.split())
    assert not machine.is_active(UNIT_NAME)
    assert not machine.is_active(GANGS_UNIT.name)
    assert machine.did("cat", GANGS / "gang" / "cgroup.procs").split() == processes


def test_in_the_agents_own_service_limits_would_keep_it_from_starting_again(
    machine: Systemd, mqtt_url: str
) -> None:
    """Why there is a service for the gangs alone: if this fails some day, it is needed no more."""
    machine.did(TIDEGATE, "edge-agent", "install", *NEW, mqtt_url)
    service = f"{GANGS.parent}/{UNIT_NAME}"
    machine.did("mkdir", f"{service}/gang", f"{service}/agent")
    machine.did("sh", "-c", f"sleep 600 > /dev/null 2>&1 & echo $! > {service}/gang/cgroup.procs")
    some = machine.controller()
    for place in ("/sys/fs/cgroup", GANGS.parent):
        machine.did("sh", "-c", f"echo +{some} > {place}/cgroup.subtree_control")
    limit = ("sh", "-c", f"echo +{some} > {service}/cgroup.subtree_control")
    assert machine.run(*limit).returncode != 0  # the agent is in there
    machine.did("sh", "-c", f"echo {main_pid(machine)} > {service}/agent/cgroup.procs")
    machine.did(*limit)
    assert machine.run("systemctl", "restart", UNIT_NAME).returncode != 0


def test_of_a_test_that_is_killed_no_systemd_is_left(machine: Systemd, tmp_path: Path) -> None:
    assert machine.is_active("multi-user.target")  # and two can run at once
    words = [sys.executable, "-c", HANGS, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        other = int(test.stdout.readline())
        test.kill()
    wait_until(lambda: not Path(f"/proc/{other}").exists())
    assert machine.is_active("multi-user.target")
