"""All of it on one machine without a broker: a file is the bus."""

import json
import signal
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from console.main import main
from scheduler.journal import recover
from services.metrics import METRICS, RoleName
from tests.integration.processes import TRAIN, Fleet, Service, job, ready, submit, until
from tests.patience import PATIENCE_S

SIMULATED = ("--set", "agent.runs=simulated")
RECORDED = TRAIN | {"agent__effects_file": "effects.jsonl"}


def names(service: Service, role: RoleName) -> tuple[set[str], set[str]]:
    """What the page has, and what it is to have."""
    text = service.get("/metrics")[1]
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP tidegate_")}
    return shown, {name for name, what in METRICS.items() if role in what.roles}


@pytest.mark.slow
async def test_a_job_runs_and_all_end_in_good_order(file_fleet: Fleet) -> None:
    scheduler = file_fleet.start("scheduler")
    agent = file_fleet.start("cloud-agent", **RECORDED)
    edge = file_fleet.start(
        "edge-agent",
        agent__name="edge-1",
        agent__runs="simulated",
        agent__simulated__demand_gpus=1,
    )
    await ready(scheduler, agent, edge)
    bus = SqliteBus.open(file_fleet.folder / "bus.db", SystemClock())
    await submit(bus, job("j1", gpus=2))
    await until(
        lambda: scheduler.metrics()["tidegate_jobs"]["default", "completed"] == 1, "the job is done"
    )
    shown = scheduler.metrics()
    assert sum(shown["tidegate_gpus"].values()) == 5
    assert shown["tidegate_gpus"]["default", "edge", "serving"] == 1
    assert shown["tidegate_queueing_seconds_count"]["default",] == 1
    assert shown["tidegate_leader"]["default",] == 1
    assert shown["tidegate_invariant_violations_total"]["default",] == 0
    assert agent.metrics()["tidegate_published_total"][()] > 3
    roles: dict[RoleName, Service] = {
        "scheduler": scheduler,
        "cloud-agent": agent,
        "edge-agent": edge,
    }
    for role, service in roles.items():
        page, table = names(service, role)
        assert page == table
        assert service.get("/healthz")[0] == 200
    assert [service.stop() for service in (agent, edge, scheduler)] == [0, 0, 0]
    found = await recover(bus, "default")
    assert (found.entries, found.state.jobs["j1"].state) == (0, "completed"), "a snapshot was left"
    await bus.close()
    recorded = (file_fleet.folder / "effects.jsonl").read_text()
    effects = [json.loads(line) for line in recorded.splitlines()]
    assert [(one["effect"], one.get("job")) for one in effects] == [
        ("began", None),
        ("start", "j1"),
        ("ended", "j1"),
    ]
    said = {line["event"]: line for line in scheduler.lines()}
    assert said["gang starting"]["job"] == said["job completed"]["job"] == "j1"
    assert said["job completed"]["cause"].startswith("train-")
    assert any("simulated" in line["event"] for line in agent.lines())


@pytest.mark.slow
async def test_who_comes_second_leads_and_the_first_ends(file_fleet: Fleet) -> None:
    first = file_fleet.start("scheduler", scheduler__name="one")
    await ready(first)
    second = file_fleet.start("scheduler", scheduler__name="two")
    await ready(second)
    bus = SqliteBus.open(file_fleet.folder / "bus.db", SystemClock())
    await submit(bus, job("j1"))
    assert first.process.wait(PATIENCE_S) == 1
    assert "took cell default over" in first.lines()[-1]["error"]
    assert second.readiness()["leads"] == ["default"]
    await bus.close()


async def test_a_second_signal_ends_it_at_once(file_fleet: Fleet) -> None:
    scheduler = file_fleet.start("scheduler")
    await ready(scheduler)
    scheduler.signal(signal.SIGSTOP)
    scheduler.signal(signal.SIGTERM)
    scheduler.signal(signal.SIGINT)
    scheduler.signal(signal.SIGCONT)
    assert scheduler.process.wait(PATIENCE_S) == 1
    assert scheduler.lines()[-1]["event"] == "ending at once"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("scheduler",), "kafka.bootstrap is not set"),
        (("scheduler", "--set", "scheduler.polcy=x"), "did you mean policy?"),
        (("scheduler", "--set", "bus=sqlite:x", "--set", "scheduler.policy=x"), "is not known"),
        (("scheduler", "--config", "none.toml"), "No such file"),
        (("bridge", "--set", "bus=sqlite:x", "--set", "mqtt.url=mqtt://h"), "carries to Kafka"),
        (("cloud-agent", "--set", "agent.name=a"), "agent.pool is not set"),
        (("edge-agent", "--set", "agent.name=a"), "agent.runs is not set"),
        (("edge-agent", "--set", "agent.name=a", *SIMULATED), "mqtt.url is not set"),
        (("edge-agent", "--set", "agent.name=a", "--set", "agent.nodes=b"), "take it out"),
        (
            ("edge-agent", *SIMULATED, "--set", "agent.name=a", "--set", "agent.trusted_keys.k=?"),
            "trusted key k",
        ),
    ],
)
def test_what_cannot_begin_says_so_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
