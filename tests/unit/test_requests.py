"""What people ask for: done once, or refused with field and reason; and who signs it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus.contract import Message
from bus.signing import Signer
from scheduler.core.facts import RequestDone, RequestRefused, SubmissionRefused
from scheduler.core.standing import Standing
from scheduler.gateways import Gateway, Gateways
from scheduler.service import SchedulerService
from schemas.codec import encode, request
from schemas.requests import (
    LIFE_MAX_S,
    CancelJob,
    CordonNode,
    DrainNode,
    PrioritiseJob,
    Request,
    SubmitJob,
    UncordonNode,
    VerbData,
)
from schemas.topics import EVENTS, REQUESTS, dead_letters
from tests.builders import node_born, submitted
from tests.desk import Desk, kinds, open_desk

LETTERS = dead_letters(REQUESTS).name
KEY = Signer("k1", Ed25519PrivateKey.generate())
OTHER = Signer("k1", Ed25519PrivateKey.generate())


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path) as desk:
        yield desk


def trusting(*may: str) -> Gateways:
    return Gateways({"k1": Gateway(KEY.public(), may)})


def ask(
    desk: Desk, args: VerbData, signer: Signer | None = None, name: str = "", **over: Any
) -> Message:
    """The message of a request by an operator, unless told otherwise."""
    desk.sequence["asked"] = desk.sequence.get("asked", 0) + 1
    now_s = desk.clock.now_s()
    fields = {
        "id": name or f"r{desk.sequence['asked']}",
        "subject": "ann",
        "role": "operator",
        "asked_s": now_s,
        "expires_s": now_s + 600.0,
        **over,
    }
    said = request(Request(args=args, **fields), source="/gateways/g")
    value = encode(said)
    headers = {} if signer is None else signer.headers(value)
    return Message(REQUESTS.name, "default", value, headers)


def refusals(desk: Desk) -> list[tuple[str, str]]:
    found = [fact for _, decision in desk.seen for fact in decision.facts]
    return [(fact.field, fact.reason) for fact in found if isinstance(fact, RequestRefused)]


def done(desk: Desk) -> list[str]:
    found = [fact for _, decision in desk.seen for fact in decision.facts]
    return [fact.request for fact in found if isinstance(fact, RequestDone)]


async def letters(desk: Desk) -> list[tuple[str, str]]:
    found = [record.headers for record in await desk.records(LETTERS)]
    return [(headers["dlq_field"], headers["dlq_error"]) for headers in found]


async def _begun(desk: Desk, **config: Any) -> SchedulerService:
    service = desk.start(**config)
    await desk.hears(desk.say(node_born("n0")), desk.say(submitted("j0", gpus_min=1)))
    return service


async def test_a_request_is_journalled_with_its_bytes_and_done(desk: Desk) -> None:
    service = await _begun(desk)
    message = ask(desk, CordonNode(node="n0"), reason="the fan is loud")
    await desk.hears(message)
    assert done(desk) == ["r1"]
    cordon = service.engine.state.standing.cordons["n0"]
    assert (cordon.by, cordon.reason, cordon.request) == ("ann", "the fan is loud", "r1")
    (said,) = [one.data for one, _ in desk.seen if type(one.data).__name__ == "Requested"]
    assert (getattr(said, "raw", "").encode(), getattr(said, "signature", None)) == (
        message.value,
        "",
    )
    assert service.intake.requests.counts == {("node.cordon", "done"): 1}
    await desk.replayed(service)


async def test_a_repeated_request_takes_effect_once_even_after_a_restart(desk: Desk) -> None:
    service = await _begun(desk, snapshot_entries=3)
    cordon, open_ = ask(desk, CordonNode(node="n0")), ask(desk, UncordonNode(node="n0"))
    await desk.hears(cordon, open_, cordon)
    assert "n0" not in service.engine.state.standing.cordons
    await service.snapshot()
    await desk.crash()
    service = desk.start()
    before = kinds(desk).count("Requested")
    await desk.hears(cordon)
    assert "n0" not in service.engine.state.standing.cordons
    assert service.intake.requests.counts == {("node.cordon", "replayed"): 1}
    assert kinds(desk).count("Requested") == before, "a repeated one is not journalled"
    assert [field for field, _ in await letters(desk)] == ["data.id", "data.id"]
    assert service.engine.state.standing.taken.keys() == {"r1", "r2"}
    await desk.replayed(service)


def test_ids_are_forgotten_a_week_after_they_expire() -> None:
    """Until then a cell's time may be ahead of the clock by which they expire."""
    standing = Standing()
    for number in range(300):
        standing.take(f"a{number}", 1000.0, 400.0)
    for number in range(300):
        standing.take(f"b{number}", 2e6, 1000.0 + LIFE_MAX_S - 1.0)
    assert len(standing.taken) == 600
    for number in range(300):
        standing.take(f"c{number}", 2e6, 1000.0 + LIFE_MAX_S)
    assert len(standing.taken) == 600
    assert (standing.forgotten_s, "a0" in standing.taken) == (0.0, False)


