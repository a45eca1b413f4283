"""Fleets on a file, and on real brokers under a namespace of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers import fresh_namespace
from tests.integration.processes import Fleet

AGENTS = """
[http]
port = 0
[scheduler]
births = "any"
[scheduler.settings]
cycle_s = 1
cycle_gap_s = 0.05
[agent.schedule]
telemetry_every_s = 1
load_every_s = 1
progress_every_s = 1
"""


@pytest.fixture
def fleets() -> Iterator[Callable[[Path, str], Fleet]]:
    """Make fleets whose processes end with the test."""
    made: list[Fleet] = []

    def make(folder: Path, config: str) -> Fleet:
        made.append(Fleet(folder, config + AGENTS))
        return made[-1]

    yield make
    for fleet in made:
        fleet.end()


@pytest.fixture
def file_fleet(tmp_path: Path, fleets: Callable[[Path, str], Fleet]) -> Fleet:
    return fleets(tmp_path, 'bus = "sqlite:bus.db"\n')


@pytest.fixture
def namespace() -> str:
    return fresh_namespace()


@pytest.fixture
def broker_fleet(
    tmp_path: Path,
    fleets: Callable[[Path, str], Fleet],
    kafka_bootstrap: str,
    mqtt_url: str,
    namespace: str,
) -> Fleet:
    config = f"""
[kafka]
bootstrap = "{kafka_bootstrap}"
replication = 1
namespace = "{namespace}"
cells = ["default", "west", "east"]
[mqtt]
url = "{mqtt_url}"
namespace = "{namespace}"
"""
    return fleets(tmp_path, config)
