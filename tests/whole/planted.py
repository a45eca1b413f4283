"""Faults put back on purpose, to see that the storms find them: a blind harness proves nothing.

Each is a patch of the product that takes a defence away.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from bus import mqtt_outbox
from bus.bridge_lane import Lane, PendingMessage
from bus.bridge_up import Up
from bus.contract import Producer
from bus.steady import Steady
from runtime import build
from runtime.core.agent import AgentCore
from scheduler.core.quotas import Use
from scheduler.dedupe import Dedupe, Verdict
from scheduler.gateways import Gateways
from scheduler.policies.tide.quotas import Quotas
from scheduler.service import SchedulerService
from tests.whole.broker import Connection
from tests.whole.disks import Disk
from tests.whole.supervisors import Supervisors
from tests.whole.world import Outcome


def _lease_ignored() -> AbstractContextManager[Any]:
    """Agents let gangs run on whatever their lease says, and start gangs after its end."""
    return patch.object(AgentCore, "_set_lease", lambda self, *given: None)


def _nothing_known() -> AbstractContextManager[Any]:
    """The intake takes every copy for new."""
    return patch.object(Dedupe, "take", lambda self, *given, **more: Verdict.FRESH)


def _leaders_unfenced() -> AbstractContextManager[Any]:
    """Each leader has a producer id of its own, so that a former one can go on writing."""
    opened = Connection.producer

    async def producer(self: Connection, producer_id: str) -> Producer:
        return await opened(self, f"{producer_id}-{id(self)}")

    return patch.object(Connection, "producer", producer)


def _read_before_done() -> AbstractContextManager[Any]:
    """The scheduler marks events as read before it has decided on them."""
    tick = SchedulerService.tick

    async def marked(self: SchedulerService, records: Sequence[Any]) -> None:
        if records:
            await self._consumer.commit()
        await tick(self, records)

    return patch.object(SchedulerService, "tick", marked)


def _answered_before_stored() -> AbstractContextManager[Any]:
    """Bridges confirm and acknowledge what they are about to store."""
    store = Lane._store

    async def begun(
        self: Lane, batch: Sequence[PendingMessage], stuck: Callable[[Lane], None]
    ) -> bool:
        async def later() -> None:
            self._clock.enter()
            try:
                await store(self, batch, stuck)
            finally:
                self._clock.leave()

        self.begun = [*getattr(self, "begun", []), asyncio.create_task(later())]  # type: ignore[attr-defined]
        return True

    return patch.object(Lane, "_store", begun)


def _cells_wait_for_each_other() -> AbstractContextManager[Any]:
    """Bridges let go of nothing that a cell does not take."""
    return patch.object(Up, "_let_go", lambda self, *given: None)


def _said_once() -> AbstractContextManager[Any]:
    """Edge agents say nothing again that no bridge has confirmed."""
    return patch.object(mqtt_outbox, "RESEND_S", 1e9)


def _steps_believed() -> AbstractContextManager[Any]:
    """Processes follow their machine's clock wherever it is set."""
    return patch.object(Steady, "now_s", lambda self: self._wall_s())


def _anybody_speaks() -> AbstractContextManager[Any]:
    """Whoever can write says what it likes of whatever it likes."""
    return _both(
        patch("scheduler.batch.foreign", lambda state, envelope: None),
        patch("scheduler.batch.unlisted", lambda rules, state, born: None),
        patch("scheduler.intake.out_of_turn", lambda envelope: None),
    )


def _epochs_repeat() -> AbstractContextManager[Any]:
    """Epochs are one above the last that the log has, and with them ids of commands."""

    def above(former: int, now_s: float) -> int:
        return former + 1

    return _both(
        patch("scheduler.service.next_epoch", above),
        patch("scheduler.core.carry_out.next_epoch", above),
    )


@contextmanager
def _boots_unsynced() -> Iterator[None]:
    """Agents write the boot that they begin as they write all else, and few differ by the clock."""
    committed = Disk.committed

    def unsynced(self: Disk, *, synced: bool) -> None:
        committed(self, synced=False)

    with patch.object(Disk, "committed", unsynced), patch.object(build, "BOOT_STEP_S", 60.0):
        yield


def _supervisors_forget() -> AbstractContextManager[Any]:
    """Supervisors let gangs run on while their agent is dead, whatever the lease says."""
    return patch.object(Supervisors, "keep_lease", lambda self, lease, now_s: None)


