"""What the codec takes, what it refuses, and what it says then."""

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from pydantic import ValidationError

from benchmarks import codec as benchmark
from schemas.codec import (
    EventEnvelope,
    Rejected,
    command,
    decode_command,
    decode_event,
    encode,
    event,
)
from schemas.commands import COMMANDS, GangSpec, Rebirth, StartGang
from schemas.events import (
    EVENTS,
    CommandAcknowledged,
    EventData,
    GangHeld,
    JobProgressed,
    JobSubmitted,
    NodeBorn,
    NodeMeasured,
    RatePoint,
    WorkerStarted,
)
from schemas.parse import repeated_key
from schemas.programs import Program, check_carried
from schemas.values import (
    MAX_GPUS_PER_NODE,
    MAX_MESSAGE_BYTES,
    MAX_NODES_PER_GANG,
    NodeGpus,
    Strict,
)
from tests.builders import load, node_born, submitted

Broken = Callable[[dict[str, Any]], object]


def measured() -> dict[str, Any]:
    message = event(
        NodeMeasured(
            node="edge-7",
            window_s=1.0,
            gpu_utilisation=[0.5, None],
            gpu_memory_used_mib=[1000, 2000],
            gpu_temperature_c=[60.0, 61.0],
            gpu_power_w=[300.0, 310.0],
        ),
        source="/agents/edge-7",
        sequence=41,
        bootid=3,
        time_s=1.76e9,
    )
    raw: dict[str, Any] = orjson.loads(encode(message))
    return raw


def said(data: EventData, **more: Any) -> EventEnvelope:
    return event(data, source="/s", sequence=0, bootid=0, time_s=0.0, **more)


def progressed(step: int = 1, checkpoint_step: int = 0) -> JobProgressed:
    return JobProgressed(
        job="j",
        epoch=1,
        step=step,
        samples_per_s=1.0,
        checkpoint_step=checkpoint_step,
        checkpoint_cost_s=1.0,
    )


def rejected(value: bytes) -> Rejected:
    read = decode_event(value)
    assert isinstance(read, Rejected)
    return read


def test_an_event_reads_as_it_was_said() -> None:
    read = decode_event(orjson.dumps(measured()))
    assert not isinstance(read, Rejected)
    assert (read.id, read.subject, read.sequence) == ("edge-7-3-41", "edge-7", "41")
    assert read.time_s == 1.76e9
    assert isinstance(read.data, NodeMeasured)
    assert read.data.gpu_utilisation == [0.5, None]


def test_null_attributes_are_left_out() -> None:
    assert "causationid" not in measured()
    assert measured()["time"] == "2025-10-09T08:53:20Z"


@pytest.mark.parametrize(
    ("data", "subject"),
    [
        (WorkerStarted(job="j", epoch=1, node="n", gpus=[0], step=0), "n"),
        (progressed(), "j"),
        (load(pool="p"), "p"),
        (CommandAcknowledged(command="c-1", outcome="done"), "c-1"),
    ],
)
def test_subject_is_what_the_event_is_about(data: Any, subject: str) -> None:
    assert said(data).subject == subject


def test_a_command_about_nothing_needs_a_subject() -> None:
    with pytest.raises(ValueError, match="pass subject="):
        command(Rebirth(), id="c", source="/s", sequence=0, bootid=0, time_s=0.0)


def test_a_command_is_no_event() -> None:
    rebirth: Any = Rebirth()
    with pytest.raises(ValueError, match="Rebirth does not belong"):
        said(rebirth, subject="a")


def test_attributes_are_checked_when_said() -> None:
    data = CommandAcknowledged(command="c", outcome="done")
    with pytest.raises(ValidationError, match="cell"):
        said(data, cell="No Cell")


VALID = orjson.dumps(measured())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "empty"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"\xef\xbb\xbf" + VALID, "byte order mark"),
        (VALID + b"x", "unexpected content"),
        (VALID[:-1], "not JSON"),
        (VALID.replace(b"0.5", b"NaN"), "not JSON"),
        (VALID.replace(b"0.5", b"-Infinity"), "not JSON"),
        (VALID.replace(b"0.5", b"1e999"), "infinity"),
        (VALID.replace(b"edge-7", b"edge\xff7"), "not JSON"),
        (VALID.replace(b"edge-7", rb"\ud800"), "surrogate"),
        (b"[" * 100_000, "depth"),
        (b'{"a":' * 100_000, "depth"),
        (VALID[:-1] + b',"x":' + b'{"x":' * 999 + b'{"x":1,"x" :1}' + b"}" * 1000, "nested"),
    ],
)
def test_what_is_not_json_is_malformed(value: bytes, words: str) -> None:
    read = rejected(value)
    assert (read.kind, read.field) == ("malformed", "")
    assert words in read.reason


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (b'"cell":', b'"source":"/x","cell":', "source"),
        (b'"cell":', b'"source" :"/x","cell":', "source"),
        (b'"cell":', b'"source"\n\t:"/x","cell":', "source"),
        (b'"cell":', rb'"s\u006furce":"/x","cell":', "source"),
        (b'"window_s":', b'"node":"y","window_s":', "data.node"),
        (b'"window_s":', b'"x":[{"a":1},{"a":1,"b":2,"a":3}],"window_s":', "data.x[1].a"),
        (b'"cell":', rb'"note":"\":","source" :"/x","cell":', "source"),
    ],
)
def test_a_repeated_key_is_named(old: bytes, new: bytes, field: str) -> None:
    value = VALID.replace(old, new)
    read = rejected(value)
    assert (read.kind, read.field, read.reason) == ("malformed", field, "occurs twice")


