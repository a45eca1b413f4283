"""A small log with the stories that `why` must tell, decided by the engine on a scripted policy."""

import asyncio
from pathlib import Path
from typing import Any

from bus.clock import PacedClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from scheduler.core.record import decision_to_dict, stimulus_to_dict
from scheduler.core.stimuli import Cause, Curve, CurvesLearned, Decision, Input, Stimulus
from scheduler.policies.interface import Figure, Need, Plan, Reason, Target
from schemas.codec import cell_state, encode, event
from schemas.events import (
    JobCancelled,
    JobProgressed,
    JobSubmitted,
    NodeBorn,
    PoolKind,
    StopReason,
)
from schemas.journal import NO_DIGEST, CellState, chain, encode_entry
from schemas.topics import CELLS, JOURNAL, TELEMETRY
from tests.builders import Cell, load, node_born, submitted
from tests.post import readings

DAY_S = 1_767_571_200.0  # a Monday at midnight, UTC
START_S = DAY_S + 6 * 3600.0


class Teller(Cell):
    """Drives an engine and keeps what the service would have written."""

    def __init__(self) -> None:
        self.digest = NO_DIGEST
        self.messages: list[tuple[float, Message]] = []
        self.decided: list[tuple[Stimulus, Decision]] = []
        super().__init__(now_s=START_S)

    def feed(self, data: Input, cause: Cause | None = None) -> Decision:
        number = self.state.number
        stimulus = Stimulus(self.now_s, data, cause or Cause("/agents/a", 0, number))
        decision = super().feed(data, stimulus.cause)
        entry = chain(
            self.digest,
            number,
            self.now_s,
            stimulus_to_dict(stimulus),
            decision_to_dict(decision),
            policy="tide",
        )
        self.digest = entry.digest
        self.messages.append((self.now_s, Message(JOURNAL.name, "default", encode_entry(entry))))
        self.decided.append((stimulus, decision))
        return decision

    def decides(self, *reasons: Reason, **fields: Any) -> None:
        self.adopt(Plan(reasons=reasons, **fields))

    def acknowledge(self) -> None:
        self.now_s += 1.0
        self.acks()

    def up(self, job: str) -> None:
        self.acknowledge()
        self.now_s += 20.0
        self.start_workers(job)

    def off(self, job: str, reason: StopReason, step: int) -> None:
        self.acknowledge()
        self.now_s += 15.0
        self.stop_workers(job, reason, step=step)

    def write(self, path: Path, *, online: bool = True) -> None:
        """Write all of it as a log."""

        async def run() -> None:
            clock = PacedClock(START_S, None)
            bus = SqliteBus.open(path, clock, durability="process_crash")
            for at_s, message in self.messages:
                await clock.run_until(at_s)
                await bus.publish(message)
            word = CellState(online=online, leader="test", leader_epoch=1, at_s=self.now_s)
            await bus.publish(Message(CELLS.name, "default", encode(cell_state(word))))
            for number, node in enumerate(self.state.nodes.values()):
                measured = readings(node.id, node.gpu_count)
                envelope = event(
                    measured, source="/agents/a", sequence=number, bootid=0, time_s=self.now_s
                )
                await bus.publish(Message(TELEMETRY.name, node.id, encode(envelope)))
            await bus.close()

        asyncio.run(run())


def node(name: str, pool: str, kind: PoolKind) -> NodeBorn:
    return node_born(name, pool=pool, kind=kind)


def job(name: str, *, deadline_s: float | None = None) -> JobSubmitted:
    return submitted(name, gpus_max=4, deadline_s=deadline_s)


def sized(subject: str, verb: str, rule: str, before: int, after: int, *lost_to: str) -> Reason:
    figures = (
        Figure("gpus_before", before),
        Figure("gpus_after", after),
        Figure("steps_per_s", 2.0, 120.0),
    )
    return Reason(subject, verb, rule, figures, lost_to)


def running(name: str) -> Teller:
    """Tell of one job, which runs."""
    told = Teller()
    told.feed(node("n0", "training", "training"))
    told.feed(job(name))
    starts = Target("training", (("n0", 1),))
    told.decides(sized(name, "starts", "market.price", 0, 1), targets={name: starts})
    told.up(name)
    return told


def tell() -> Teller:
    """Six jobs: grown, waiting, preempted by a reclaim, migrated, completed, cancelled."""
    t = Teller()
    t.feed(node("n0", "training", "training"))
    t.feed(node("s0", "serving", "inference"))
    t.feed(load(1, "serving"))
    for name in ("grown", "victim", "mover", "done", "waiter", "dropped"):
        deadline_s = START_S + 7200.0 if name == "mover" else None
        t.feed(job(name, deadline_s=deadline_s))
    idle = (Figure("needed_gpus", 1.0, 30.0), Figure("peak_gpus", 2.0, 30.0))
    t.decides(Reason("s0", "lends", "loans.idle", idle), lend=("s0",))
    t.acknowledge()
    t.decides(
        sized("grown", "starts", "market.price", 0, 1),
        sized("victim", "starts", "market.price", 0, 2),
        sized("mover", "starts", "market.promised", 0, 2),
        sized("done", "starts", "market.price", 0, 1),
        targets={
            "grown": Target("training", (("n0", 1),)),
            "victim": Target("serving", (("s0", 2),)),
            "mover": Target("serving", (("s0", 2),)),
            "done": Target("training", (("n0", 1),)),
        },
    )
    for name in ("grown", "victim", "mover", "done"):
        t.up(name)
    t.decides(
        sized("grown", "scales_out", "elastic.marginal_return", 1, 2),
        targets={"grown": Target("training", (("n0", 2),))},
    )
    t.up("grown")
    t.feed(JobCancelled(job="dropped", reason="not needed"))
    t.off("done", "completed", 1000)
    grown = t.state.jobs["grown"]
    t.feed(
        JobProgressed(
            job="grown",
            epoch=grown.epoch,
            step=400,
            samples_per_s=20.0,
            checkpoint_step=300,
            checkpoint_cost_s=10.0,
        )
    )
    curve = Curve(
        points=[[1.0, 1.25], [2.0, 2.0], [4.0, 3.0]],
        per_step=1.0,
        left=None,
        measured=[1, 2],
        affinity={"serving": 0.5},
        at_s=[t.now_s - 600.0, t.now_s],
    )
    t.feed(CurvesLearned({"grown": curve}))
    t.now_s += 1800.0
    t.feed(load(3, "serving"))
    due_s = t.now_s + 660.0
    forecast = (
        Figure("needed_gpus", 3.0, 5.0),
        Figure("forecast_gpus", 4.0, 5.0),
        Figure("headroom_gpus", 1.0, 5.0),
        Figure("due_s", 600.0),
    )
    kept = (Figure("kept_gpus", 0.0),)
    t.decides(
        Reason("s0", "reclaims", "victims.fraction", forecast, ("serving",)),
        Reason("victim", "preempts", "loans.reclaim", kept, ("serving",)),
        Reason("mover", "migrates", "loans.reclaim", kept, ("serving",)),
        targets={"victim": None, "mover": Target("training", (("n0", 2),))},
        reclaim={"s0": due_s},
    )
    t.off("victim", "preempted", 120)
    t.off("mover", "migrated", 150)
    t.up("mover")
    t.acknowledge()
    wait = (Figure("waited_s", 2000.0),)
    need = (Need("gpus_above_base", 0.0, 1.0),)
    t.decides(
        Reason("waiter", "waits", "gang.capacity", wait, ("grown", "mover"), need),
        Reason("victim", "waits", "gang.backfill", wait, ("waiter",), need),
    )
    return t
