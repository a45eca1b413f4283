"""Requests of people over real Kafka: what a trusted key signed is done once, all else is not."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.contract import Message, Record
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from bus.signing import SIGNATURE, Signer
from scheduler.core.state import ClusterState
from scheduler.journal import recover
from schemas.codec import encode, request
from schemas.journal import JournalEntry, decode_entry
from schemas.requests import CancelJob, CordonNode, Request, UncordonNode, VerbData
from schemas.topics import EVENTS, JOURNAL, REQUESTS, dead_letters
from schemas.values import MAX_MESSAGE_BYTES
from tests.integration.processes import TRAIN, Fleet, job, ready, submit, until
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]


def make_key(folder: Path, key_id: str) -> Path:
    """Make a pair of keys as docs/deploy.md says; give the private one's file."""
    private, public = folder / f"{key_id}-key.pem", folder / f"{key_id}.pem"
    for command in (
        ["genpkey", "-algorithm", "ed25519", "-out", private],
        ["pkey", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return private


@pytest.fixture
def fleet(
    tmp_path: Path,
    fleets: Callable[[Path, str], Fleet],
    kafka_bootstrap: str,
    namespace: str,
) -> Fleet:
    """A fleet that trusts the keys `ops`, for all verbs but `job.cancel`, and `desk` for that."""
    for key_id in ("ops", "desk"):
        make_key(tmp_path, key_id)
    config = f"""
[kafka]
bootstrap = "{kafka_bootstrap}"
replication = 1
namespace = "{namespace}"
[scheduler.trusted_gateways.ops]
key = "{tmp_path}/ops.pem"
may = ["node.cordon", "node.uncordon", "node.drain", "job.submit"]
[scheduler.trusted_gateways.desk]
key = "{tmp_path}/desk.pem"
may = ["job.cancel"]
"""
    return fleets(tmp_path, config)


@pytest.fixture
def options(kafka_bootstrap: str, namespace: str) -> KafkaOptions:
    return KafkaOptions(kafka_bootstrap, namespace=namespace, replication=1)


class Log:
    """What the fleet's Kafka has stored."""

    def __init__(self, options: KafkaOptions) -> None:
        self.bus = KafkaBus.open(options, SystemClock())

    async def state(self) -> ClusterState:
        return (await recover(self.bus, "default")).state

    async def asked(self) -> list[JournalEntry]:
        """The entries of the journal that a request has made."""
        entries = [decode_entry(one.value or b"") async for one in self.bus.read(JOURNAL.name)]
        found = [one for one in entries if isinstance(one, JournalEntry)]
        assert len(found) == len(entries)
        return [one for one in found if one.stimulus["kind"] == "Requested"]

    async def letters(self, topic: str = REQUESTS.name) -> list[Record]:
        name = dead_letters(EVENTS if topic == EVENTS.name else REQUESTS).name
        return [record async for record in self.bus.read(name)]

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not await holds():
            assert time.monotonic() < end_s, f"it never came to that: {what}"
            await asyncio.sleep(0.1)


def asked(args: VerbData, signer: Signer | None, name: str, **over: Any) -> Message:
    """An operator's request for the default cell, unless told otherwise."""
    now_s = SystemClock().now_s()
    fields = {
        "id": name,
        "subject": "ann@example",
        "role": "operator",
        "reason": "a new kernel",
        "asked_s": now_s,
        "expires_s": now_s + 600.0,
        **over,
    }
    value = encode(request(Request(args=args, **fields), source="/gateways/g"))
    return Message(REQUESTS.name, "default", value, signer.headers(value) if signer else {})


def hostile(ops: Signer, foreign: Signer, log: Log) -> list[tuple[Message, str, str]]:
    """What must not be taken: the message, the field of its dead letter, part of the reason."""
    cordon, now_s = CordonNode(node="n0"), SystemClock().now_s()
    signed = asked(cordon, ops, "changed")
    changed = replace(signed, value=(signed.value or b"").replace(b'"n0"', b'"n1"'))
    impostor = Signer("ops", foreign._key)
    large = b"x" * (MAX_MESSAGE_BYTES + 1)
    late = {"asked_s": now_s - 100.0, "expires_s": now_s - 50.0}
    return [
        (asked(cordon, None, "unsigned"), SIGNATURE, "is missing"),
        (changed, SIGNATURE, "forged, or changed"),
        (asked(cordon, impostor, "impostor"), SIGNATURE, "forged, or changed"),
        (asked(cordon, foreign, "foreign"), "kid", "trusted_gateways does not name"),
        (asked(CancelJob(job="j0"), ops, "beyond"), "data.args.verb", "may not pass on"),
        (asked(cordon, ops, "late", **late), "data.expires_s", "expired"),
        (asked(cordon, ops, "early", asked_s=now_s + 500.0), "data.asked_s", "ahead"),
        (asked(cordon, ops, "west", cell="west"), "cell", "is west, this is default"),
        (Message(REQUESTS.name, "default", large, ops.headers(large)), "", "oversized"),
    ]


async def test_what_a_trusted_key_signed_is_done_once_and_all_else_is_a_dead_letter(
    fleet: Fleet, options: KafkaOptions
) -> None:
    scheduler, agent = fleet.start("scheduler"), fleet.start("cloud-agent", **TRAIN)
    await ready(scheduler, agent)
    log = Log(options)
    ops = Signer.from_file("ops", fleet.folder / "ops-key.pem")
    desk = Signer.from_file("desk", fleet.folder / "desk-key.pem")
    foreign = Signer.from_file("foreign", make_key(fleet.folder, "foreign"))

    async def joined() -> bool:
        return {"n0", "n1"} <= (await log.state()).nodes.keys()

    await log.until(joined, "the nodes have joined")
    bad = hostile(ops, foreign, log)
    for message, _, _ in bad:
        await log.bus.publish(message)
    cordon, uncordon = (
        asked(CordonNode(node="n0"), ops, "r1"),
        asked(UncordonNode(node="n0"), ops, "r2"),
    )
    refused = asked(UncordonNode(node="n1"), ops, "r3")
    for message in (cordon, uncordon, cordon, refused, asked(CancelJob(job="j9"), desk, "r4")):
        await log.bus.publish(message)  # the third is the first again, which would close n0 anew
    await submit(log.bus, job("by-event"))
    letters_wanted = len(bad) + 1

    async def answered() -> bool:
        found = len(await log.letters()), len(await log.letters(EVENTS.name))
        return found == (letters_wanted, 1) and len(await log.asked()) == 4

    await log.until(answered, "each is in the journal, or a dead letter")
    said = {letter.value or b"": letter.headers for letter in await log.letters()}
    for message, field, why in bad:
        value = message.value or b""
        letter = said[value] if value in said else said[value[:1024]]  # of a large one the start
        assert (letter["dlq_field"], why in letter["dlq_error"]) == (field, True), letter
    assert said[cordon.value or b""]["dlq_field"] == "data.id"
    (event,) = await log.letters(EVENTS.name)
    assert event.headers["dlq_field"] == "type"
    entries = await log.asked()
    assert [entry.stimulus["data"]["request"]["id"] for entry in entries] == [
        *("r1", "r2", "r3", "r4")
    ]
    assert [entry.stimulus["data"]["raw"].encode() for entry in entries[:3]] == [
        message.value for message in (cordon, uncordon, refused)
    ]
    ends = [entry.decision["facts"][-1][0] for entry in entries]
    assert ends == ["RequestDone", "RequestDone", "RequestRefused", "RequestRefused"]
    state = await log.state()
    assert not state.standing.cordons
    assert not state.jobs, "nothing of the event was taken"
    assert (agent.stop(), scheduler.stop()) == (0, 0)
    await log.bus.close()


async def tidegate(*arguments: object) -> tuple[int, str, str]:
    """Run the command; give its exit code, and what it shows and says."""
    command = [sys.executable, "-m", "console.main", *map(str, arguments)]
    ran = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    shown, said = await ran.communicate()
    return ran.returncode or 0, shown.decode(), said.decode()


async def test_the_command_line_asks_with_a_key(fleet: Fleet, options: KafkaOptions) -> None:
    scheduler, agent = fleet.start("scheduler"), fleet.start("cloud-agent", **TRAIN)
    await ready(scheduler, agent)
    log = Log(options)
    at = ("--log", options.address)
    ops, desk = (f"{name}={fleet.folder}/{name}-key.pem" for name in ("ops", "desk"))

    async def joined() -> bool:
        return {"n0", "n1"} <= (await log.state()).nodes.keys()

    await log.until(joined, "the nodes have joined")
    job_of = ("submit", "--job", "j1", "--gpus", "1", "--steps", "100000", "--rate", "1=50")
    code, _, said = await tidegate(*job_of, *at)
    assert code == 1, said
    assert "ask for it by a request, which is signed; name a key" in said, "it is told what to do"
    code, shown, said = await tidegate(*job_of, "--sign", ops, *at)
    assert (code, shown) == (0, "j1\n"), said
    code, _, said = await tidegate("node", "drain", "n0", *at)
    assert (code, "--sign is missing" in said) == (2, True)
    assert "--sign ops=ops-key.pem" in said, "the private half, as docs/deploy.md names it"
    drain = ("node", "drain", "n0", "--by", "10m", "--reason", "new kernel", *at)
    code, _, said = await tidegate(*drain, "--sign", desk)
    assert (code, "may not pass on" in said) == (1, True)
    code, _, said = await tidegate(*drain, "--sign", ops)
    assert code == 0, said

    async def empty() -> bool:
        standing = (await log.state()).standing
        return "n0" in standing.cordons and not standing.drains

    await log.until(empty, "the node is empty")
    code, _, said = await tidegate("cancel", "j1", "--sign", desk, *at)
    assert code == 0, said
    code, shown, said = await tidegate("audit", "--json", "-", *at)
    assert code == 0, said
    assert [
        (act["verb"], act["about"], act["result"], act["key_id"])
        for act in json.loads(shown)["acts"]
    ] == [
        ("job.submit", "j1", "done", "ops"),
        ("node.drain", "n0", "done", "ops"),
        ("job.cancel", "j1", "done", "desk"),
    ]
    export, keys = fleet.folder / "log.jsonl.zst", fleet.folder / "gateways"
    code, _, said = await tidegate("journal", "export", export, *at)
    assert code == 0, said
    keys.mkdir()
    (fleet.folder / "ops.pem").rename(keys / "ops.pem")
    code, shown, _ = await tidegate("audit", "verify", export, "--keys", keys)
    assert (code, shown.count("kid: names no key")) == (1, 1), "the desk's is not there"
    (fleet.folder / "desk.pem").rename(keys / "desk.pem")
    code, shown, _ = await tidegate("audit", "verify", export, "--keys", keys)
    assert (code, "3 requests, each signed by a key" in shown) == (0, True), shown
    await until(scheduler.is_ready, "it leads on")
    assert (agent.stop(), scheduler.stop()) == (0, 0)
    await log.bus.close()
