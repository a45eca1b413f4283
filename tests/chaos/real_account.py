"""The account of a run with real work: steps, weights, effects, GPUs, and the record."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from tests.chaos.account import (
    Account,
    check_delivery,
    check_jobs,
    check_replay,
    read_books,
)
from tests.chaos.ledger import Cause
from tests.chaos.owners import Effect, read_effects, read_orders, repeated_effects
from tests.chaos.real_fleet import AGENTS, RealFleet
from tests.workers import same_weights, straight_weights

#: A checkpoint that was seen to be durable so long before a start was ordered must not be undone:
#: its report may have been on the way before.
REPORTED_S = 3.0


@dataclass(slots=True)
class Testimony:
    """What the witness wrote."""

    findings: list[str] = field(default_factory=list)
    #: By job: when a step was first seen to be durable.
    durable: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    summary: dict[str, Any] = field(default_factory=dict)


def read_testimony(file: Path) -> Testimony:
    """Read the witness's lines."""
    found = Testimony()
    for line in file.read_text().splitlines():
        said = json.loads(line)
        if said["kind"] == "durable":
            found.durable[said["job"]].append((said["at_s"], said["step"]))
        elif said["kind"] == "ended":
            found.summary = said
        elif said["kind"] != "began":
            found.findings.append(f"{said['kind']}: {said['text']}")
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """A line of a job's loss file."""

    at_s: float
    step: int
    loss: str


def read_steps(file: Path) -> list[Step]:
    """Read the steps that were taken, in order of time."""
    lines = file.read_text().splitlines() if file.exists() else []
    parts = (line.split() for line in lines)
    return [Step(float(at_s), int(step), loss) for at_s, step, _, loss in parts]


def undone(steps: Sequence[Step], durable: Iterable[tuple[float, int]]) -> list[str]:
    """Find steps taken again although a checkpoint of them, or after them, was durable before."""
    kept, found = list(durable), []
    for before, after in pairwise(steps):
        newest = max((step for at_s, step in kept if at_s <= before.at_s), default=0)
        if after.step <= before.step and after.step <= newest:
            found.append(f"step {after.step} after {before.step}: {newest} was durable")
    return found


def differing(steps: Sequence[Step]) -> list[str]:
    """Find steps that had one loss the first time and another one later."""
    first: dict[int, str] = {}
    return [
        f"step {one.step}: {first[one.step]} and {one.loss}"
        for one in steps
        if first.setdefault(one.step, one.loss) != one.loss
    ]


def started_behind(
    commands: Iterable[bytes], durable: Mapping[str, Sequence[tuple[float, int]]]
) -> list[str]:
    """Find orders to start from a step before one that was long durable."""
    found, seen = [], set()
    for value in commands:
        message = orjson.loads(value)
        if message["type"] != "tidegate.gang.start.v1" or message["id"] in seen:
            continue
        seen.add(message["id"])
        data, at_s = message["data"], _seconds(message["time"])
        known = [
            step for seen_s, step in durable.get(data["job"], ()) if seen_s < at_s - REPORTED_S
        ]
        if data["step"] < max(known, default=0):
            text = f"{data['job']} epoch {data['epoch']} from step {data['step']}"
            found.append(f"{text}: {max(known)} was durable")
    return found


def but_resumed(
    effects: Sequence[Effect], orders: Mapping[tuple[str, str, int], int]
) -> list[Effect]:
    """Leave out starts that an agent, begun anew, repeated by itself.

    A gang that had not begun when its agent died, or that went with its machine, goes on under the
    epoch that it had. That nothing of it lived any more, the witness knows.

    Args:
        effects: Of all agents, each agent's in order.
        orders: By verb, job and epoch, how many there were: an epoch may be of a change of size.
    """
    life: Counter[str] = Counter()
    begun: dict[tuple[str, str, str, int], int] = {}
    found = []
    for one in effects:
        key = one.agent, one.node, one.job, one.epoch
        life[one.agent] += one.effect == "began"
        if one.effect == "start":
            before, begun[key] = begun.get(key), life[one.agent]
            was_scaled = life[one.agent] > 1 and orders.get(("scale", one.job, one.epoch), 0)
            if was_scaled or (before is not None and before < life[one.agent]):
                continue
        found.append(one)
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def settle_real(
    fleet: RealFleet,
    witnessed: Testimony,
    confirmed: Sequence[Cause],
    accepted: Sequence[str],
    steps: int,
) -> Account:
    """Check a run whose agents and witness have ended and whose brokers still run.

    Args:
        fleet: What has run.
        witnessed: What the witness saw.
        confirmed: What tenants were told is stored.
        accepted: The jobs among it.
        steps: How many each of them takes.
    """
    account = Account()
    figures = account.figures
    books = await read_books(fleet.kafka)
    check_delivery(account, books, confirmed)
    check_jobs(account, books, accepted)
    done = [one for name in AGENTS for one in read_effects(name, fleet.effects_file(name))]
    orders = read_orders(books.commands)
    figures["commands"], figures["effects"] = sum(orders.values()), len(done)
    ordered = but_resumed(done, orders)
    figures["resumed"] = len(done) - len(ordered)
    figures["double_effects"] = account.expect_none(
        "commands that took effect more than once", repeated_effects(ordered, orders)
    )
    figures["double_owners"] = account.expect_none("seen by the witness", witnessed.findings)
    figures["witness"] = {
        name: witnessed.summary.get(name) for name in ("scans", "tenants", "longest_gap_s")
    }
    if not witnessed.summary.get("tenants"):
        account.problems.append("the witness saw nobody")
    _check_steps(account, fleet, witnessed, accepted, steps)
    figures["started_behind"] = account.expect_none(
        "ordered to start behind what was durable",
        started_behind(books.commands, witnessed.durable),
    )
    straight = await asyncio.to_thread(straight_weights, fleet.folder, steps)
    unequal = [job for job in accepted if not same_weights(straight, fleet.weights_file(job))]
    figures["weights_equal"] = not account.expect_none("weights differ", unequal)
    await asyncio.to_thread(check_replay, account, fleet.folder, fleet.kafka)
    return account


def _check_steps(
    account: Account,
    fleet: RealFleet,
    witnessed: Testimony,
    accepted: Sequence[str],
    steps: int,
) -> None:
    lost, again, beyond, different = [], 0, [], []
    for job in accepted:
        taken = read_steps(fleet.loss_file(job))
        counts = Counter(one.step for one in taken)
        lost += [f"{job}: step {step}" for step in range(1, steps + 1) if not counts[step]]
        again += sum(counts.values()) - len(counts)
        beyond += [f"{job}: {text}" for text in undone(taken, witnessed.durable[job])]
        different += [f"{job}: {text}" for text in differing(taken)]
    figures = account.figures
    figures["steps"], figures["steps_repeated"] = steps * len(accepted), again
    figures["steps_lost"] = account.expect_none("steps that nobody took", lost)
    figures["steps_repeated_though_durable"] = account.expect_none("taken again", beyond)
    account.expect_none("taken again with another loss", different)
