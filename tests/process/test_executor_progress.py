"""What jobs write of their progress is read with patience, and wrong lines are counted."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from runtime.core import Pace
from runtime.executors.progress import PACE, AnnouncedCheckpoint, ProgressFile
from schemas.events import JobProgressed
from tests.builders import progressed


def _follow(tmp_path: Path, text: bytes) -> tuple[ProgressFile, list[AnnouncedCheckpoint]]:
    path = tmp_path / "progress.jsonl"
    path.write_bytes(text)
    file = ProgressFile(path, tmp_path / "checkpoints")
    return file, file.read(1.0)


def _say(file: ProgressFile, text: bytes, now_s: float = 2.0) -> list[AnnouncedCheckpoint]:
    with file._path.open("ab") as more:
        more.write(text)
    return file.read(now_s)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"nonsense", "not_json"),
        (b"[1, 2]", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b"[" * 30_000, "not_json"),
        (b'{"step": ' + b"9" * 5000 + b"}", "not_json"),
        (b'{"step": ' + b"9" * 400 + b"}", "bad_step"),
        (b'{"samples_per_s": 1' + b"0" * 400 + b"}", "bad_rate"),
        (b'{"step": -1}', "bad_step"),
        (b'{"step": NaN}', "bad_step"),
        (b'{"step": 1e400}', "bad_step"),
        (b'{"step": 1.5}', "bad_step"),
        (b'{"step": true}', "bad_step"),
        (b'{"step": "7"}', "bad_step"),
        (b'{"step": 3}', "step_back"),
        (b'{"samples_per_s": -1}', "bad_rate"),
        (b'{"samples_per_s": Infinity}', "bad_rate"),
        (b'{"step": 6, "checkpoint": "../../etc"}', "bad_checkpoint"),
        (b'{"step": 6, "checkpoint": "/etc"}', "bad_checkpoint"),
        (b'{"step": 6, "checkpoint": ""}', "bad_checkpoint"),
        (b'{"step": 6, "checkpoint": 6}', "bad_checkpoint"),
        (b'{"checkpoint": "x"}', "bad_checkpoint"),
        (b"x" * 70_000, "too_long"),
        (b"x" * 3_000_000, "too_long"),
    ],
)
def test_a_bad_line_is_counted_and_the_next_one_counts(
    tmp_path: Path, line: bytes, fault: str
) -> None:
    text = b'{"step": 5}\n' + line + b'\n{"step": 7, "loss": NaN, "checkpoint": "c"}\n'
    file, announced = _follow(tmp_path, text)
    while file.behind:
        announced += file.read(1.0)
    assert dict(file.faults) == {fault: 1}
    assert file.step == 7
    assert announced == [AnnouncedCheckpoint(7, tmp_path / "checkpoints" / "c", None)]


def test_a_line_that_is_being_written_waits_for_its_end(tmp_path: Path) -> None:
    file, _ = _follow(tmp_path, b'{"step": 5}\n{"st')
    assert file.step == 5
    announced = _say(file, b'ep": 6, "checkpoint": "c", "pause_s": 1.5}\n')
    assert announced == [AnnouncedCheckpoint(6, tmp_path / "checkpoints" / "c", 1.5)]
    assert not file.faults


def test_a_file_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    file, _ = _follow(tmp_path, b'{"step": 5}\n{"step": 6}\n')
    (tmp_path / "progress.jsonl").write_bytes(b'{"step": 8}\n')
    file.read(2.0)
    assert (file.step, file.faults["cut"]) == (8, 1)


def test_the_rate_is_what_the_job_says_or_what_its_steps_show(tmp_path: Path) -> None:
    file, _ = _follow(tmp_path, b'{"step": 10}\n')
    assert file.samples_per_s(8) is None
    _say(file, b'{"step": 30}\n', 11.0)
    assert file.samples_per_s(8) == 16.0
    _say(file, b'{"samples_per_s": 12.5}\n', 12.0)
    assert file.samples_per_s(8) == 12.5


def test_the_pace_is_a_mean_of_what_was_said_since_it_was_asked(tmp_path: Path) -> None:
    def say(*lines: str) -> Pace:
        _say(file, "".join(f"{line}\n" for line in lines).encode())
        return file.pace(8)

    file, _ = _follow(tmp_path, b'{"step": 1, "step_s": 99}\n')
    assert file.pace(8) == Pace(), "what was there before was said to somebody else"
    assert say('{"samples_per_s": 4}', '{"samples_per_s": 8}') == Pace(step_s=1.5)
    assert say('{"samples_per_s": 4, "samples_per_step": 16}') == Pace(16.0, 4.0)
    said = say(
        '{"step_s": 1, "pass_s": 0.5, "gradient_noise": 10, "samples_per_s": 1}',
        '{"step_s": 2, "pass_s": 0.7, "gradient_noise": 30}',
    )
    assert said == Pace(None, 1.5, 0.6, 20.0)
    assert say('{"step_s": 7}', '{"generation": 2}', '{"step_s": 3}') == Pace(step_s=3.0)
    assert not file.faults
    bad = ("0", "-1", "NaN", "1e300", '"fast"', "true", "1e400", "null")
    assert say(*(f'{{"step_s": {value}}}' for value in bad)) == Pace()
    assert dict(file.faults) == {"bad_pace": len(bad)}
    assert say('{"samples_per_s": 1e-320}') == Pace()
    for edge in (0, 1):  # what is let through, the schema must let through, or the agent ends
        line = {name: bounds[edge] for name, bounds in PACE.items()}
        word = progressed(1).model_dump()
        JobProgressed.model_validate(word | asdict(say(json.dumps(line))))


def test_figures_of_its_own_are_the_newest_that_can_be_reported(tmp_path: Path) -> None:
    def say(line: str) -> dict[str, float]:
        _say(file, f"{line}\n".encode())
        return file.metrics

    file, _ = _follow(tmp_path, b'{"step": 1, "metrics": {"loss": 3}}\n')
    assert file.metrics == {"loss": 3.0}
    assert say('{"step": 2, "metrics": {"loss": 2.5, "val/accuracy": 0.5}}') == {
        "loss": 2.5,
        "val/accuracy": 0.5,
    }
    assert say('{"metrics": {"loss": 2}}') == {"loss": 2.0, "val/accuracy": 0.5}
    assert (file.step, dict(file.faults)) == (2, {})
    bad = ('"a"', "7", "null", '{"loss": NaN}', '{"<b>": 1}', '{"val/accuracy": "high"}')
    for line in bad:
        say(f'{{"step": 3, "metrics": {line}}}')
    assert file.metrics == {}, "what is no number any more is not reported as what it was"
    assert (file.step, dict(file.faults)) == (3, {"bad_metric": len(bad)})
    say(json.dumps({"step": 4, "metrics": {f"m{n}": n for n in range(20)}}))
    assert file.metrics == {f"m{n}": float(n) for n in range(8)}
    assert (file.step, file.faults["bad_metric"]) == (4, len(bad) + 12)
    say('{"metrics": {"m0": 1' + "0" * 400 + ', "m1": 1e300}}')
    assert file.metrics["m1"] == 1e300
    # What is let through, the schema must let through, or the agent ends.
    JobProgressed.model_validate(progressed(1).model_dump() | {"metrics": file.metrics})
