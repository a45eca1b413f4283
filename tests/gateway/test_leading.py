"""Whether anybody decides: told by the stream, by cells and to who asks for something."""

from pathlib import Path

import pytest

from bus.clock import PacedClock
from bus.contract import Message
from gateway.cells import facts
from gateway.feed import Feed, Fold
from gateway.leading import SILENT_S, Leading
from gateway.log import ServedLog
from scheduler.core.state import ClusterState
from schemas.codec import cell_state, encode
from schemas.journal import CellState
from schemas.topics import CELLS
from tests.gateway.conftest import Serving
from tests.gateway.working import CORDON, during, working
from tests.memory_bus import MemoryBus


async def test_a_demo_that_has_ended_says_so_and_requests_wait(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        (cell,) = (await served.get("cells"))["cells"]
        assert cell["nobody_leads"].startswith("the scheduler that led, scheduler-0, has ended")
        assert f"tidegate demo --log {log}" in cell["nobody_leads"]
        done = await served.ask({"verb": "cell.pause", "what": "loans"}, 202, wait_s=1)
        assert done["nobody_leads"] == cell["nobody_leads"]
        told = await served.get(f"requests/{done['request']}")
        assert told == done


async def test_who_asks_a_scheduler_that_leads_is_told_nothing_of_it(
    tmp_path: Path, serving: Serving
) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        await desk.wait(120.0)
        await served.until(lambda: not served.feed.nobody)
        assert (await served.get("cells"))["cells"][0]["nobody_leads"] is None
        done = await during(desk, served.ask(CORDON))
        assert (done["result"], done["nobody_leads"]) == ("done", None)


@pytest.mark.parametrize(
    ("start_s", "online", "later_s", "says"),
    [
        (1_800_000_000.0, True, SILENT_S - 1.0, ""),
        (1_800_000_000.0, True, SILENT_S, "no scheduler was heard for 3 min or longer"),
        (1_800_000_000.0, False, 0.0, "the scheduler that led, s-1, has ended"),
        (1_800_000_000.0, None, 0.0, "no scheduler leads this cell; `tidegate scheduler`"),
        (1_767_571_200.0, True, SILENT_S - 1.0, ""),  # the time of demos
        (1_767_571_200.0, True, SILENT_S, "no scheduler was heard for 3 min or longer"),
    ],
)
async def test_nobody_leads_once_it_said_goodbye_or_nothing_for_long(
    start_s: float, online: bool | None, later_s: float, says: str
) -> None:
    clock = PacedClock(start_s, None)
    bus = MemoryBus(clock)
    log = ServedLog("log", lambda: bus, None, Path())
    await log.keep_open()
    word = CellState(online=bool(online), leader="s-1", leader_epoch=3, at_s=start_s)
    if online is not None:
        await bus.publish(Message(CELLS.name, "default", encode(cell_state(word))))
    state, leading = ClusterState(), Leading()
    state.number, state.now_s = 1, start_s
    now_s = max(start_s, 1_800_000_000.0)
    for after_s in (0.0, later_s):
        await leading.look(log, "default", state, start_s, now_s + after_s)
    assert leading.nobody.startswith(says)
    assert bool(leading.nobody) == bool(says)
    if says.startswith("no scheduler was heard"):
        await bus.publish(Message(CELLS.name, "default", encode(cell_state(word))))
        state.now_s = now_s + later_s  # in real time it decides again; a demo has a record more
        await leading.look(log, "default", state, start_s, now_s + later_s + 1.0)
        assert not leading.nobody


def test_the_record_of_a_simulation_and_a_branch_are_closed_and_nobody_leads_them() -> None:
    log = ServedLog("log", lambda: MemoryBus(PacedClock(0.0, None)), None, Path())
    feed, state = Feed(log, "default"), ClusterState()
    state.number = 1
    assert (feed.closed, feed.nobody) == ("", "")
    feed.live = Fold("default", state, "", 0)
    assert feed.closed.startswith("this log is the record of a simulation")
    branch = Feed(log, "default", name="branch-1")
    assert branch.closed.startswith("this is a branch")
    for one in (feed, branch):
        told = facts(one)
        assert told["closed"] == told["nobody_leads"] == one.closed
