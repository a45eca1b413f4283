"""Faults put back on purpose, to see that the storms find them: a blind harness proves nothing.

Each is a patch of the product that takes a defence away.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from bus import mqtt_outbox
from bus.bridge_lane import Held, Lane
from bus.bridge_up import Up
from bus.contract import Producer
from runtime.core.agent import AgentCore
from scheduler.dedupe import Dedupe, Verdict
from scheduler.service import SchedulerService
from tests.whole.broker import Connection


def _lease_ignored() -> AbstractContextManager[Any]:
    """Agents let gangs run on whatever their lease says, and start gangs after its end."""
    return patch.object(AgentCore, "_set_lease", lambda self, *given: None)


def _nothing_known() -> AbstractContextManager[Any]:
    """The intake takes every copy for new."""
    return patch.object(Dedupe, "take", lambda self, *given: Verdict.FRESH)


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

    async def begun(self: Lane, batch: Sequence[Held], stuck: Callable[[Lane], None]) -> bool:
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


#: By name, what takes a defence away.
PLANTED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "lease_ignored": _lease_ignored,
    "nothing_known": _nothing_known,
    "leaders_unfenced": _leaders_unfenced,
    "read_before_done": _read_before_done,
    "answered_before_stored": _answered_before_stored,
    "cells_wait_for_each_other": _cells_wait_for_each_other,
    "said_once": _said_once,
}
