"""Who asked for what can be proved from a copy and public keys; one byte altered is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bus.contract import Message, Record
from bus.signing import Signer, Verifier
from console.verbs import run
from scheduler.audit import Audit
from scheduler.gateways import Gateway, Gateways
from schemas.codec import encode, request
from schemas.events import JobCancelled
from schemas.journal import NO_DIGEST, JournalEntry, chain, decode_entry, encode_entry
from schemas.requests import (
    VERB_NAMES,
    AcceptNode,
    CancelJob,
    CordonNode,
    DrainNode,
    FreezeLoans,
    HoldJob,
    PauseCell,
    Request,
    SubmitJob,
    UncordonNode,
    UnfreezeLoans,
    VerbData,
)
from schemas.topics import JOURNAL, REQUESTS
from tests.builders import node_born, submitted
from tests.desk import Desk, open_desk
from tests.unit.test_service_clock import DAY_S, led

KEY, OTHER = (Signer("k1", Ed25519PrivateKey.generate()) for _ in range(2))


async def journal(folder: Path, kind: str = "memory") -> list[Record]:
    """A journal with one request of each kind of answer in it, and what else a cell writes."""
    async with open_desk(kind, folder) as desk:
        desk.start(gateways=Gateways({"k1": Gateway(KEY.public(), tuple(VERB_NAMES))}))
        await desk.hears(desk.say(node_born("n0")), desk.say(submitted("j0", gpus_min=1)))
        now_s = desk.clock.now_s()
        asked: list[VerbData] = [
            CordonNode(node="n0"),
            UncordonNode(node="n0"),
            DrainNode(node="n0", by_s=now_s + 100.0),
            SubmitJob(spec=submitted("j1", gpus_min=1)),
            CancelJob(job="j1"),
            CancelJob(job="nope"),
            PauseCell(what="all"),
            HoldJob(job="j0"),
            FreezeLoans(until_s=now_s + 3.0),
            AcceptNode(agent="e9", node="e9", pool="edge", pool_kind="edge", gpu_count=2),
        ]
        for number, args in enumerate(asked):
            await desk.hears(_asked(desk, args, f"r{number}"))
        await desk.wait(10.0)  # the freeze ends by itself
        return list(await desk.records(JOURNAL.name))


def _asked(desk: Desk, args: VerbData, name: str) -> Message:
    now_s = desk.clock.now_s()
    said = Request(
        id=name,
        args=args,
        subject="ann",
        role="operator",
        reason="its fan",
        asked_s=now_s,
        expires_s=now_s + 600.0,
    )
    value = encode(request(said, source="/gateways/g"))
    return Message(REQUESTS.name, "default", value, KEY.headers(value))


def audited(records: list[Record], signer: Signer = KEY) -> Audit:
    done = Audit(Verifier.of({"k1": signer.public()}))
    done.read(records)
    return done


def altered(records: list[Record], name: str, change: Callable[[JournalEntry], None]) -> int:
    """Change the entry of a request and chain all anew, as who can write the log might."""
    digest, found = NO_DIGEST, -1
    for index, record in enumerate(records):
        entry = decode_entry(record.value or b"")
        assert isinstance(entry, JournalEntry)
        stimulus = entry.stimulus
        if stimulus["kind"] == "Requested" and stimulus["data"]["request"]["id"] == name:
            change(entry)
            found = entry.number
        made = chain(
            digest, entry.number, entry.at_s, stimulus, entry.decision, policy=entry.policy
        )
        records[index], digest = replace(record, value=encode_entry(made)), made.digest
    return found


async def test_a_log_that_nobody_altered_is_proved(tmp_path: Path) -> None:
    records = await journal(tmp_path)
    done = audited(records)
    assert done.findings == []
    assert (done.requests, done.entries) == (10, len(records))


@pytest.mark.parametrize(
    ("facts", "field", "reason"),
    [
        ([["JobAccepted", {}]], "JobAccepted.job", "is None, asked was j1"),
        ([["RequestDone", {"expires_s": [1], "request": "r3"}]], "RequestDone.expires_s", "is [1]"),
        ([["RequestDone", {"request": {"a": 1}}]], "RequestDone.request", "is {'a': 1}, asked was"),
        ([[["x"], {"request": "r3", "by": "bob"}]], "['x'].by", "is 'bob', asked was 'ann'"),
    ],
)
async def test_what_no_scheduler_writes_is_a_finding(
    tmp_path: Path, facts: list[Any], field: str, reason: str
) -> None:
    """It ended with an error of Python's, so that of the rest of the log nothing was said."""
    records = await journal(tmp_path)
    number = altered(records, "r3", lambda entry: entry.decision.update(facts=facts))
    found = audited(records).findings
    assert {one.entry for one in found} == {number}
    (told,) = (one.reason for one in found if one.field == f"decision.{field}")
    assert told.startswith(reason)


