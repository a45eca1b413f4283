"""Hypothesis profiles, and the order of the layers: fast ones first."""

import os
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

Engine.strict = True

settings.register_profile("laptop", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=300)
settings.load_profile("ci" if os.environ.get("CI") else "laptop")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the layers in the order of `LAYERS`, and any other folder after them."""

    def layer_rank(item: pytest.Item) -> int:
        layer = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        return LAYERS.index(layer) if layer in LAYERS else len(LAYERS)

    items.sort(key=layer_rank)
