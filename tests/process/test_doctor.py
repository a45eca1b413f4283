"""The doctor's checks that need no broker: each finding says what is wrong and what to do."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from bus.clock import SystemClock
from services.doctor import (
    clock,
    configuration,
    gpus,
    owner,
    unit,
)
from services.doctor.clock import KernelClock, kernel_clock
from services.doctor.finding import CheckContext, Finding, Reporter
from services.doctor.kafka import clock_against
from services.doctor.runner import run_checks, worst
from services.install.layout import CONFIG
from services.install.systemd import Unit
from services.install.texts import unit_text
from tests.metering.fake_nvml import Card, FakeNvml
from tests.process.ward import Ward, ward

__all__ = ["ward"]  # the fixture


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
    assert ward.only(gpus.check).found == "2 of 2 GPUs offered: NVIDIA H100 80GB HBM3"
    ward.settings["agent.workers.gpu_ids"] = "GPU-2,0"
    assert ward.only(gpus.check).verdict == "ok"


def test_an_edge_server_that_does_not_say_how_fast_its_gpus_are(
    ward: Ward, driver: FakeNvml
) -> None:
    del ward.settings["agent.speed_factor"]
    count, speed = ward.says(gpus.check)
    assert (count.verdict, speed.verdict) == ("ok", "warning")
    assert "agent.speed_factor is not set: jobs are expected to reach 0.4 of" in speed.found
    ward.settings["agent.gpu_type"] = "cpu"
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


@pytest.mark.parametrize("ids", ["GPU-1,GPU-1", "GPU-1,0", "0,0"])
def test_a_gpu_that_is_named_twice(ward: Ward, driver: FakeNvml, ids: str) -> None:
    """With one of two names no agent starts; with both of them, it has two jobs share a GPU."""
    ward.settings["agent.workers.gpu_ids"] = ids
    found = ward.only(gpus.check)
    assert (found.verdict, found.found) == (
        "problem", "agent.workers.gpu_ids names GPU-1 twice",
    )  # fmt: skip


def test_more_memory_than_there_is(ward: Ward, driver: FakeNvml) -> None:
    ward.settings["agent.gpu_memory_mib"] = 81_920  # as it is sold
    assert ward.only(gpus.check).verdict == "ok"
    ward.settings["agent.gpu_memory_mib"] = 2 * 81_920
    count, memory = ward.says(gpus.check)
    assert (count.verdict, memory.verdict) == ("ok", "problem")
    assert "agent.gpu_memory_mib says 163840, and the driver" in memory.found


def test_gpus_of_which_the_driver_does_not_say_the_memory(ward: Ward, driver: FakeNvml) -> None:
    driver.cards[1].errors["memory"] = 3
    count, memory = ward.says(gpus.check)
    assert (count.verdict, memory.verdict) == ("ok", "problem")
    assert "set agent.gpu_memory_mib" in memory.fix
    ward.settings["agent.gpu_memory_mib"] = 100_000
    assert ward.only(gpus.check).verdict == "ok"


def test_a_driver_that_is_gone(ward: Ward, driver: FakeNvml) -> None:
    driver.driver_error = 9
    ward.settings["agent.gpus"] = 1
    found = ward.only(gpus.check)
    assert found.verdict == "problem"
    assert found.found.startswith("1 GPU configured, and none can be seen: ")
    assert 'gpu_type = "cpu"' in found.fix


def test_slots_of_processors(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    ward.settings |= {"agent.gpu_type": "cpu", "agent.gpus": 1}
    assert ward.only(gpus.check).found.startswith("1 CPU slot on ")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    ward.settings["agent.gpus"] = 64
    assert "set agent.gpus to " in ward.only(gpus.check).fix


def test_simulated_workers_are_worth_a_word(ward: Ward) -> None:
    ward.settings = {"agent.name": "e"}
    found = ward.only(gpus.check)
    assert 'agent.runs = "processes"' in found.fix
    assert (found.verdict, "no agent starts" in found.found) == ("problem", True)
    ward.settings["agent.runs"] = "simulated"
    found = ward.only(gpus.check)
    assert 'agent.runs = "processes"' in found.fix
    assert (found.verdict, "no job really runs" in found.found) == ("warning", True)
    ward.settings = {"scheduler.births": "any"}
    assert ward.says(gpus.check) == [], "a scheduler has no GPUs"


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


# --- the service ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _without_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit, "booted", lambda: False)


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


def test_a_unit_that_does_not_start_with_the_machine(ward: Ward) -> None:
    said = {"KillMode": "process", "Restart": "always", "ActiveState": "active"}
    assert ward.only(unit.check, unit=Unit(said | {"UnitFileState": "enabled"}, "")).verdict == "ok"
    found = ward.only(unit.check, unit=Unit(said | {"UnitFileState": "disabled"}, ""))
    assert (found.verdict, found.fix[:17]) == ("warning", "systemctl enable ")


def test_a_unit_that_systemd_does_not_load(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a setting in `systemctl edit` that it refuses; its file is as it was installed."""
    text = unit_text("edge-17", ["/opt/tidegate"], "tidegate", "tidegate")
    monkeypatch.setattr(unit, "booted", lambda: True)
    found = ward.only(unit.check, unit=Unit({}, text))
    assert (found.verdict, "cannot load" in found.found) == ("problem", True)