#: What the engine refuses: (what is asked, how, field, part of the reason).
REFUSED: list[tuple[VerbData, dict[str, Any], str, str]] = [
    (CordonNode(node="n0"), {"role": "viewer"}, "role", "is viewer, but node.cordon is for"),
    (CordonNode(node="n0"), {"role": "tenant", "tenant": "t"}, "role", "for operator or admin"),
    (CordonNode(node="n9"), {}, "args.node", "there is no node n9"),
    (UncordonNode(node="n9"), {}, "args.node", "there is no node n9"),
    (UncordonNode(node="n0"), {}, "args.node", "n0 is not cordoned"),
    (DrainNode(node="n9", by_s=1e10), {}, "args.node", "there is no node n9"),
    (DrainNode(node="n0", by_s=5.0), {}, "args.by_s", "past; name a later time"),
    (CancelJob(job="nope"), {}, "args.job", "there is no job nope"),
    (CancelJob(job="j0"), {"role": "viewer"}, "role", "is viewer"),
    (CancelJob(job="j0"), {"role": "tenant", "tenant": "u"}, "args.job", "another tenant's"),
    (
        SubmitJob(spec=submitted("mine")),
        {"role": "tenant", "tenant": "u"},
        "args.spec.tenant",
        "is t, but ann submits for u",
    ),
    (SubmitJob(spec=submitted("j0", gpus_min=2)), {}, "args.spec.job", "another job"),
]


@pytest.mark.parametrize(("args", "how", "field", "part"), REFUSED)
async def test_what_may_not_be_is_refused_and_recorded(
    desk: Desk, args: VerbData, how: dict[str, Any], field: str, part: str
) -> None:
    service = await _begun(desk)
    await desk.hears(ask(desk, args, **how))
    ((said, why),) = refusals(desk)
    assert said == field
    assert part in why
    assert done(desk) == []
    state = service.engine.state
    assert (state.standing.cordons, list(state.jobs)) == ({}, ["j0"])
    assert not state.jobs["j0"].cancel_requested
    assert service.intake.requests.counts == {(args.verb, "refused"): 1}
    await desk.replayed(service)


async def test_what_cannot_be_taken_is_a_dead_letter_with_its_field(desk: Desk) -> None:
    service = await _begun(desk)
    now_s = desk.clock.now_s()
    good = ask(desk, CordonNode(node="n0"))
    value = good.value or b""
    late: dict[str, Any] = {"asked_s": now_s - 9.0, "expires_s": now_s - 5.0}
    wrong = [
        ("cell", ask(desk, CordonNode(node="n0"), cell="other")),
        ("data.expires_s", ask(desk, CordonNode(node="n0"), **late)),
        (
            "data.asked_s",
            ask(desk, CordonNode(node="n0"), asked_s=now_s + 900.0, expires_s=now_s + 950.0),
        ),
        ("", Message(REQUESTS.name, "default", b"{")),
        ("", Message(REQUESTS.name, "default", b'{"pad":"' + b"x" * 600_000 + b'"}')),
        ("data.args.verb", Message(REQUESTS.name, "default", value.replace(b".cordon", b".eat"))),
        ("data.args.node", Message(REQUESTS.name, "default", value.replace(b'"n0"}', b'"n 0"}'))),
        ("id", Message(REQUESTS.name, "default", value.replace(b'"id":"r', b'"id":"q', 1))),
        ("type", Message(REQUESTS.name, "default", desk.say(submitted("x")).value)),
    ]
    await desk.hears(*(message for _, message in wrong))
    assert sorted(field for field, _ in await letters(desk)) == sorted(name for name, _ in wrong)
    assert "Requested" not in kinds(desk), "none is journalled"
    assert service.intake.requests.counts == {
        ("node.cordon", "other_cell"): 1,
        ("node.cordon", "expired"): 1,
        ("node.cordon", "early"): 1,
        ("", "unreadable"): 6,
    }
    await desk.hears(good)
    assert done(desk) == ["r1"], "they delay nothing"


