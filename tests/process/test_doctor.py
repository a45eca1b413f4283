"""The doctor's checks that need no broker: each finding says what is wrong and what to do."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from services.config import ConfigError, load
from services.doctor import (
    bus,
    certificates,
    clock,
    configuration,
    context,
    disk,
    gpus,
    permissions,
    store,
    unit,
)
from services.doctor.context import load_context
from services.doctor.finding import Check, CheckContext, Finding, Reporter
from services.doctor.kafka import clock_against
from services.doctor.kernel_clock import KernelClock, kernel_clock
from services.doctor.runner import run_checks, worst
from services.install.systemd import Unit
from services.install.texts import unit_text
from tests.metering.fake_nvml import Card, FakeNvml


@dataclass
class Ward:
    """A configuration to change, and what a check then says."""

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)

    def context(self, **more: Any) -> CheckContext:
        return CheckContext(load(None, [f"{k}={v}" for k, v in self.settings.items()]), **more)

    def says(self, check: Check, **more: Any) -> list[Finding]:
        return list(check(self.context(clock=SystemClock(), **more)))

    def only(self, check: Check, **more: Any) -> Finding:
        (found,) = self.says(check, **more)
        assert bool(found.fix) == (found.verdict != "ok")
        return found


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    for name in ("runs", "store"):
        (tmp_path / name).mkdir()
    return Ward(
        tmp_path,
        {
            "bus": f"sqlite:{tmp_path}/bus.db",
            "agent.name": "edge-17",
            "agent.state_file": tmp_path / "agent.db",
            "agent.gpus": 2,
            "agent.runs": "processes",
            "agent.owner": "none",
            "agent.workers.folder": tmp_path / "runs",
            "agent.workers.checkpoints": f"file://{tmp_path}/store",
        },
    )


# --- GPUs ----------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml([Card("GPU-1"), Card("GPU-2")])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_key_under_its_old_name(ward: Ward) -> None:
    assert ward.says(configuration.check) == []
    ward.settings["agent.workers.keep"] = 3
    found = ward.only(configuration.check)
    assert (found.verdict, found.found) == (
        "warning",
        "agent.workers.keep is now checkpoint_retention; the next release refuses the old name",
    )


def test_gpus_that_are_there(ward: Ward, driver: FakeNvml) -> None:
    assert ward.only(gpus.check).found == "2 of 2 GPUs are offered: NVIDIA H100 80GB HBM3"
    ward.settings["agent.workers.gpu_ids"] = "GPU-2,1"
    assert ward.only(gpus.check).verdict == "ok"


def test_a_wrong_count_of_gpus(ward: Ward, driver: FakeNvml) -> None:
    ward.settings["agent.gpus"] = 3
    found = ward.only(gpus.check)
    assert (found.verdict, found.found) == (
        "problem", "agent.gpus offers 3 GPUs, and the driver lists 2",
    )  # fmt: skip
    assert "set agent.gpus = 2" in found.fix
    ward.settings["agent.gpus"] = 1
    assert ward.only(gpus.check).verdict == "warning"


def test_a_gpu_that_is_not_there(ward: Ward, driver: FakeNvml) -> None:
    ward.settings["agent.workers.gpu_ids"] = "GPU-1,GPU-9"
    found = ward.only(gpus.check)
    assert "gpu_ids names GPU-9; the driver lists GPU-1, GPU-2" in found.found
    assert "nvidia-smi -L" in found.fix


def test_a_driver_that_is_gone(ward: Ward, driver: FakeNvml) -> None:
    driver.driver_error = 9
    found = ward.only(gpus.check)
    assert found.verdict == "problem"
    assert 'gpu_type = "cpu"' in found.fix


def test_slots_of_processors(ward: Ward) -> None:
    ward.settings |= {"agent.gpu_type": "cpu", "agent.gpus": 1}
    assert ward.only(gpus.check).verdict == "ok"
    ward.settings["agent.gpus"] = 4096
    assert "set agent.gpus to " in ward.only(gpus.check).fix


def test_simulated_workers_are_worth_a_word(ward: Ward) -> None:
    ward.settings = {"agent.name": "e"}
    assert 'agent.runs = "processes"' in ward.only(gpus.check).fix


# --- clock ---------------------------------------------------------------------------------------


def test_the_kernel_is_asked(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_clock() is not None
    for said, verdict in (
        (KernelClock(True, 0.01), "ok"),
        (KernelClock(False, 16.0), "warning"),
        (None, "warning"),
    ):
        monkeypatch.setattr(clock, "kernel_clock", lambda said=said: said)
        assert ward.only(clock.check).verdict == verdict


@pytest.mark.parametrize(
    ("skew_s", "verdict"), [(0.3, "ok"), (-30, "warning"), (61, "problem"), (-3600, "problem")]
)
def test_skew_is_judged_by_what_leases_allow_for(skew_s: float, verdict: str) -> None:
    found = clock.against("the store", skew_s)
    assert found.verdict == verdict
    if verdict != "ok":
        assert ("ahead of" if skew_s > 0 else "behind") in found.found
        assert "leases allow for 60 s" in found.found
        assert "timedatectl" in found.fix


def test_the_schedulers_newest_word_bounds_the_skew() -> None:
    for age_s, verdict in (
        *((30.0, "ok"), (119.0, "ok"), (121.0, "warning"), (1000.0, "warning")),
        *((-0.5, "ok"), (-2.0, "ok"), (-10.0, "warning"), (-59.0, "warning"), (-61.0, "problem")),
    ):
        assert clock_against(2000.0, 2000.0 + age_s).verdict == verdict, age_s


# --- disk, store, permissions --------------------------------------------------------------------


def test_the_store_is_tried_and_left_clean(ward: Ward) -> None:
    assert ward.only(store.check).verdict == "ok"
    assert list((ward.folder / "store").iterdir()) == []


def test_a_store_whose_kind_is_unknown_or_that_refuses(ward: Ward) -> None:
    ward.settings["agent.workers.checkpoints"] = "ftpx://b/c"
    assert "use file:///folder" in ward.only(store.check).fix
    (ward.folder / "file").write_text("")
    ward.settings["agent.workers.checkpoints"] = f"file://{ward.folder}/file"
    assert ward.only(store.check).verdict == "problem"


def test_room_is_counted_in_checkpoints(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.verdict for one in ward.says(disk.check)} <= {"ok", "warning"}
    saved = ward.folder / "runs/runs/j/1/checkpoints/step-1"
    saved.mkdir(parents=True)
    (saved / "w").write_bytes(b"x" * 2**20)
    assert "3 checkpoints of 1 MiB" in ward.says(disk.check)[-1].found
    usage = type("Usage", (), {"free": 2**20})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    found = ward.says(disk.check)[-1]
    assert found.verdict == "problem"
    assert "free 1 MiB there" in found.fix


def test_what_the_job_holds_already_need_not_be_free(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job, epoch, mib in (("j", 1, 3), ("j", 2, 4), ("small", 1, 1)):
        saved = ward.folder / f"runs/runs/{job}/{epoch}/checkpoints/step"
        saved.mkdir(parents=True)
        (saved / "w").write_bytes(b"x" * mib * 2**20)
    usage = type("Usage", (), {"free": 5 * 2**20})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    # 12 MiB for three, of which the job holds 7.
    assert ward.says(disk.check)[-1].verdict == "ok"
    usage.free -= 1
    assert ward.says(disk.check)[-1].verdict == "problem"
    # However much it holds, the next one wants room.
    (ward.folder / "runs/runs/j/1/checkpoints/more").write_bytes(b"x" * 4 * 2**20)
    assert ward.says(disk.check)[-1].verdict == "ok"
    usage.free = 4 * 2**20 - 1
    assert ward.says(disk.check)[-1].verdict == "problem"


def test_the_file_system_of_a_path_is_that_of_the_longest_mount() -> None:
    line = "1 1 0:1 / {} rw - {} none rw"
    mounts = "\n".join(
        line.format(*one)
        for one in (("/", "ext4"), ("/usr", "xfs"), ("/us", "nfs"), ("/usr/with\\040x", "tmpfs"))
    )
    assert disk.filesystem(Path("/usr/lib"), mounts) in ("xfs", "ext4")
    assert disk.filesystem(Path("/usr/with x/y"), mounts) == "tmpfs"
    assert disk.filesystem(Path("/nowhere"), mounts) == "ext4"


def test_a_folder_in_memory_forgets(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "filesystem", lambda *_: "tmpfs")
    found = ward.says(disk.check)
    assert "set agent.workers.folder to a folder on a disk" in [one.fix for one in found]


#: Root may write everywhere: then it is asked as a user without rights, once all is imported.
_AS_NOBODY = """
import importlib, json, os, sys
from bus.clock import SystemClock
from services.config import load
from services.doctor.finding import CheckContext
check = importlib.import_module("services.doctor." + sys.argv[1])
context = CheckContext(load(None, sys.argv[2:]), SystemClock())
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([[f.check, f.verdict, f.found, f.fix] for f in check.check(context)]))
"""


def as_nobody(ward: Ward, check: str) -> list[Finding]:
    """Give what a check of the doctor's finds as a user without rights."""
    flags = [f"{key}={value}" for key, value in ward.settings.items()]
    command = [sys.executable, "-c", _AS_NOBODY, check, *flags]
    done = subprocess.run(command, capture_output=True, check=True)
    return [Finding(*one) for one in json.loads(done.stdout)]


