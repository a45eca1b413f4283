"""Reasons are recorded as JSON, whatever numbers a policy puts into them."""

import numpy as np
import orjson

from scheduler.core.record import decision_to_dict
from scheduler.core.stimuli import TimePassed
from scheduler.policies.interface import Figure, Need, Plan, Reason
from tests.builders import Cell, node_born, submitted


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    cell = Cell().told(node_born(), submitted())
    figure = Figure("worth", np.float64(1.5))
    need = Need("gpus", np.float64(0.0), np.float64(2.0))
    cell.policy.planner = lambda _: Plan(
        reasons=(Reason("j0", "waits", "gang.capacity", (figure,), (), (need,)),)
    )
    cell.now_s = max(cell.now_s + 5.0, cell.state.next_cycle_s)
    decision = cell.feed(TimePassed())
    written = orjson.loads(orjson.dumps(decision_to_dict(decision)))
    (reason,) = written["reasons"]
    assert reason["figures"] == [{"name": "worth", "value": 1.5, "age_s": 0.0}]
    assert reason["needs"] == [{"name": "gpus", "have": 0.0, "want": 2.0}]
