"""A client asks a real gateway, and a real scheduler answers."""

from pathlib import Path

import pytest

from bus.clock import PacedClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from explain.moments import DEMO_START_S
from schemas.codec import encode
from schemas.log_codec import log_chunk
from schemas.logs import LogChunk
from schemas.topics import LOGS
from tests.client.conftest import running
from tests.gateway.conftest import Serving
from tests.gateway.working import during, working
from tidegate_client import BadRequest, Conflict, Job, Refused


async def test_what_a_client_asks_for_is_done_once(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served, running(served) as client:
        done = await during(desk, client.ask("node.cordon", node="n0", reason="fan", key="k1"))
        assert (done.request, done.result, done.about) == ("k1", "done", "n0")
        again = await during(desk, client.ask("node.cordon", node="n0", reason="fan", key="k1"))
        assert again.entry == done.entry
        assert await client.outcome("k1") == done
        with pytest.raises(Conflict, match="k1"):
            await during(desk, client.ask("node.uncordon", node="n0", key="k1"))
        with pytest.raises(Refused, match="there is no node n9"):
            await during(desk, client.cordon("n9"))
        assert (await during(desk, client.uncordon("n0"))).result == "done"
        drained = await during(desk, client.drain("n0", "30m", key="k2"))
        assert drained.result == "done"
        assert await during(desk, client.drain("n0", "30m", key="k2")) == drained
        with pytest.raises(Conflict, match="k2"):
            await during(desk, client.drain("n1", "30m", key="k2"))
        with pytest.raises(Conflict, match="k2"):
            await during(desk, client.drain("n0", "30m", force=True, key="k2"))
        with pytest.raises(Conflict, match="k2"):
            await during(desk, client.drain("n0", "2h", key="k2"))
        for asked in (
            client.cordon("n0", key=""),
            client.drain("n0", "2h", key=""),
            client.jobs.submit(Job(id="j", deadline="2h"), key=""),
            client.at(entry=1).branches.begin(hours=1.0, key=""),
        ):
            with pytest.raises(BadRequest, match="idempotency-key: takes"):
                await during(desk, asked)


async def test_a_job_that_a_client_submits_is_in_the_list(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served, running(served) as client:
        job = Job(model="resnet50", gpus=1, steps=2_000, deadline="2h")
        handle = await during(desk, client.jobs.submit(job, key="dag-17"))
        again = await during(desk, client.jobs.submit(job, key="dag-17"))
        assert again.id == handle.id
        for change in ({"steps": 3_000}, {"deadline": "4h"}, {"deadline": None}):
            other = job.model_copy(update=change)
            with pytest.raises(Conflict, match="dag-17 was used for another request"):
                await during(desk, client.jobs.submit(other, key="dag-17"))
        row = await handle.refresh()
        assert (row.tenant, row.model) == ("operator", "resnet50")
        held = await during(desk, handle.hold(reason="the data is wrong"))
        assert held.result == "done"
        why = await handle.why()
        assert "the data is wrong" in str(why)


async def test_what_a_worker_writes_comes_for_its_reader_alone(
    tmp_path: Path, serving: Serving
) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served, running(served) as client:
        begin = (await client.pieces("j0", "me")).next
        bus = SqliteBus.open(log, PacedClock(DEMO_START_S + 60.0, None))
        for number, (reader, job, content) in enumerate(
            (
                ("me", "j0", "b25l"),
                ("other", "j0", "dHdv"),
                ("me", "j1", "dHdv"),
                ("me", "j0", "Mg=="),
            )
        ):
            piece = LogChunk(
                agent="a", reader=reader, job=job, epoch=1, rank=0, offset=0, content=content
            )
            said = log_chunk(piece, sequence=number, bootid=1, time_s=DEMO_START_S + 60.0)
            await bus.publish(Message(LOGS.name, job, encode(said)))
        await bus.close()
        found = await client.pieces("j0", "me", after=begin)
        assert [one.content for one in found.pieces] == ["b25l", "Mg=="]
        assert (await client.pieces("j0", "me", after=found.next)).pieces == []
