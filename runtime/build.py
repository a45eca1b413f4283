"""Builds an agent of either kind from its state file, its core and its machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from bus.clock import Clock
from bus.contract import Link
from runtime.core import AgentCore, Limits, NodeSpec
from runtime.executor import Machine
from runtime.gate import Verifier
from runtime.service import AgentService, Schedule
from runtime.spool import SpoolLimit
from runtime.store import AgentStore, Durability, StoreError
from schemas.parse import first_error

#: Gives the machine that an agent looks after, from its nodes and the moment of its birth.
MachineMaker = Callable[[Sequence[NodeSpec], float], Machine]
#: Starts so far apart have different numbers, so that of two agents of one name the one that
#: started last is told from the other. An envelope has room for them until 2106.
BOOT_STEP_S = 2.0
#: A clock that shows a later moment (2096) is wrong, and numbers no start: the state file keeps the
#: highest number for good, and an envelope would soon have no room for the next.
_CLOCKS_END_S = 4e9


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an agent, besides its nodes."""

    cell: str = "default"
    #: What the state file outlives.
    durability: Durability = "power_loss"
    schedule: Schedule = field(default_factory=Schedule)
    limits: Limits = field(default_factory=Limits)
    #: How much may wait for the bus.
    spool: SpoolLimit = field(default_factory=SpoolLimit)
    #: Checks who signed commands; None: those of whoever can write to the bus are carried out.
    verifier: Verifier | None = None


def check_nodes(agent: str, specs: Sequence[NodeSpec]) -> None:
    """Refuse nodes that could not be reported.

    Raises:
        ValueError: a value is out of range; the message names the field.
    """
    if not specs:
        raise ValueError("nodes: name at least one")
    if len({spec.node for spec in specs}) != len(specs):
        raise ValueError("nodes: two have the same name; give each its own")
    for spec in specs:
        try:
            spec.born(agent)
        except ValidationError as error:
            wrong = first_error(error)
            raise ValueError(f"{wrong.field}: {wrong.reason} for node {spec.node!r}") from None


def build(
    agent: str,
    specs: Sequence[NodeSpec],
    options: Options,
    bus: Link,
    clock: Clock,
    state_file: Path | str,
    make: MachineMaker,
) -> AgentService:
    """Open the agent's state and put it together with the machine that `make` gives.

    Raises:
        StoreError: the state file cannot be used.
        ValueError: the saved state does not fit the nodes, or lendable nodes have no owner.
    """
    machine = make(specs, clock.now_s())
    if machine.owner is None and any(spec.lendable for spec in specs):
        raise ValueError(
            "owner: nodes of an inference or edge pool need one; give a demand, which may be 0"
        )
    now_s = clock.now_s()
    first_boot = int(now_s // BOOT_STEP_S) if now_s < _CLOCKS_END_S else 0
    store = AgentStore.open(state_file, options.durability, first_boot)
    try:
        rows = store.load_state()
        core = AgentCore.from_dict(agent, specs, rows, options.limits, options.cell)
    except (StoreError, ValueError):
        store.close()
        raise
    return AgentService(
        core,
        store,
        machine,
        bus,
        clock,
        cell=options.cell,
        schedule=options.schedule,
        limit=options.spool,
        verifier=options.verifier,
    )