@pytest.mark.parametrize(
    "value",
    [
        orjson.dumps(measured(), option=orjson.OPT_INDENT_2),
        VALID.replace(b'":', b'" : '),
        VALID.replace(b'"cell":', rb'"note":"a \":\" b : c","cell":'),
        VALID.replace(b'"cell":', b'"x":[{"a":1},{"a":1}],"cell":'),
    ],
)
def test_other_ways_to_write_the_same_are_taken(value: bytes) -> None:
    assert repeated_key(value, orjson.loads(value)) is None
    assert decode_event(value) == decode_event(VALID)


def test_too_large_is_refused_before_parsing() -> None:
    read = rejected(b"{" * (MAX_MESSAGE_BYTES + 1))
    assert read.kind == "oversized"
    assert str(MAX_MESSAGE_BYTES) in read.reason


def put(*path: str | int, value: object) -> Broken:
    def change(raw: Any) -> None:
        for key in path[:-1]:
            raw = raw[key]
        raw[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (put("data", "gpu_power_w", 1, value=-1), "data.gpu_power_w[1]", "greater than or equal"),
        (put("data", "gpu_power_w", 1, value="310"), "data.gpu_power_w[1]", "valid number"),
        (put("data", "gpu_power_w", 1, value=True), "data.gpu_power_w[1]", "valid number"),
        (put("data", "gpu_power_w", value=[1.0]), "data.gpu_power_w", "has 1, not 2"),
        (put("data", "gpu_power_w", value=[]), "data.gpu_power_w", "at least 1 item"),
        (put("data", "gpu_power_w", value=[0.0] * 65), "data.gpu_power_w", "at most 64"),
        (put("data", "gpu_memory_used_mib", 0, value=1.5), "data.gpu_memory_used_mib[0]", "intege"),
        (put("data", "gpu_memory_used_mib", 0, value=1e30), "data.gpu_memory_used_mib[0]", ""),
        (put("data", "node", value="a\n"), "data.node", "takes A to Z, a to z, digits"),
        (put("data", value=[]), "data", "got []"),
        (lambda raw: raw.pop("data"), "data", "missing"),
        (lambda raw: raw["data"].pop("node"), "data.node", "missing"),
        (lambda raw: raw.pop("type"), "type", "missing"),
        (lambda raw: raw.pop("specversion"), "specversion", "missing"),
        (put("type", value=7), "type", "string"),
        (put("type", value=["a"]), "type", "string"),
        (put("specversion", value="0.3"), "specversion", "1.0"),
        (put("time", value=1_760_000_000), "time", "datetime"),
        (put("time", value="1760000000"), "time", "should be a time such as"),
        (put("time", value="2026-01-31"), "time", "should be a time such as"),
        (put("time", value="2026-01-31T12:00:00"), "time", "should be a time such as"),
        (put("time", value="2026-02-30T12:00:00Z"), "time", "should be a time such as"),
        (put("expirytime", value="soon"), "expirytime", "should be a time such as"),
        (put("sequence", value=41), "sequence", "string"),
        (put("sequence", value="-1"), "sequence", "pattern"),
        (put("bootid", value=-1), "bootid", "greater than or equal"),
        (put("id", value=""), "id", "at least 1"),
    ],
)
def test_a_bad_field_is_named_with_a_reason(change: Broken, field: str, words: str) -> None:
    raw = measured()
    change(raw)
    read = rejected(orjson.dumps(raw))
    assert (read.kind, read.field) == ("invalid_field", field)
    assert words in read.reason
    assert len(read.reason) < 400


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tidegate.node.measured.v2", "newer_version"),
        ("tidegate.node.measured.v0", "unknown_type"),
        ("tidegate.node.measured.v01", "unknown_type"),
        ("tidegate.node.measured.v" + "9" * 6000, "unknown_type"),
        ("tidegate.node.measured", "unknown_type"),
        ("tidegate.node.dreamt.v1", "unknown_type"),
        ("", "unknown_type"),
        ("tidegate.gang.start.v1", "misplaced"),
        ("tidegate.journal.entry.v1", "misplaced"),
    ],
)
def test_types_that_cannot_be_read(name: str, kind: str) -> None:
    read = rejected(orjson.dumps({**measured(), "type": name}))
    assert (read.kind, read.field) == (kind, "type")
    assert "upgrade" in read.reason or kind != "newer_version"


