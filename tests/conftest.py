"""Hypothesis profiles, and the order of the layers: fast ones first."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from scheduler.core.engine import Engine

#: The fixtures that give brokers, clusters and real workers.
pytest_plugins = ["tests.brokers", "tests.kubernetes_bed", "tests.slurm", "tests.workers"]

LAYERS = (
    "unit",
    "property",
    "model",
    "contract",
    "simulation",
    "golden",
    "console",
    "packaging",
    "deploy",
    "security",
    "integration",
    "chaos",
)
TESTS = Path(__file__).parent
#: What changes how programs print.
TERMINAL = ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TERM", "TTY_COMPATIBLE")
#: What tests and `compose/` read after their modules were imported.
OURS = ("TIDEGATE_KAFKA_JARS", "TIDEGATE_KUBERNETES", "TIDEGATE_KUBERNETES_BIN")

Engine.strict = True

settings.register_profile("laptop", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=300)
settings.load_profile("ci" if os.environ.get("CI") else "laptop")


@pytest.fixture(scope="session", autouse=True)
def _environment_of_tests() -> Iterator[None]:
    """Keep the caller's terminal, deployment and proxy from tests."""
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name in TERMINAL or (name.startswith("TIDEGATE_") and name not in OURS):
                patch.delenv(name)
        for name in ("no_proxy", "NO_PROXY"):  # what tests serve is on this machine
            patch.setenv(name, f"{others},localhost,127.0.0.1")
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the layers in the order of `LAYERS`, and any other folder after them."""

    def layer_rank(item: pytest.Item) -> int:
        layer = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        return LAYERS.index(layer) if layer in LAYERS else len(LAYERS)

    items.sort(key=layer_rank)
