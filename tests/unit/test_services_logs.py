"""What operators read: an object a line, decisions with their cause, libraries in the same form."""

import json
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from scheduler.core import facts
from scheduler.core.stimuli import Cause, Decision, Stimulus, TimePassed
from services.decisions import tell_decisions
from services.logs import configure
from services.sections import LogSection

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_one_object_a_line_with_who_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    log = configure(LogSection(), role="scheduler", name="s1")
    log.bind(cell="west").info("leads", epoch=3)
    log.debug("not said")
    logging.getLogger("asyncio").warning("a callback\nis slow")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)  # pytest and the block above have their own hooks
        warnings.warn("old", stacklevel=1)
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("a bug")
    said = lines(capsys)
    assert (len(said), said[0]["event"], said[3]["event"]) == (4, "leads", "a bug")
    assert said[1]["event"].startswith("a callback")
    assert "old" in said[2]["event"]
    assert {(line["role"], line["name"]) for line in said} == {("scheduler", "s1")}
    assert (said[0]["cell"], said[0]["epoch"], said[0]["level"]) == ("west", 3, "info")
    assert said[1]["logger"] == "asyncio"
    assert "ValueError: broken" in said[3]["exception"]


def test_what_json_has_no_number_for_is_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    log = configure(LogSection(), role="scheduler", limit_s=math.inf)  # type: ignore[arg-type]
    log.info("fits", loss=math.nan, bounds=(-math.inf, 1.0), by={("a", 1): [math.inf, 2]}, held=0.5)

    def refused(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    said = json.loads(capsys.readouterr().err, parse_constant=refused)
    assert (said["loss"], said["limit_s"], said["held"]) == ("nan", "inf", 0.5)
    assert (said["bounds"], said["by"]) == (["-inf", 1.0], {"('a', 1)": ["inf", 2]})


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log = configure(LogSection(format="text"), role="bridge", name="b1")
    log.info("started", port=1, reasons=["no 100% sure word"], of=Path("a b"))
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("a callback of %s", "theirs")
    line, theirs, *raised = capsys.readouterr().err.splitlines()
    fields = "role=bridge name=b1 port=1 reasons=['no 100% sure word'] of=PosixPath('a b')"
    assert line.partition("Z ")[2] == f"[info] tidegate: started {fields}"
    assert theirs.endswith("[error] asyncio: a callback of theirs role=bridge name=b1")
    assert raised[-1] == "ValueError: broken"


def test_words_of_others_are_one_line_of_text_whatever_they_hold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As what `squeue` or a proxy said: it could write lines as if the service had."""
    configure(LogSection(format="text"), role="bridge", name="b1")
    theirs = "it's\n2026-01-01T00:00:00Z [info] tidegate: all is well\x1b[2J\u202e"
    logging.getLogger("cloud").warning("Slurm does not answer: %s", theirs)
    (line,) = capsys.readouterr().err.splitlines()
    told = r"it's\n2026-01-01T00:00:00Z [info] tidegate: all is well\x1b[2J\u202e"
    assert line.endswith(f"[warning] cloud: Slurm does not answer: {told} role=bridge name=b1")


def test_decisions_say_for_whom_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    log = configure(LogSection(), role="scheduler", name="s1")
    tell = tell_decisions(log)
    starting = facts.GangStarting("j1", 7, "train", {"n0": [0]}, 0)
    routine = facts.CycleRan("tide", 60.0)
    cause = Cause("/agents/infer", 5, 9)
    tell(Stimulus(1.0, TimePassed(), cause), Decision((starting, routine)))
    tell(Stimulus(1.0, TimePassed()), Decision((facts.GangStopping("j1", "preempted"),)))
    tell(Stimulus(1.0, TimePassed()), Decision((facts.GangStopping("j2", "completed"),)))
    first, second = lines(capsys)
    assert (first["event"], first["job"], first["epoch"]) == ("gang starting", "j1", 7)
    assert first["cause"] == "infer-5-9", "the id of the envelope"
    assert (second["event"], second["job"]) == ("gang preempted", "j1")
    assert second["cause"] == "scheduler"


def test_everything_at_debug(capsys: pytest.CaptureFixture[str]) -> None:
    tell = tell_decisions(configure(LogSection(level="debug"), role="scheduler", name="s1"))
    tell(Stimulus(1.0, TimePassed()), Decision((facts.CycleRan("tide", 60.0),)))
    assert [line["event"] for line in lines(capsys)] == ["CycleRan"]


def test_a_brokers_client_is_heard_at_debug_only(capsys: pytest.CaptureFixture[str]) -> None:
    log = configure(LogSection(), role="bridge", name="b1")
    logging.getLogger("aiokafka.conn").error("cannot connect")
    logging.getLogger("mqtt").critical("disconnected")
    log.warning("not ready")
    assert [line["event"] for line in lines(capsys)] == ["not ready"]


def test_what_a_library_repeats_is_said_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    log = configure(LogSection(level="debug"), role="bridge", name="b1")
    for port in range(100):
        logging.getLogger("aiokafka.conn").error("cannot connect to %d", port)
        log.info("ours", port=port)
    logging.getLogger("aiokafka.conn").error("another thing")
    said = [line["event"] for line in lines(capsys)]
    assert said.count("ours") == 100
    assert [event for event in said if event != "ours"] == ["cannot connect to 0", "another thing"]


def test_what_repeats_itself_is_said_again_after_the_clock_was_set_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(LogSection(level="debug"))
    moments = iter((1e9, 1e9 + 5.0, 1e9 - 86_400.0, 1e9 - 86_395.0))
    record = logging.LogRecord

    def made(*args: Any, **more: Any) -> logging.LogRecord:
        said = record(*args, **more)
        if said.name == "mqtt":
            said.created = next(moments)
        return said

    monkeypatch.setattr(logging, "_logRecordFactory", made)
    for _ in range(4):
        logging.getLogger("mqtt").warning("no broker")
    assert len(lines(capsys)) == 2
