"""What owners are forecast to need is what the policy in force decides loans on."""

from pathlib import Path

import numpy as np
import pytest

from gateway.foreseen import forecast_of
from scheduler.core.engine import Engine
from scheduler.core.state import ClusterState
from scheduler.policies.parts.lending import _notices_s, foreseen
from scheduler.policies.parts.loans import LoanOptions, Outlook
from scheduler.policies.registry import make_policy
from tests.gateway.conftest import Serving
from tests.gateway.test_sight import two

__all__ = ["two"]


async def test_the_forecast_is_the_policys_own(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        last = served.feed.entries - 1
        for entry in (last, last // 2):
            found = await served.get("tide", entry=entry, forecast="true", points=2)
            state = await served.gateway.past.state(served.feed, entry + 1)
            seen = Engine(state, make_policy).snapshot()
            outlook = Outlook(seen, LoanOptions(), _notices_s(seen, LoanOptions()))
            assert found["forecast"], "this policy lends"
            by_name = {one["lender"]: one["rows"] for one in found["forecast"]}
            fresh = [lender.id for lender, says in zip(seen.lenders, outlook.fresh, strict=True)
                     if says]  # fmt: skip
            assert list(by_name) == fresh
            for index, lender in enumerate(seen.lenders):
                rows = by_name[lender.id]
                demand = outlook.forecast.demand_gpus[index]
                assert [row["need"] for row in rows] == demand[np.isfinite(demand)].tolist()
                assert rows[0]["at_s"] == state.now_s
                assert rows[0]["need"] == rows[0]["need_high"] >= lender.gpus_needed
                assert rows[1]["at_s"] == state.now_s + lender.slot_s
                above = max(0.0, float(outlook.headroom[index]))
                assert rows[1]["need_high"] == pytest.approx(rows[1]["need"] + above)
        assert (await served.get("tide"))["forecast"] is None
        live = await served.get("tide", forecast="true")
        assert live["forecast"] == (
            await served.get("tide", forecast="true", entry=last))["forecast"]  # fmt: skip


async def test_it_is_the_same_as_from_the_columns_of_the_whole_cell(
    log: Path, serving: Serving
) -> None:
    borrowed = 0
    async with serving(log) as served:
        for number in range(1, served.feed.entries, 23):
            state = await served.gateway.past.state(served.feed, number)
            # So long to save that the policy gives notice: what jobs need counts, too.
            for job in state.jobs.values():
                job.checkpoint_cost_s = 400.0
            whole = foreseen(Engine(state, make_policy).snapshot(), LoanOptions())
            found = forecast_of(state)
            assert [one["lender"] for one in found] == [lender for lender, _ in whole]
            for one, (_, rows) in zip(found, whole, strict=True):
                needs = [(row["need"], row["need_high"]) for row in one["rows"]]
                assert needs == [(need, high) for _, need, high in rows]
            borrowed += any(node.loan and any(node.holder) for node in state.nodes.values())
    assert borrowed > 10


async def test_a_policy_that_does_not_lend_forecasts_nothing(two: Path, serving: Serving) -> None:
    async with serving(two) as served:
        assert (await served.get("tide", forecast="true"))["forecast"] == []


@pytest.mark.parametrize("line", ["", "newer", "sia:idle=0"])
def test_of_a_policy_that_another_release_made_nothing_is_foreseen(line: str) -> None:
    """A gateway may be of another release than the scheduler; its pages stay."""
    state = ClusterState()
    state.leader.policy = line
    assert forecast_of(state) == []