def test_a_folder_that_cannot_be_written(ward: Ward) -> None:
    (ward.folder / "runs").chmod(0o500)
    found = as_nobody(ward, "permissions")
    closed = [one for one in found if one.found.startswith("agent.workers.folder")]
    assert closed or found[0].found.startswith("agent.state_file")
    assert {one.verdict for one in found} == {"problem"}
    assert "may not write in" in found[0].found
    assert "chown" in found[0].fix


def test_where_all_may_be_written_that_is_said(ward: Ward) -> None:
    assert ward.only(permissions.check).verdict == "ok"


def test_a_key_that_everybody_can_read(ward: Ward) -> None:
    key = ward.folder / "agent.key"
    key.write_text("secret")
    key.chmod(0o644)
    ward.settings["mqtt.key_file"] = key
    found = ward.only(permissions.check)
    assert "every user of this machine can read" in found.found
    assert found.fix.startswith(f"chmod o= {key}")
    key.chmod(0o640)
    assert ward.only(permissions.check).verdict == "ok"
    key.unlink()
    assert "correct mqtt.key_file" in ward.only(permissions.check).fix


@pytest.mark.parametrize(
    "line",
    ["password = 'x'", "'password'=\"x\"", "url = 'mqtt://u:x@b'"],
)
def test_a_configuration_with_a_password_that_everybody_can_read(ward: Ward, line: str) -> None:
    file = ward.folder / "own.toml"
    file.write_text(f"[mqtt]\n{line}\n")
    file.chmod(0o644)
    found = ward.only(permissions.check, file=file)
    assert (found.verdict, found.fix.partition(";")[0]) == ("problem", f"chmod o= {file}")
    file.chmod(0o640)
    assert ward.only(permissions.check, file=file).verdict == "ok"