def test_an_event_is_no_command() -> None:
    read = decode_command(VALID)
    assert isinstance(read, Rejected)
    assert read.kind == "misplaced"


def test_no_two_payloads_have_one_type() -> None:
    known = {payload.TYPE for payload in (*EVENTS, *COMMANDS)}
    assert len(known) == len(EVENTS) + len(COMMANDS)


def largest_program() -> Program:
    """One whose argument and image hold as much as may be, each character six bytes of JSON."""
    found, least, most = Program(argv=["x"]), 0, 64 * 1024
    while least < most:
        size = (least + most + 1) // 2
        try:
            argv = ["\x01" * min(size, 32_768), "\x01" * max(0, size - 32_768)]
            found = check_carried(Program(argv=argv, image="\x01" * (size // 2)))
            least = size
        except ValueError:
            most = size - 1
    assert least > 10_000
    return found


def test_the_largest_start_command_fits() -> None:
    gang = StartGang(
        job="j" * 128,
        epoch=2**53,
        placement=[
            NodeGpus(node=f"{n:0128}", gpus=list(range(MAX_GPUS_PER_NODE)))
            for n in range(MAX_NODES_PER_GANG)
        ],
        spec=GangSpec(
            model="m" * 128,
            total_steps=2**53,
            samples_per_step=1 / 3,
            rates=[RatePoint(gpus=n + 1, samples_per_s=1 / 3) for n in range(64)],
            checkpoint_mib=2**40,
            checkpoint_cost_s=1 / 3,
            start_cost_s=1 / 3,
            program=largest_program(),
            tenant="t" * 128,
            first_epoch=2**53,
        ),
        step=2**53,
    )
    sent = command(gang, id="c" * 192, source="/s", sequence=0, bootid=0, time_s=1.1, subject="j")
    value = encode(sent)
    assert len(value) <= MAX_MESSAGE_BYTES
    assert decode_command(value) == sent


def test_a_program_that_an_earlier_release_took_is_read_and_not_taken_again() -> None:
    """An agent that held it did not start again, which ended what it ran."""
    program = Program(argv=["x", "\x01" * 30_000])
    assert Program.model_validate_json(program.model_dump_json()) == program
    told = submitted("j").model_dump(exclude_defaults=True)
    with pytest.raises(ValidationError, match="program takes 180"):
        JobSubmitted.model_validate(told | {"program": program})


def test_what_no_reader_would_take_is_not_written() -> None:
    told = CommandAcknowledged.model_construct(command="c", outcome="done", reason="x" * 10**6)
    with pytest.raises(ValueError, match="the limit is"):
        encode(said(told))


@pytest.mark.parametrize("kind", [*EVENTS, *COMMANDS, GangSpec, NodeGpus, RatePoint])
def test_what_is_made_without_a_check_is_what_pydantic_would_make(kind: type[Strict]) -> None:
    values = {name: object() for name, part in kind.model_fields.items() if part.is_required()}
    made = kind.model_construct(None, **dict(reversed(values.items())))
    usual = super(Strict, kind).model_construct(None, **values)
    assert list(vars(made).items()) == list(vars(usual).items())
    assert made.model_fields_set == usual.model_fields_set


def test_numbers_of_numpy_can_be_written() -> None:
    sent = said(load().model_copy(update={"request_rate_per_s": np.float64(2.5)}))
    assert decode_event(encode(sent)) == sent


def holding(gpus: int, *held: list[int]) -> NodeBorn:
    return node_born(
        gpus=gpus, held=[GangHeld(job="j", epoch=1, gpus=some, step=0) for some in held]
    )


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: NodeGpus(node="n", gpus=[1, 1]), "each GPU once"),
        (lambda: progressed(step=4, checkpoint_step=5), "must not be after step 4"),
        (lambda: holding(2, [0, 2]), "names GPU 2, the node has 2"),
        (lambda: holding(4, [0], [0]), "two gangs hold the same GPU"),
    ],
)
def test_fields_agree_with_each_other(build: Callable[[], object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        build()


def test_the_benchmark_runs() -> None:
    rates = benchmark.run(0.02)
    assert min(rates.values()) > 0
    assert {name.split("_")[0] for name in rates} == {"decode", "encode", "verify"}