def test_a_configuration_whose_installation_was_killed_before_its_unit(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ward.says(unit.check, file=CONFIG) == [], "something else starts services there"
    monkeypatch.setattr(unit, "booted", lambda: True)
    assert ward.says(unit.check, file=ward.folder / "own.toml") == []
    found = ward.only(unit.check, file=CONFIG)
    assert (found.verdict, "edge-agent install" in found.fix) == ("problem", True)


def test_cgroups_are_never_more_than_a_warning(ward: Ward) -> None:
    assert ward.only(unit.check_cgroups).verdict in ("ok", "warning")


# --- the owner -----------------------------------------------------------------------------------


def test_hooks_whose_commands_cannot_be_run(ward: Ward) -> None:
    assert ward.says(owner.check) == [], "nobody serves on it"
    del ward.settings["agent.owner"]
    script = ward.folder / "back.sh"
    script.touch(0o644)
    ward.settings |= {
        "agent.load.server": "[{name = 'chat', url = 'http://127.0.0.1:9/'}]",
        "agent.load.demand.latency_target_s": 1.0,
    }
    ward.settings["agent.owner.hooks.drain"] = '["/nope/systemctl", "stop", "{node}"]'
    ward.settings["agent.owner.hooks.hand_back"] = f'["{script}"]'
    ward.settings["agent.owner.hooks.confirm_drain"] = '["no-such-command"]'
    ward.settings["agent.owner.hooks.confirm_hand_back"] = '["sh", "-c", "exit 0"]'
    *found, _load = ward.says(owner.check)
    assert [(one.verdict, one.found) for one in found] == [
        ("problem", "agent.owner.hooks.drain: /nope/systemctl was not found"),
        ("problem", f"agent.owner.hooks.hand_back: {script} may not be run by the agent's user"),
        ("problem", "agent.owner.hooks.confirm_drain: no-such-command is in no folder of PATH"),
    ]
    assert all(one.fix for one in found)
    script.chmod(0o755)
    ward.settings["agent.owner.hooks.confirm_drain"] = '["/nope/{node}.sh"]'
    ward.settings["agent.owner.hooks.drain"] = f'["{script}", "{{node}}"]'
    assert ward.says(owner.check)[0].found == (
        "agent.owner.hooks.confirm_drain: /nope/edge-17.sh was not found"
    )
    del ward.settings["agent.owner.hooks.confirm_drain"]
    assert ward.says(owner.check)[0].found == "the commands of its hooks are there"
    assert worst(run_checks(ward.context(clock=SystemClock()), {"owner": owner.check})) == 0


def test_a_server_of_the_owners_that_does_not_answer_is_named_with_its_key(ward: Ward) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"
    del ward.settings["agent.owner"]
    for hook in ("drain", "hand_back"):
        ward.settings[f"agent.owner.hooks.{hook}"] = '["true"]'
    ward.settings["agent.load.server"] = f'[{{name = "chat", node = "edge-17", url = "{url}"}}]'
    ward.settings["agent.load.demand.latency_target_s"] = 1.0
    hooks, found = ward.says(owner.check)
    assert (hooks.verdict, found.verdict) == ("ok", "warning")
    assert found.found.startswith(f"agent.load.server.0.url (chat): {url}: ")
    assert "while edge-17 is lent" in found.fix


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


def test_a_name_that_no_disk_takes_is_said_as_the_system_says_it(ward: Ward) -> None:
    long = str(ward.folder / ("x" * 300))
    ward.settings["agent.workers.folder"] = long
    found = [
        one for one in run_checks(ward.context(clock=SystemClock())) if one.verdict == "problem"
    ]
    assert [one for one in found if one.found == f"{long}: File name too long"]
    assert not [one for one in found if "report it" in one.fix]


def test_what_ran_out_of_time_by_itself_is_named(ward: Ward) -> None:
    def late(_: CheckContext) -> Iterator[Finding]:
        raise TimeoutError

    (found,) = run_checks(ward.context(clock=SystemClock()), {"late": late})
    assert (found.verdict, "TimeoutError" in found.found) == ("problem", True), found


def test_gpus_of_which_nobody_says_who_serves_on_them_are_a_problem(ward: Ward) -> None:
    del ward.settings["agent.owner"]
    found = [one for one in ward.says(gpus.check) if one.verdict == "problem"]
    assert any("agent.owner" in one.fix for one in found)
