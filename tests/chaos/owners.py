"""Checkers of what agents really did: each command once, each GPU one owner, each job one place.

What an agent did to its GPUs stands in its effects file (`runtime.effects`), written by its
executor, not by its core. When its process died, the fleet knows; the simulated workers died too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

_VERBS = {
    "tidegate.gang.start.v1": "start",
    "tidegate.gang.scale.v1": "scale",
    "tidegate.gang.stop.v1": "stop",
}
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of an agent's effects file that is about workers."""

    agent: str
    effect: str  #: `start`, `scale`, `checkpoint`, `stop`, `left`, `ended`; or `began`.
    at_s: float
    job: str = ""
    epoch: int = 0
    node: str = ""
    gpus: tuple[int, ...] = ()
    entries: int = 0  #: So many the journal had then, where that is known.


@dataclass(frozen=True, slots=True)
class Tenure:
    """A job held a GPU from one moment to another."""

    agent: str
    node: str
    gpu: int
    job: str
    epoch: int
    from_s: float
    to_s: float

    def __str__(self) -> str:
        return (
            f"{self.job} epoch {self.epoch} on {self.node} GPU {self.gpu} ({self.agent}) "
            f"{self.from_s:.3f}-{self.to_s:.3f}"
        )


def read_orders(values: Iterable[bytes]) -> Counter[tuple[str, str, int]]:
    """Count the commands by verb, job and epoch, copies of one command once."""
    orders: dict[str, tuple[str, str, int]] = {}
    for value in values:
        message: dict[str, Any] = orjson.loads(value)
        verb = _VERBS.get(message["type"])
        if verb is not None:
            orders[message["id"]] = verb, message["data"]["job"], message["data"]["epoch"]
    return Counter(orders.values())


def repeated_effects(
    effects: Iterable[Effect], orders: Mapping[tuple[str, str, int], int]
) -> list[str]:
    """Find commands that took effect more than once, and effects that nobody ordered.

    An agent may stop a gang once by itself, at the end of its lease. A stop acts on the gang that
    is held, which may have an older epoch than it names: that of a change of size was refused.
    """
    done = Counter(
        (one.agent, one.node, one.effect, one.job, one.epoch)
        for one in effects
        if one.effect in _VERBS.values()
    )
    epochs: dict[str, set[int]] = defaultdict(set)
    for _, _, _, job, epoch in done:
        epochs[job].add(epoch)
    ordered: Counter[tuple[str, str, int]] = Counter()
    for (verb, job, epoch), count in orders.items():
        held = (one for one in epochs[job] if one <= epoch) if verb == "stop" else ()
        ordered[verb, job, max(held, default=epoch)] += count
    found = []
    for (agent, node, verb, job, epoch), count in sorted(done.items()):
        allowed = ordered[verb, job, epoch] + (verb == "stop")
        if count > allowed:
            found.append(
                f"{agent}: {verb} {job} epoch {epoch} on {node}: {count} times, ordered {allowed}"
            )
    return found


def tenures(effects: Iterable[Effect], deaths: Mapping[str, Sequence[float]]) -> list[Tenure]:
    """Work out who held each GPU when.

    Args:
        effects: Of all agents, each agent's in order.
        deaths: By agent, when its process ceased to be.
    """
    held: dict[tuple[str, str, int, str], Tenure] = {}
    found: list[Tenure] = []

    def end(place: tuple[str, str, int, str], at_s: float) -> None:
        tenure = held.pop(place, None)
        if tenure is not None:
            dead_s = (death for death in deaths.get(tenure.agent, ()) if death >= tenure.from_s)
            found.append(replace(tenure, to_s=min(at_s, *dead_s, NEVER)))

    for one in effects:
        if one.effect == "began":
            # No worker outlives the agent, so what it held ended at its death.
            for place in [place for place in held if place[0] == one.agent]:
                end(place, one.at_s)
        for gpu in one.gpus:
            place = one.agent, one.node, gpu, one.job
            if one.effect in ("start", "scale") and place not in held:
                held[place] = Tenure(one.agent, one.node, gpu, one.job, one.epoch, one.at_s, NEVER)
            elif one.effect in ("left", "ended"):
                end(place, one.at_s)
    for place in list(held):
        end(place, NEVER)
    return found


def double_owners(held: Iterable[Tenure]) -> list[str]:
    """Find GPUs that two jobs held at one moment."""
    by_gpu: dict[tuple[str, int], list[Tenure]] = defaultdict(list)
    for tenure in held:
        by_gpu[tenure.node, tenure.gpu].append(tenure)
    return [pair for gpu in sorted(by_gpu) for pair in _overlaps(by_gpu[gpu])]


def double_places(held: Iterable[Tenure]) -> list[str]:
    """Find jobs that two agents ran at one moment."""
    by_job: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in held:
        by_job[tenure.job].append(tenure)
    return [pair for job in sorted(by_job) for pair in _overlaps(by_job[job], across_agents=True)]


def _overlaps(held: list[Tenure], *, across_agents: bool = False) -> Iterator[str]:
    held.sort(key=lambda tenure: (tenure.from_s, tenure.to_s))
    for index, earlier in enumerate(held):
        for later in held[index + 1 :]:
            if later.from_s >= earlier.to_s:
                break
            if later.to_s > later.from_s and (not across_agents or earlier.agent != later.agent):
                yield f"{earlier} and {later}"
                break


def read_effects(agent: str, file: Path) -> list[Effect]:
    """Read what an agent's effects file says about workers; a line torn by a crash is no effect."""
    if not file.exists():
        return []
    found = []
    for line in file.read_bytes().splitlines():
        try:
            row: dict[str, Any] = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if "job" in row:
            place = row["job"], row["epoch"], row["node"], tuple(row["gpus"])
            found.append(Effect(agent, row["effect"], row["at_s"], *place))
        elif row["effect"] == "began":
            found.append(Effect(agent, "began", row["at_s"]))
    return found
