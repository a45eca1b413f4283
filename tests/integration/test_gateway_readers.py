"""A gateway over real Kafka reads what it lists with few readers: each is a client of its own."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus import kafka_client
from bus.clock import SystemClock
from bus.kafka import KafkaBus
from bus.logfile import FileLog
from bus.options import KafkaOptions
from gateway.log import ServedLog
from schemas.topics import JOURNAL
from tests.brokers import fresh_namespace
from tests.browser.night_on_kafka import CELL, copied
from tests.composed import ROOT
from tests.gateway.conftest import serve

pytestmark = pytest.mark.broker
NIGHT = ROOT / "examples" / "late-reclaim.jsonl.zst"


async def test_a_list_of_entries_takes_one_reader(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = KafkaOptions(kafka_bootstrap, fresh_namespace(), (CELL,), replication=1)
    await copied(NIGHT, options)
    opened: list[Any] = []

    async def counted(*arguments: Any) -> Any:
        opened.append(arguments)
        return await kafka_client.open_consumer(*arguments)

    monkeypatch.setattr("bus.kafka.open_consumer", counted)
    opening = partial(KafkaBus.open, options, SystemClock(), CELL)
    log = ServedLog("kafka:", opening, None, tmp_path, CELL)
    entries = sum(1 for _ in FileLog(NIGHT).records(JOURNAL.name))
    async with serve(tmp_path / "none.db", log=log) as served:
        await served.until(lambda: served.level(entries))
        for path, rows in (("requests", "acts"), ("reclaims", "reclaims"), ("moments", "moments")):
            opened.clear()
            found = await served.get(path, cell=CELL)
            assert len(found[rows]) > 3
            # Readers are kept; what the gateway reads beside may have them just now.
            assert len(opened) < len(found[rows]), path