def test_a_services_environment_that_everybody_can_read(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ward.folder / "edge-agent.env"
    monkeypatch.setattr(permissions, "ENVIRONMENT", file)
    assert ward.only(permissions.check, unit=Unit({}, "")).verdict == "ok"
    file.write_text("AWS_SECRET_ACCESS_KEY=x\n")
    file.chmod(0o644)
    assert "edge-agent.env" in ward.only(permissions.check, unit=Unit({}, "")).found


def test_trusted_keys_are_read_as_the_agent_would(ward: Ward) -> None:
    ward.settings["agent.trusted_keys.k1"] = "/nope/k.pem"
    found = ward.only(certificates.check)
    assert found.verdict == "problem"
    assert found.found == "agent.trusted_keys.k1: /nope/k.pem: No such file or directory"
    assert "-pubout" in found.fix
    ward.settings["agent.trusted_keys.k1"] = "A" * 43 + "="
    assert ward.says(certificates.check) == []


def test_keys_of_another_kind_of_agent_stop_the_doctor_of_an_installed_one(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ward.folder / "own.toml"
    file.write_text("[agent]\nname = 'edge-17'\nnodes = ['a']\n")
    load_context(file, [], SystemClock())
    for name, value in (("CONFIG", file), ("find_unit", lambda *_: Unit({}, ""))):
        monkeypatch.setattr(context, name, value)
    monkeypatch.setattr(context, "_become", lambda _: None)
    with pytest.raises(ConfigError, match=r"agent\.nodes is for another kind"):
        load_context(file, [], SystemClock())


def test_a_bus_in_a_file(ward: Ward) -> None:
    assert ward.only(bus.check).verdict == "warning"
    (ward.folder / "bus.db").touch()
    assert ward.only(bus.check).verdict == "ok"


# --- the service ---------------------------------------------------------------------------------


def test_the_unit_that_is_installed_is_good(ward: Ward) -> None:
    text = unit_text("edge-17", ["/opt/tidegate"], "tidegate", "tidegate")
    assert ward.only(unit.check, unit=Unit({}, text)).verdict == "ok"


@pytest.mark.parametrize(
    "said",
    [
        {"KillMode": "control-group", "Restart": "always", "ActiveState": "active"},
        {},
    ],
)
def test_a_unit_that_would_end_workers(ward: Ward, said: dict[str, str]) -> None:
    text = "" if said else "[Service]\nKillMode=mixed\nRestart=always"
    found = ward.only(unit.check, unit=Unit(said, text))
    assert "a restart of the agent would end all workers" in found.found
    assert "KillMode=process" in found.fix


def test_a_unit_that_is_down(ward: Ward) -> None:
    said = {"KillMode": "process", "Restart": "always", "ActiveState": "failed"}
    assert "journalctl -u" in ward.only(unit.check, unit=Unit(said, "")).fix
    said |= {"ActiveState": "activating", "SubState": "auto-restart"}
    assert ward.only(unit.check, unit=Unit(said, "")).verdict == "problem"


def test_cgroups_are_never_more_than_a_warning(ward: Ward) -> None:
    assert ward.only(unit.check_cgroups).verdict in ("ok", "warning")


# --- all of them ---------------------------------------------------------------------------------


def test_a_check_that_hangs_or_breaks_holds_up_nobody(ward: Ward) -> None:
    forever = threading.Event()
    tell = Reporter("slow")

    def slow(_: CheckContext) -> Iterator[Finding]:
        yield tell.ok("begun")
        forever.wait(60)

    def broken(_: CheckContext) -> Iterator[Finding]:
        raise RuntimeError("of its own")

    began_s = time.monotonic()
    found = run_checks(
        ward.context(clock=SystemClock()),
        {"slow": slow, "broken": broken, "gpu": lambda _: [Reporter("gpu").ok("fine")]},
        limit_s=0.5,
    )
    forever.set()
    assert time.monotonic() - began_s < 30
    assert [(one.check, one.verdict) for one in found] == [
        ("slow", "ok"), ("slow", "problem"), ("broken", "problem"), ("gpu", "ok"),
    ]  # fmt: skip
    assert "no answer within" in found[1].found
    assert "RuntimeError: of its own" in found[2].found
    assert worst(found) == 1
    assert worst(found[:1]) == 0


def test_gpus_of_which_nobody_says_who_serves_on_them_are_a_problem(ward: Ward) -> None:
    del ward.settings["agent.owner"]
    found = [one for one in ward.says(gpus.check) if one.verdict == "problem"]
    assert any("agent.owner" in one.fix for one in found)
