"""What a job runs: which programs are refused, and that one reaches the agent unchanged."""

import orjson
import pytest
from pydantic import ValidationError

from scheduler.core.record import stimulus_from_dict, stimulus_to_dict
from scheduler.core.stimuli import Stimulus
from schemas.commands import StartGang
from schemas.events import JobSubmitted
from schemas.programs import MAX_PROGRAM_BYTES, Program
from tests.builders import Cell, node_born, submitted, target

ARGV = ["python", "train.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("argv", [], "at least 1"),
        ("argv", [""], "the command is empty"),
        ("argv", ["a\0b"], "match pattern"),
        ("argv", ["x"] * 257, "at most 256"),
        ("argv", ["x" * 32_000, "y" * 32_000, "z" * 3_000], f"at most {MAX_PROGRAM_BYTES}"),
        ("env", {"1A": "x"}, "match pattern"),
        ("env", {"A=B": "x"}, "match pattern"),
        ("env", {"A": "x\0"}, "match pattern"),
        ("workdir", "", "at least 1"),
        ("workers", "per_rack", "per_node"),
        ("saves", "never", "on_signal"),
        ("resize", "magic", "in_place"),
    ],
)
def test_what_cannot_be_run_is_refused(field: str, value: object, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Program.model_validate({"argv": ARGV, field: value})


@pytest.mark.parametrize("program", [None, Program(argv=ARGV, env={"A": "1"}, resize="in_place")])
def test_a_start_command_carries_the_program_that_was_submitted(program: Program | None) -> None:
    cell = Cell()
    cell.feed(node_born())
    cell.feed(submitted().model_copy(update={"program": program}))
    cell.plan({"j0": target(n0=2)})
    (start,) = cell.sent(StartGang)
    assert start.spec.program == program


def test_a_program_that_an_earlier_release_took_is_read_where_a_replay_finds_it() -> None:
    """It stands in the journal, recovery and agents read it, and a replay refused the log."""
    large = Program(argv=ARGV, image="\x01" * 30_000)
    taken = submitted().model_copy(update={"program": large})
    written = orjson.dumps(stimulus_to_dict(Stimulus(1.0, taken)))
    assert stimulus_from_dict(orjson.loads(written)) == Stimulus(1.0, taken)
    with pytest.raises(ValidationError, match="the whole program takes"):
        JobSubmitted.model_validate(taken.model_dump())
