"""The fleet as columns, agents and leaders: what the state and the journal have, and no more."""

import asyncio
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from console.at_gateway import GatewaySource
from explain.reading import read_bus, read_refusals
from explain.refusals import in_words
from gateway import past
from gateway.feed import Feed
from gateway.index import Index, Place
from gateway.subjects import Role, Sight
from gateway.views import chosen_nodes
from scheduler.core.stimuli import Input, LeaderStarted, NodeHeard, NodeSilent, TimePassed
from schemas.events import CommandAcknowledged
from schemas.requests import CordonNode
from schemas.topics import TELEMETRY
from tests.builders import Cell, load, node_born, request_of
from tests.client.conftest import waiting
from tests.gateway.conftest import Served, Serving
from tests.gateway.test_sight import START_S, As, job, two, write_told

__all__ = ["two"]


async def rows(served: Served, name: str, **asked: Any) -> list[dict[str, Any]]:
    """Give all rows of a list, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        page = await served.get(name, **asked)
        found += page[name]
        if page["next"] is None:
            return found
        asked["cursor"] = page["next"]


async def test_columns_are_what_rows_are(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        last = served.feed.entries - 1
        for entry in (None, last, last // 2, 3, 0):
            asked = {} if entry is None else {"entry": entry}
            fleet = await served.get("fleet", **asked)
            nodes = await rows(served, "nodes", limit=100, **asked)
            columns = fleet["nodes"]
            assert columns["name"] == [node["node"] for node in nodes]
            pools = [fleet["pools"][place] for place in columns["pool"]]
            assert [(one["pool"], one["kind"]) for one in pools] == [
                (node["pool"], node["kind"]) for node in nodes
            ]
            for column, field in (("gpus", "gpu_count"), ("state", "state"), ("due_s", "due_s"),
                                  ("loan", "loan_state"), ("used", "gpu_utilisation")):  # fmt: skip
                assert columns[column] == [node[field] for node in nodes], column
            assert columns["cordoned"] == [node["cordon"] is not None for node in nodes]
            assert columns["draining"] == [node["drain"] is not None for node in nodes]
            holders = [holder for node in nodes for holder in node["holders"]]
            jobs = [None if place < 0 else fleet["jobs"][place]["job"] for place in fleet["gpus"]]
            assert jobs == holders
            tenants = {job["job"]: job["tenant"] for job in await rows(served, "jobs", **asked)}
            assert {one["job"]: one["tenant"] for one in fleet["jobs"]}.items() <= tenants.items()
        assert any(one is not None for one in (await served.get("fleet"))["nodes"]["used"])


async def test_measurements_are_read_once(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        first = await served.get("fleet")
        reads: list[int] = []
        bus = served.gateway.cells.log.bus
        read = bus.read

        def counted(topic: str, offset: int = 0, end: int | None = None) -> Any:
            if topic == TELEMETRY.name:
                reads.append(offset)
            return read(topic, offset, end)

        bus.read = counted  # type: ignore[method-assign]
        assert await served.get("fleet") == first
        assert (await served.get("nodes", limit=1))["nodes"]
        assert reads == [], "nothing is new"


async def test_who_sees_only_its_own_sees_the_same_pseudonyms_everywhere(
    two: Path, serving: Serving
) -> None:
    shy = As(Role.TENANT, Sight.OWN_NAMES, "acme")
    async with serving(two, authority=shy) as served:
        fleet = await served.get("fleet")
        nodes = await rows(served, "nodes")
        jobs = {row["job"]: row["tenant"] for row in await rows(served, "jobs")}
        (held,) = fleet["jobs"]
        assert held["job"].startswith("job-x")
        assert held["tenant"] == jobs[held["job"]]
        assert {held["job"]} == {one for node in nodes for one in node["holders"] if one}


def _told() -> list[tuple[str, Input]]:
    """Two leaders, one of them twice; an agent that is silent, and one that was."""
    return [
        ("/schedulers/a", LeaderStarted("a", 1, "fifo", {})),
        ("/agents/one", node_born("n0", agent="one")),
        ("/agents/one", node_born("n1", agent="one")),
        ("/agents/two", node_born("m0", agent="two")),
        ("/schedulers/b", LeaderStarted("b", 2, "fifo", {})),
        ("/schedulers/b", NodeSilent("m0", START_S + 31.0)),
        ("/schedulers/b", NodeHeard("m0")),
        ("/schedulers/b", NodeSilent("n1", START_S + 55.0)),
        ("/schedulers/b", LeaderStarted("b", 3, "sjf", {})),
        ("/gateways/g", request_of(START_S + 90, CordonNode(node="n0"), "r1")),
        ("/schedulers/b", TimePassed()),
    ]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.db"
    asyncio.run(write_told(path, _told()))
    return path


async def test_agents_are_told_with_what_is_known_of_them(fleet: Path, serving: Serving) -> None:
    async with serving(fleet) as served:
        one, two = await rows(served, "agents", limit=1)
        assert (one["agent"], one["nodes"], one["pools"]) == ("one", ["n0", "n1"], ["train"])
        assert (one["state"], one["silent_since_s"]) == ("unknown", START_S + 70)
        assert one["lease_end_s"] > START_S + 70
        assert (two["state"], two["silent_since_s"], two["lease_end_s"]) == ("alive", None, None)
        assert one["heard_s"] is one["delay_s"] is None, "nobody measured anything"
        (then,) = await rows(served, "agents", text="TWO", entry=5)
        assert (then["state"], then["silent_since_s"]) == ("unknown", START_S + 50)
        columns = (await served.get("fleet"))["nodes"]
        assert columns["state"] == ["alive", "alive", "unknown"]
        assert columns["cordoned"] == [False, True, False]


async def test_agents_were_heard_when_they_measured(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        found = await rows(served, "agents")
        assert found
        for one in found:
            assert one["heard_s"] > one["born_s"]
            assert one["delay_s"] == pytest.approx(0.0, abs=1.0)
        past = await rows(served, "agents", entry=served.feed.entries // 2)
        assert {one["heard_s"] for one in past} == {None}


async def test_leaders_are_told_newest_first(fleet: Path, serving: Serving) -> None:
    async with serving(fleet) as served:
        found = await rows(served, "leaders", limit=2)
        told_ = [(one["entry"], one["leader"], one["policy"], one["another"]) for one in found]
        assert told_ == [(8, "b", "sjf", False), (4, "b", "fifo", True), (0, "a", "fifo", True)]
        assert [one["leader_epoch"] for one in found] == [3, 2, 1]
        assert [one["at_s"] for one in found] == [START_S + 80, START_S + 40, START_S]
        (first,) = await rows(served, "leaders", entry=3)
        assert first["entry"] == 0


def _refused() -> list[tuple[str, Input]]:
    """A job whose start its agent refuses, and another whose start nobody answers."""
    said: list[tuple[str, Input]] = [
        ("/schedulers/a", LeaderStarted("a", 1, "fifo", {})),
        ("/agents/one", node_born("n0", agent="one")),
        ("/agents/two", node_born("m0", agent="two")),
        ("/tenants/zeta-corp", job("zeta-secret-run", "zeta-corp", 4, "x")),
        ("/tenants/zeta-corp", job("zeta-waits", "zeta-corp", 4, "x")),
        ("/schedulers/a", TimePassed()),
    ]
    return said


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    path, said = tmp_path / "refused.db", _refused()
    commands = asyncio.run(write_told(tmp_path / "before.db", said)).commands.values()
    (one,) = [command.id for command in commands if command.agent == "one"]
    no = {"command": one, "outcome": "refused", "reason": "no folder zeta-secret-run"}
    said.append(("/agents/one", CommandAcknowledged.model_validate(no)))
    said += [("/schedulers/a", TimePassed())] * 6
    asyncio.run(write_told(path, said))
    return path


async def test_agents_are_told_with_what_they_did_not_obey(refused: Path, serving: Serving) -> None:
    async with serving(refused) as served:
        one, two = await rows(served, "agents")
        (no, again), (open_,) = one["refusals"], two["refusals"]
        assert again["is_open"], "something else that it does not answer"
        assert (no["agent"], no["kind"], no["reason"]) == (
            "one", "StartGang", "no folder zeta-secret-run",
        )  # fmt: skip
        assert not no["is_open"]
        assert "Agent one refused StartGang of zeta-" in no["text"]
        assert (open_["agent"], open_["is_open"], open_["reason"]) == ("two", True, "")
        assert open_["tries"] > 1
        before, _ = await rows(served, "agents", entry=5)
        assert before["refusals"] == [], "of that moment"
        bus = served.feed.log.bus
        local = await read_refusals(bus, await read_bus(bus))
        told = [
            {name: it for name, it in one.items() if name != "text"} for one in (no, open_, again)
        ]
        assert sorted(map(str, map(asdict, local))) == sorted(map(str, told))


async def test_agents_are_told_without_it_while_the_index_is_far_behind(
    refused: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(refused) as served:
        monkeypatch.setattr(past, "_FAR", -1)
        monkeypatch.setattr(Feed, "building", property(lambda _: True))
        assert [one["refusals"] for one in await rows(served, "agents")] == [None, None]


async def test_agents_are_asked_for_again_while_a_damaged_index_is_built_again(
    refused: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(_: Index, at_s: float) -> Place:
        raise sqlite3.DatabaseError(f"the page of {at_s:g} is torn")

    async with serving(refused) as served:
        with monkeypatch.context() as patched:
            patched.setattr(Index, "place_at", torn)
            problem = await served.get("agents", 503)
        assert "is built again; ask again" in problem["detail"]
        await served.until(served.level)
        assert len(await rows(served, "agents")) == 2


async def test_what_an_agent_says_of_anothers_job_is_hidden_with_its_name(
    refused: Path, serving: Serving
) -> None:
    async with serving(refused, authority=As(Role.TENANT, Sight.OWN_NAMES, "acme")) as served:
        found = await served.raw("agents")
        assert "zeta" not in found.text
        assert found.json()["agents"][0]["refusals"][0]["subject"].startswith("job-x")


async def test_what_agents_did_not_obey_is_told_to_whoever_asks_by_a_gateway(
    refused: Path, serving: Serving
) -> None:
    async with serving(refused) as served:
        source = GatewaySource("here", None)
        source.__dict__["_client"] = waiting(served)
        found = await asyncio.to_thread(source.refusals)
        assert {one.agent for one in found} == {"one", "two"}
        assert in_words(found[0], served.feed.origin_s).startswith("Agent one refused StartGang")


async def test_what_a_lender_says_that_shares_its_pool_is_found_by_its_name_and_the_pools(
    tmp_path: Path, serving: Serving
) -> None:
    path = tmp_path / "shared.db"
    servers = [
        (f"/agents/{agent}", node_born(f"{agent}-0", agent=agent, pool="serve", kind="inference"))
        for agent in ("east", "west")
    ]
    leads = ("/schedulers/a", LeaderStarted("a", 1, "fifo", {}))
    alone = ("/agents/far", node_born("far-0", agent="far", pool="edge", kind="edge"))
    said: list[tuple[str, Input]] = [
        leads, *servers, alone,
        ("/agents/east", load(3)), ("/agents/west", load(2)),
        ("/agents/far", load(1, "edge", "far-0")),
    ]  # fmt: skip
    await write_told(path, said)

    async with serving(path) as served:

        async def found(subject: str) -> list[int]:
            rows = (await served.get("decisions", subject=subject))["decisions"]
            return [row["entry"] for row in rows]

        assert await found("serve@east") == [4]
        assert await found("serve") == [5, 4], "as the row of the pool among lenders asks"
        assert await found("edge") == [6]


def test_a_node_is_found_by_its_name_among_many_that_have_it_in_theirs() -> None:
    """The console asks for the first hundred of a text, and shows the one."""
    cell = Cell()
    names = [f"n1{number}" for number in range(120)]
    cell.told(*(node_born(name, pool="first") for name in names), node_born("n1", pool="second"))
    nodes = list(cell.state.nodes.values())
    found = [node.id for node in chosen_nodes(nodes, state=None, pool=None, text="n1")]
    assert found == ["n1", *names]