async def test_over_brokers_a_request_counts_if_a_trusted_key_signed_it(desk: Desk) -> None:
    service = await _begun(desk, gateways=trusting("node.cordon"))
    message = ask(desk, CordonNode(node="n0"), KEY)
    await desk.hears(message)
    assert done(desk) == ["r1"]
    (said,) = [one.data for one, _ in desk.seen if type(one.data).__name__ == "Requested"]
    assert (getattr(said, "kid", ""), getattr(said, "signature", "")) == (
        "k1",
        message.headers["sig"],
    )
    await desk.replayed(service)


async def test_over_brokers_what_nobody_vouches_for_is_refused(desk: Desk) -> None:
    service = await _begun(desk, gateways=trusting("node.cordon"))
    args = CordonNode(node="n0")
    good = ask(desk, args, KEY)
    unknown = Signer("k7", Ed25519PrivateKey.generate())
    changed = (good.value or b"").replace(b"operator", b"admin")
    await desk.hears(
        ask(desk, args),
        ask(desk, args, OTHER),
        ask(desk, args, unknown),
        Message(REQUESTS.name, "default", changed, good.headers),
        ask(desk, args, KEY, cell="other"),
        ask(desk, UncordonNode(node="n0"), KEY),
    )
    found = await letters(desk)
    assert [field for field, _ in found] == ["sig", "sig", "kid", "sig", "cell", "data.args.verb"]
    assert (
        "may not pass on; if it shall, add it to scheduler.trusted_gateways.k1.may" in found[-1][1]
    )
    assert "is k7, which scheduler.trusted_gateways does not name" in found[2][1]
    assert "Requested" not in kinds(desk)
    assert service.intake.requests.counts == {
        ("", "unsigned"): 1,
        ("", "forged"): 2,
        ("", "unknown_key"): 1,
        ("node.cordon", "other_cell"): 1,
        ("node.uncordon", "not_its_verb"): 1,
    }


async def test_over_brokers_without_a_gateway_the_setting_is_named(desk: Desk) -> None:
    await _begun(desk, gateways=Gateways({}))
    await desk.hears(ask(desk, CordonNode(node="n0"), KEY))
    ((field, why),) = await letters(desk)
    assert field == "sig"
    assert "scheduler.trusted_gateways" in why


async def test_jobs_by_request_and_no_more_by_event(desk: Desk) -> None:
    service = desk.start(accept_unsigned=False)
    await desk.hears(desk.say(submitted("old")), ask(desk, SubmitJob(spec=submitted("new"))))
    assert list(service.engine.state.jobs) == ["new"]
    (letter,) = await desk.records(f"{EVENTS.name}.dlq")
    assert letter.headers["dlq_field"] == "type"
    assert "by a request" in letter.headers["dlq_error"]
    how: dict[str, Any] = {"role": "tenant", "tenant": "t"}
    await desk.hears(ask(desk, CancelJob(job="new"), **how))
    assert service.engine.state.jobs["new"].state == "cancelled"
    await desk.hears(ask(desk, CancelJob(job="new"), **how))
    assert refusals(desk) == [("args.job", "new is cancelled already")]
    assert orjson.loads((await desk.records(REQUESTS.name))[0].value or b"")["subject"] == "new"


async def test_a_submission_said_again_is_the_same_though_its_priority_was_changed(
    desk: Desk,
) -> None:
    service = desk.start(accept_unsigned=True)
    said = submitted("j0", gpus_min=1)
    await desk.hears(desk.say(node_born("n0")), desk.say(said))
    await desk.hears(ask(desk, PrioritiseJob(job="j0", priority=3)))
    assert service.engine.state.jobs["j0"].priority == 3
    await desk.hears(desk.say(said))
    assert _refused_submissions(desk) == []
    await desk.hears(desk.say(said.model_copy(update={"priority": 1})))
    assert _refused_submissions(desk) == ["another job of this tenant has this id"]
    await desk.replayed(service)


def _refused_submissions(desk: Desk) -> list[str]:
    found = [fact for _, decision in desk.seen for fact in decision.facts]
    return [fact.reason for fact in found if isinstance(fact, SubmissionRefused)]
