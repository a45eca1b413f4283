"""What clients read is what the gateway and the command say, now and at any moment."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import client_models
from gateway.limits import Limits
from tests.client.conftest import running, waiting
from tests.console.conftest import Run
from tests.gateway.conftest import Serving
from tidegate_client import AsyncClient, Client, NotFound, NotKnown, models, operations, parts


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask as often as one likes."""
    monkeypatch.setattr(Limits, "read", lambda self, subject: None)


def test_the_models_are_those_of_the_api() -> None:
    assert client_models.main(["--check"]) == 0


def test_what_a_later_gateway_says_is_left_out() -> None:
    said = {"cell": "default", "now_s": 1.0, "origin_s": 0.0, "job": {"later": 1}}
    with pytest.raises(ValueError, match="job"):
        models.JobAnswer.model_validate(said)
    frame = parts.Deadlines.model_validate({"met": 1, "total": 2, "later": 3})
    assert frame.model_dump() == {"met": 1, "total": 2}


@pytest.mark.usefixtures("unlimited")
async def test_both_clients_read_what_the_command_says(
    log: Path, tidegate: Run, serving: Serving
) -> None:
    async with serving(log) as served:
        said = await asyncio.to_thread(tidegate.tells, "jobs", "--all", "--log", log)
        jobs = sorted(one["job"] for one in said["jobs"])

        def read(client: Client) -> None:
            with client:
                assert client.overview().cell == "default"
                assert sorted(one.job for one in client.jobs()) == jobs
                assert {one.state for one in client.jobs(state=["queued", "running"])} <= {
                    "queued", "running",
                }  # fmt: skip
                why = client.why(jobs[0], width=120)
                assert str(why) == tidegate.does("why", jobs[0], "--log", log).out
                assert "<pre>" in why._repr_html_()
                document = tidegate.tells("why", jobs[0], "--log", log)
                assert [one.what for one in why.history] == [
                    one["what"] for one in document["history"]
                ]
                handle = client.job(jobs[0])
                assert handle.refresh() == handle.row
                assert len(list(client.nodes())) == len(
                    tidegate.tells("nodes", "--log", log)["nodes"]
                )
                lent = client.loans().totals.loans_granted
                assert len(client.loan_history()) == lent
                assert len(client.loan_history(late=True)) <= lent
                numbers = [one.entry for one in client.decisions(subject=jobs[0])]
                assert numbers == sorted(numbers, reverse=True)
                assert numbers
                with pytest.raises(NotFound, match="no-such-job"):
                    client.why("no-such-job")

        await asyncio.to_thread(read, waiting(served))
        async with running(served) as client:
            assert sorted([one.job async for one in client.jobs()]) == jobs
            assert sorted([one.job async for one in client.jobs]) == jobs
            assert (await client.why(jobs[0], width=120)).job == jobs[0]
            assert (await client.job(jobs[0])).id == jobs[0]


@pytest.mark.usefixtures("unlimited")
async def test_pages_are_of_one_state_and_all_come(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_PAGE", 3)
    async with serving(log) as served, running(served) as client:
        found = [one.job async for one in client.jobs()]
        total = (await served.get("jobs"))["total"]
        assert len(found) == len(set(found)) == total > 3


@pytest.mark.usefixtures("unlimited")
async def test_a_moment_is_of_every_read(log: Path, serving: Serving) -> None:
    async with serving(log) as served, running(served) as client:
        now = await client.overview()
        then = client.at(entry=200)
        assert (await then.overview()).entry == 200
        queued = [one.job async for one in then.jobs(state="queued")]
        said = await served.get("jobs", entry=200, state="queued")
        assert queued == [one["job"] for one in said["jobs"]]
        before = (await client.job(queued[0])).at(entry=200)
        assert (await before.refresh()).state == "queued"
        moment = datetime.fromtimestamp(now.now_s - 600, UTC)
        for named in (moment, moment.isoformat(), moment.timestamp(), f"{moment:%H:%M:%S}",
                      f"d0 {moment:%H:%M:%S}"):  # fmt: skip
            found = await client.at(named).overview()
            assert now.entry is not None
            assert found.entry is not None
            assert found.entry < now.entry, named
            assert moment.timestamp() - 120 < found.now_s <= moment.timestamp(), named
        assert (await client.overview()).entry == now.entry
        with pytest.raises(ValueError, match="name a moment or an entry"):
            client.at()
        with pytest.raises(ValueError, match="99:99 is no time of a day; write 06:30"):
            await client.at("99:99").overview()
        with pytest.raises(ValueError, match="time zone"):
            client.at(datetime(2026, 1, 5))  # noqa: DTZ001


async def test_a_stranger_is_told_so(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        client = running(served)
        client._http.headers["Authorization"] = "Bearer wrong"
        async with client:
            with pytest.raises(NotKnown) as raised:
                await client.overview()
        assert raised.value.status == 401
        assert raised.value.detail


async def test_the_limit_of_reads_is_waited_for(log: Path, serving: Serving) -> None:
    async with serving(log) as served, running(served) as client:
        answers = await asyncio.gather(*(client.overview() for _ in range(90)))
        assert len({one.entry for one in answers}) == 1


async def test_pandas_is_used_if_it_is_there(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(log) as served, running(served) as client:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
            await client.nodes().to_pandas()
        frame: Any = SimpleNamespace(DataFrame=lambda rows: rows)
        monkeypatch.setitem(sys.modules, "pandas", frame)
        rows = await client.nodes().to_pandas()
        assert rows
        assert rows[0]["node"]


async def test_a_client_of_both_kinds_has_the_same_words() -> None:
    for kind, other in ((Client, AsyncClient),):
        words = {name for name in dir(kind) if not name.startswith("_")}
        assert words == {name for name in dir(other) if not name.startswith("_")}
