"""A hostile client of the gateway, and a hostile log: what other files here do not try."""

from functools import partial
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from gateway.outbox import Outbox
from gateway.sealing import Seal
from gateway.subjects import Role, Sight
from scheduler.core.engine import Engine
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Cause, Input, LeaderStarted, Stimulus
from scheduler.journal import write_entry
from scheduler.policies.registry import make_policy
from schemas.journal import NO_DIGEST
from schemas.requests import Request
from schemas.topics import JOURNAL
from tests.builders import node_born, submitted
from tests.gateway.conftest import Frozen, Serving
from tests.gateway.issuing import Issuer, identities
from tests.gateway.test_sight import As
from tests.gateway.working import CORDON, during, stored, working

#: Names that no job can be submitted under; who writes the log can write them.
EVIL = ("x\r\nSet-Cookie: session=theirs", "x\nLocation: https://evil.example", "<script>alert(1)")


async def test_a_session_that_another_gateways_secret_sealed_lets_nobody_in() -> None:
    bindings = {"bindings": [{"subject": "anna", "role": "admin"}]}
    clock = Frozen()
    clock.at_s = 1_800_000_000.0
    people, said = identities(bindings, Issuer(clock)), {"id": "s", "name": "anna", "groups": []}
    name = people.cookie_name("session")
    ours = people.seal.sealed("session", said, clock.at_s + 60)
    theirs = Seal(b"another gateway's secret, not ours").sealed("session", said, clock.at_s + 60)
    anna = await people.subject({}, {name: ours})
    assert anna is not None
    assert anna.name == "anna"
    for value in (theirs, ours[:-1], ours.swapcase(), "", "x" * 5000):
        assert await people.subject({}, {name: value}) is None


async def test_of_two_at_once_under_a_key_at_two_gateways_each_is_told_of_its_own_alone(
    tmp_path: Path, serving: Serving
) -> None:
    """Neither gateway finds the other's before it writes: the scheduler takes the first."""
    key, ours = {"Idempotency-Key": "k1"}, {"verb": "job.cancel", "job": "j0"}
    async with working(tmp_path) as (desk, log), serving(log) as first:
        second = serving(log, authority=As(Role.TENANT, Sight.ALL_NAMES, "t"), keep_index=False)
        async with second as served:

            class Late(Outbox):
                async def send(self, asked: Request, log_s: float | None) -> None:
                    await first.ask(CORDON, 202, 0, reason="a secret plan", headers=key)
                    await super().send(asked, log_s)

            served.gateway.desk.outbox = Late(partial(SqliteBus.open, log), log)
            refused = await during(desk, served.ask(ours, 422, headers=key))
            assert refused["parameter"] == "Idempotency-Key"
            assert "secret plan" not in str(refused)
            assert len(await stored(served)) == 2
            assert (await first.get("requests/k1"))["result"] == "done"
            await served.gateway.desk.close()


@pytest.mark.parametrize("sight", [Sight.ALL_NAMES, Sight.OWN_NAMES])
async def test_who_asks_under_anothers_key_learns_nothing_and_does_nothing(
    tmp_path: Path, serving: Serving, sight: Sight
) -> None:
    key = {"Idempotency-Key": "k1"}
    async with working(tmp_path) as (desk, log):
        async with serving(log) as served:
            await during(desk, served.ask(CORDON, reason="a secret plan", headers=key))
        async with serving(log, authority=As(Role.TENANT, sight, "zeta")) as served:
            body = {"args": {"verb": "job.cancel", "job": "j0"}}
            for path, method in (("requests", "POST"), ("requests/k1", "GET")):
                answer = await served.client.request(
                    method, f"/api/v1/{path}", headers=key, json=body if method == "POST" else None
                )
                assert answer.status_code in (403, 404, 422), answer.text
                for secret in ("secret plan", "n0", "node.cordon", "local"):
                    assert secret not in answer.text, answer.text
            assert len(await stored(served)) == 1


async def test_what_a_hostile_log_says_comes_into_no_header(
    tmp_path: Path, serving: Serving
) -> None:
    log = tmp_path / "evil.db"
    bus = SqliteBus.open(log, SystemClock())
    engine, digest = Engine(ClusterState(cell="default"), make_policy), NO_DIGEST
    begun = LeaderStarted("test", 1, "fifo", {})
    evil = [
        submitted("j0").model_copy(update={"job": name, "tenant": name, "model": name})
        for name in EVIL
    ]
    inputs: list[Input] = [begun, node_born("n0"), *evil]
    for number, data in enumerate(inputs):
        stimulus = Stimulus(1e9 + number, data, Cause("/agents/a", 0, number))
        decision = engine.handle(stimulus)
        value, digest = write_entry(engine.state, stimulus, decision, digest)
        await bus.publish(Message(JOURNAL.name, "default", value))
    await bus.close()
    async with serving(log) as served:
        listed = (await served.get("jobs"))["jobs"]
        assert {row["job"] for row in listed} == set(EVIL), "they are in answers as they are"
        paths = ["jobs", "overview", "nodes", "decisions", "diff?entry=1&vs=3", "entries/3", "tide"]
        for path in paths:
            answer = await served.raw(path)
            assert answer.status_code == 200
            shown = {name.lower(): value for name, value in answer.headers.items()}
            assert shown["content-type"] == "application/json"
            assert shown["x-content-type-options"] == "nosniff"
            assert not {"set-cookie", "location"} & shown.keys()
            assert not [value for value in shown.values() if "evil" in value or "<" in value]
