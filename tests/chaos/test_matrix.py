"""One round of the kill matrix: each kind of fault once, at moments chosen by a fixed seed."""

import os
from pathlib import Path

import pytest

from tests.brokers import need_brokers
from tests.chaos.faults import KINDS, LONG_KINDS
from tests.chaos.matrix import Plan, run, show

SEED = int(os.environ.get("TIDEGATE_SEED", "11"))


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(600)
async def test_one_round_of_every_fault_loses_nothing_and_does_nothing_twice(
    tmp_path: Path,
) -> None:
    need_brokers()
    kinds = [kind for kind in KINDS if kind not in LONG_KINDS]
    figures = await run(Plan(SEED, kinds=kinds, brief=True), tmp_path / "fleet")
    print(show(figures))  # noqa: T201 - shown when it fails
    assert figures["problems"] == []
    assert figures["by_kind"].keys() == set(kinds)
    assert figures["lost"] == figures["double_effects"] == figures["double_owners"] == 0
    assert figures["replay_identical"]
    assert figures["jobs_accepted"] == figures["jobs_completed"] > 10
