"""A log that was restored from a copy: what its leader says is nothing that agents know already."""

import shutil
from pathlib import Path

from bus.clock import PacedClock
from bus.sqlite import SqliteBus
from scheduler.core.stimuli import Cause, LeaderStarted, next_epoch
from scheduler.relevance import stimulus_of
from schemas.commands import LendNode, Rebirth, StartGang
from schemas.events import JobProgressed
from tests.builders import Cell, node_born, submitted
from tests.desk import Desk, measured, open_desk

BEGIN_S = 1_767_571_200.0  # 2026-01-05


async def _led(log: Path, job: str, at_s: float) -> tuple[set[str], int, int]:
    """Let a leader start a job; give the ids of its commands, its epoch, and the job's."""
    clock = PacedClock(at_s, None)
    desk = Desk(clock, SqliteBus.open(log, clock, durability="process_crash"))
    service = desk.start()
    await desk.hears(
        desk.say(node_born("n0")), desk.say(submitted(job), "/tenants/t"), wait_s=120.0
    )
    said = await desk.commands(StartGang)
    await desk.crash()
    await desk.bus.close()
    newest = max(one.data.epoch for one in said if isinstance(one.data, StartGang))
    return {one.id for one in said}, service.engine.state.leader.epoch, newest


async def _copied(tmp_path: Path) -> tuple[Path, Path]:
    """Give a log and a copy of it."""
    log, copy = tmp_path / "log.db", tmp_path / "copy.db"
    clock = PacedClock(BEGIN_S, None)
    desk = Desk(clock, SqliteBus.open(log, clock, durability="process_crash"))
    desk.start()
    await desk.wait(1.0)
    await desk.crash()
    await desk.bus.close()
    shutil.copyfile(log, copy)
    return log, copy


async def test_no_command_of_a_lost_future_is_given_again(tmp_path: Path) -> None:
    log, copy = await _copied(tmp_path)
    lost, lost_epoch, _ = await _led(log, "a", BEGIN_S + 10.0)
    found, epoch, _ = await _led(copy, "b", BEGIN_S + 400.0)
    assert lost
    assert found
    assert lost.isdisjoint(found)
    assert epoch > lost_epoch, "agents obey whom they take for the newest leader"


async def test_a_job_starts_above_all_its_epochs_of_a_lost_future(tmp_path: Path) -> None:
    log, copy = await _copied(tmp_path)
    *_, lost_epoch = await _led(log, "a", BEGIN_S + 10.0)
    *_, epoch = await _led(copy, "a", BEGIN_S + 400.0)
    assert epoch > lost_epoch, "agents refuse what is not above the newest that they know"
    assert epoch < 2**31, "what an envelope can say"


def test_no_loan_of_a_lost_future_is_asked_for_again() -> None:
    loans = set()
    for epoch in (2, 3):
        cell = Cell().told(node_born("i0", pool="infer", kind="inference"))
        cell.feed(LeaderStarted("again", epoch, "scripted", cell.settings.to_dict()))
        cell.plan(lend=["i0"])
        (order,) = cell.sent(LendNode)
        loans.add(order.loan)
    assert len(loans) == 2


def test_a_leader_is_above_the_one_before_it_whatever_the_clock_says() -> None:
    assert next_epoch(7, 0.0) == 8
    now = next_epoch(7, BEGIN_S)
    assert now > 10**8
    assert next_epoch(now, BEGIN_S) == now + 1
    assert next_epoch(0, 3.7e9) < 2**31, "what an envelope can say"


def test_who_runs_a_gang_of_a_lost_future_is_asked_what_it_holds() -> None:
    cell = Cell().told(node_born("n0"), submitted("a"))
    cell.run("a", n0=4)
    job = cell.job("a")
    word = JobProgressed(
        job="a",
        epoch=job.epoch + 7,
        step=9,
        samples_per_s=1.0,
        checkpoint_step=0,
        checkpoint_cost_s=1.0,
    )
    assert stimulus_of(cell.state, word, cell.now_s) == word
    by = Cause(f"/agents/{cell.state.nodes['n0'].agent}", 0, 1)
    cell.feed(word, by)
    (order,) = cell.sent(Rebirth)
    assert order.reason == f"what of a, epoch {job.epoch + 7}, do you hold?"
    cell.feed(word, by)
    assert cell.sent() == [], "once is enough"
    cell.acks(kind="Rebirth")
    old = word.model_copy(update={"epoch": job.epoch - 1})
    assert stimulus_of(cell.state, old, cell.now_s) is None
    cell.feed(old, by)
    assert cell.sent() == []


async def test_where_nobody_led_for_a_while_agents_are_asked_once_what_they_have(
    tmp_path: Path,
) -> None:
    """What an old copy lent since nobody knows, and a lent node would never go back."""
    for away_s, asked in ((60.0, 0), (1800.0, 1)):
        async with open_desk("memory", tmp_path) as desk:
            desk.start()
            await desk.hears(desk.say(node_born("n0")), wait_s=120.0)
            await desk.crash()
            await desk.wait(away_s)
            desk.start()
            for _ in range(3):
                await desk.hears(desk.say(measured()), wait_s=400.0)
            assert len(await desk.commands(Rebirth)) == asked, away_s