async def test_what_nobody_signed_is_counted(tmp_path: Path) -> None:
    async with open_desk("memory", tmp_path) as desk:
        led(desk, lambda: 3 * DAY_S)
        await desk.hears(desk.say(submitted("j0", deadline_s=desk.clock.now_s() + 900.0)))
        await desk.crash()
        may = Gateways({"k1": Gateway(KEY.public(), tuple(VERB_NAMES))})
        desk.start(name="b", gateways=may, accept_unsigned=True)
        due = submitted("j1", deadline_s=desk.clock.now_s() + 900.0)
        await desk.hears(desk.say(due), desk.say(submitted("j2")), desk.say(JobCancelled(job="j2")))
        await desk.hears(_asked(desk, CancelJob(job="j1"), "r0"))
        records = list(await desk.records(JOURNAL.name))
    kinds = [orjson.loads(one.value or b"")["data"]["stimulus"]["kind"] for one in records]
    assert kinds.count("SubmittedAhead") == 1
    done = audited(records)
    assert (done.requests, done.unsigned, done.findings) == (1, 4, [])


async def test_a_lift_of_every_freeze_is_proved_for_each(tmp_path: Path) -> None:
    async with open_desk("memory", tmp_path) as desk:
        desk.start(gateways=Gateways({"k1": Gateway(KEY.public(), tuple(VERB_NAMES))}))
        born = node_born("s0", pool="serve", kind="inference")
        await desk.hears(desk.say(born, "/agents/agent-serve"))
        asked: list[VerbData] = [FreezeLoans(lender="s0"), FreezeLoans(), UnfreezeLoans()]
        for number, args in enumerate(asked):
            await desk.hears(_asked(desk, args, f"r{number}"))
        records = list(await desk.records(JOURNAL.name))
    lifted = sum((record.value or b"").count(b'"LoansUnfrozen"') for record in records)
    assert (lifted, audited(records).findings) == (2, [])


@pytest.mark.parametrize("days", [3, 8])
async def test_a_log_of_a_cell_whose_time_is_ahead_is_proved(tmp_path: Path, days: int) -> None:
    async with open_desk("memory", tmp_path) as desk:
        led(desk, lambda: days * DAY_S)
        await desk.hears(desk.say(node_born("n0")), wait_s=30.0)
        await desk.crash()
        may = Gateways({"k1": Gateway(KEY.public(), tuple(VERB_NAMES))})
        desk.start(name="b", gateways=may)
        await desk.wait(1.0)
        now_s = desk.clock.now_s()
        drain = DrainNode(node="n0", by_s=now_s + 100.0)
        asked: list[VerbData] = [CordonNode(node="n0"), drain, PauseCell(until_s=now_s + 3600.0)]
        asked.append(CordonNode(node="n9"))  # which is refused
        for number, args in enumerate(asked):
            await desk.hears(_asked(desk, args, f"r{number}"))
        records = list(await desk.records(JOURNAL.name))
    done = audited(records)
    assert (done.requests, done.findings) == (4, [])
    kept = list(records)
    altered(kept, "r2", lambda entry: _fact(entry, "RequestKeptLonger").update(ahead_s=0.0))
    assert [one.field for one in audited(kept).findings] == ["decision.RequestKeptLonger.ahead_s"]
    altered(records, "r2", lambda entry: _data(entry).update(ahead_s=(days + 1) * DAY_S))
    assert "ahead_s" in [one.field for one in audited(records).findings]


async def test_a_log_of_very_many_requests_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.core.standing.UNCOUNTED_MAX", 2)
    records = await journal(tmp_path)
    assert (audited(records).requests, audited(records).findings) == (10, [])
    altered(records, "r4", lambda entry: _fact(entry, "RequestCounted").update(counted_as="x bob"))
    found = [one.field for one in audited(records).findings]
    assert found == ["decision.RequestCounted.counted_as"]


async def test_another_key_and_no_key_prove_nothing(tmp_path: Path) -> None:
    records = await journal(tmp_path)
    assert [one.field for one in audited(records, OTHER).findings] == ["sig"] * 10
    unknown = Audit(Verifier.of({"k2": KEY.public()}))
    unknown.read(records)
    assert [one.field for one in unknown.findings] == ["kid"] * 10


async def test_each_single_altered_byte_of_a_request_is_named_by_its_entry(tmp_path: Path) -> None:
    records = await journal(tmp_path)
    (index,) = [n for n, one in enumerate(records) if b'"id":"r2"' in (one.value or b"")]
    value = records[index].value or b""
    wrong = []
    for at in range(0, len(value), 7):
        byte = bytes([value[at] ^ 1])
        changed = [*records]
        changed[index] = replace(records[index], value=value[:at] + byte + value[at + 1 :])
        if index not in [one.entry for one in audited(changed).findings]:
            wrong.append((at, value[max(0, at - 20) : at + 20]))
    # What the chain does not cover are the attributes of the entry's own envelope.
    data_at = value.index(b'"data"')
    assert [one for one in wrong if one[0] > data_at] == []


