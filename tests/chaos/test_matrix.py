"""One round of the kill matrix: each kind of fault once, at moments chosen by a fixed seed."""

import os
from pathlib import Path

import pytest

from tests.brokers import need_brokers
from tests.chaos.account import Account
from tests.chaos.faults import KINDS, LONG_KINDS
from tests.chaos.matrix import Plan, Run, figures_of, run, show

SEED = int(os.environ.get("TIDEGATE_SEED", "11"))


def test_of_few_recoveries_the_longest_is_shown_and_no_percentile() -> None:
    going = Run(Plan(SEED), recovery_s={"kafka-kill": [2.0, 1.0, 9.0]})
    figures = figures_of(going, Account())
    assert figures["by_kind"] == {
        "kafka-kill": {"faults": 3, "recovery_s_p50": 2.0, "recovery_s_worst": 9.0}
    }
    assert (figures["recovery_s_p50"], figures["recovery_s_p99"]) == (2.0, 8.86)
    head, row = show(figures).splitlines()[:2]
    assert head.split()[-2:] == ["p50", "worst"]
    assert row.split() == ["kafka-kill", "3", "2.0", "s", "9.0", "s"]


@pytest.mark.slow
@pytest.mark.broker
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