def _nothing_reclaimed() -> AbstractContextManager[Any]:
    """What owners need back is left to who has it."""
    return patch("scheduler.core.reconcile.start_reclaims", lambda turn, nodes: None)


def _quotas_forgotten() -> AbstractContextManager[Any]:
    """No tenant has a limit."""
    return patch.object(Quotas, "limited", property(lambda self: np.zeros(len(self.of), bool)))


def _set_quotas_forgotten() -> AbstractContextManager[Any]:
    """No quota that people set is kept."""
    return patch.object(Use, "allows", lambda self, *given: True)


def _anybody_asks() -> AbstractContextManager[Any]:
    """Whatever a request is signed with is good enough."""
    return _both(
        patch.object(Gateways, "problem", lambda self, record: None),
        patch.object(Gateways, "beyond", lambda self, record, request: None),
    )


def _requests_taken_again() -> AbstractContextManager[Any]:
    """No request is remembered."""
    return _both(
        patch("scheduler.request_intake.repeated", lambda state, request: None),
        patch("scheduler.core.requests.repeated", lambda state, request: None),
    )


def _gangs_unsquared() -> AbstractContextManager[Any]:
    """What an agent that comes back says that it holds is held to nothing."""
    return patch("scheduler.core.observe_fleet._square", lambda turn, node, gang: None)


def _left_behind_released() -> AbstractContextManager[Any]:
    """What still runs on a node in another pool is taken for ended, and told to stop."""
    return patch("scheduler.core.observe_fleet._keep_for_stray", lambda *given: None)


@contextmanager
def _both(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


@dataclass(frozen=True, slots=True)
class Planted:
    """A defence that can be taken away."""

    take_away: Callable[[], AbstractContextManager[Any]]
    #: The law that is broken without it. What else a run ends by, such as no end while others use
    #: the machine or an error of this very patch, says nothing of the laws.
    law: str
    #: Only storms with these can find it; empty: any may.
    kinds: tuple[str, ...] = ()

    def found(self, outcome: Outcome) -> bool:
        """Whether a storm found that the defence is away."""
        return any(one.startswith(f"{self.law}:") for one in outcome.broken)


_UNTOLD = "accepted and never told to the engine"
_TWO_PLACES = "jobs at two places"
_GIVEN_UP = "gangs that run and were given up"
_SILENT = "words that stand still"
_QUOTA = "more than the quota says"

#: By name, what takes a defence away.
PLANTED: dict[str, Planted] = {
    "lease_ignored": Planted(_lease_ignored, _TWO_PLACES, ("agent_cut", "agent_dead", "mqtt_cut")),
    "nothing_known": Planted(_nothing_known, "told to the engine twice"),
    "leaders_unfenced": Planted(
        _leaders_unfenced, "the journal cannot be replayed", ("scheduler_pause",)
    ),
    "read_before_done": Planted(_read_before_done, _UNTOLD, ("scheduler_crash",)),
    "steps_believed": Planted(_steps_believed, _GIVEN_UP, ("clock_leaps",)),
    "anybody_speaks": Planted(_anybody_speaks, "jobs that ended for no good reason", ("forged",)),
    "epochs_repeat": Planted(_epochs_repeat, "jobs that never ended", ("log_restored",)),
    "answered_before_stored": Planted(
        _answered_before_stored, "confirmed to its agent, and not in Kafka"
    ),
    "cells_wait_for_each_other": Planted(_cells_wait_for_each_other, _SILENT),
    "said_once": Planted(_said_once, _SILENT),
    "boots_unsynced": Planted(_boots_unsynced, "two messages under one id", ("agent_flaps",)),
    "nothing_reclaimed": Planted(_nothing_reclaimed, "nodes kept from their owner"),
    "quotas_forgotten": Planted(_quotas_forgotten, _QUOTA),
    "set_quotas_forgotten": Planted(_set_quotas_forgotten, _QUOTA, ("asked",)),
    "anybody_asks": Planted(_anybody_asks, "requests that cannot be proved", ("request_forged",)),
    "requests_taken_again": Planted(
        _requests_taken_again, "requests buried for no good reason", ("asked", "request_copied")
    ),
    "gangs_unsquared": Planted(_gangs_unsquared, _GIVEN_UP, ("agent_moved",)),
    "left_behind_released": Planted(_left_behind_released, _GIVEN_UP, ("agent_moved",)),
    "supervisors_forget": Planted(_supervisors_forget, _TWO_PLACES, ("agent_dead", "agent_cut")),
}