#: Alterations by who can chain the journal anew: the request, what is changed, the field found.
FORGERIES: list[tuple[str, Callable[[JournalEntry], Any], str]] = [
    ("r0", lambda e: _data(e).update(raw=_data(e)["raw"].replace('"n0"', '"n1"')), "sig"),
    ("r0", lambda e: _data(e).update(signature=""), "sig"),
    ("r0", lambda e: _data(e).update(kid="k9"), "kid"),
    ("r0", lambda e: _data(e)["request"].update(subject="bob"), "request"),
    ("r0", lambda e: _data(e)["request"].update(role="king"), "request.role"),
    ("r0", lambda e: _fact(e, "NodeCordoned").update(node="n1"), "decision.NodeCordoned.node"),
    ("r0", lambda e: _fact(e, "NodeCordoned").update(by="bob"), "decision.NodeCordoned.by"),
    ("r2", lambda e: _fact(e, "DrainStarted").update(by_s=9e9), "decision.DrainStarted.by_s"),
    ("r1", lambda e: _fact(e, "RequestDone").update(request="r9"), "decision.RequestDone.request"),
    ("r4", lambda e: e.decision["facts"].pop(), "decision"),
    ("r3", lambda e: _fact(e, "JobAccepted").update(job="j7"), "decision.JobAccepted.job"),
    ("r7", lambda e: _fact(e, "JobHeld").update(role="admin"), "decision.JobHeld.role"),
    ("r6", lambda e: _fact(e, "CellPaused").update(until_s=9.0), "decision.CellPaused.until_s"),
    ("r9", lambda e: _fact(e, "NodeAccepted").update(joins="e8"), "decision.NodeAccepted.joins"),
    (
        "r9",
        lambda e: _fact(e, "NodeAccepted").update(gpu_count=9),
        "decision.NodeAccepted.gpu_count",
    ),
    ("r0", lambda e: _data(e).update(ahead_s=1e6), "ahead_s"),
    ("r0", lambda e: _data(e).update(ahead_s="1"), "ahead_s"),
    ("r0", lambda e: e.stimulus.update(kind="TimePassed"), "decision.NodeCordoned"),
]


def _data(entry: JournalEntry) -> dict[str, Any]:
    found: dict[str, Any] = entry.stimulus["data"]
    return found


def _fact(entry: JournalEntry, name: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(entry.decision["facts"])[name]
    return found


@pytest.mark.parametrize(("name", "change", "field"), FORGERIES)
async def test_who_chains_the_journal_anew_is_found(
    name: str, change: Callable[[JournalEntry], Any], field: str, tmp_path: Path
) -> None:
    records = await journal(tmp_path)
    number = altered(records, name, change)
    found = [(one.entry, one.field) for one in audited(records).findings]
    assert (number, field) in found
    assert {entry for entry, _ in found} == {number}


async def test_a_request_that_is_copied_is_named(tmp_path: Path) -> None:
    records = await journal(tmp_path)
    first: dict[str, Any] = {}
    altered(records, "r0", lambda entry: first.update(orjson.loads(orjson.dumps(_data(entry)))))

    def again(entry: JournalEntry) -> None:
        entry.stimulus["data"] = first

    altered(records, "r3", again)
    assert "id" in [one.field for one in audited(records).findings]


async def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    records = await journal(tmp_path)
    del records[3]
    assert [(one.entry, one.field) for one in audited(records).findings] == [(4, "number")]


async def test_the_command_says_which_entries_are_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = await journal(tmp_path, "sqlite")
    keys, log = tmp_path / "keys", str(tmp_path / "log.db")
    keys.mkdir()
    asked = ["audit", "verify", log, "--keys", str(keys)]
    assert run(asked) == 2
    assert "has no file KEY_ID.pem" in capsys.readouterr().err
    for signer, name in ((KEY, "k1"), (OTHER, "k2")):
        pem = signer._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (keys / f"{name}.pem").write_bytes(pem)
    assert run(asked) == 0
    shown = capsys.readouterr().out
    assert f"{len(records)} entries, 10 requests, each signed" in shown
    assert "by events, which nobody signed: 1." in shown
    (keys / "k2.pem").rename(keys / "k1.pem")
    assert run([*asked, "--json", "-"]) == 1
    document = orjson.loads(capsys.readouterr().out)
    found = document["findings"]
    assert (document["requests"], document["unsigned"]) == (10, 1)
    assert [(one["field"], one["cell"]) for one in found] == [("sig", "default")] * 10
    assert run(asked) == 1
    shown = capsys.readouterr().out
    assert f"cell default, entry {found[0]['entry']}: sig: does not" in shown
    assert "by events, which nobody signed: 1." in shown
