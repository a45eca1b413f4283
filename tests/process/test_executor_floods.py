"""A job that says more than anybody can read: nobody else waits for it, and its end counts."""

import time
from pathlib import Path

from runtime.core import GangCompleted, GangStarted
from runtime.executors.progress import ProgressFile
from schemas.events import JobProgressed
from tests.builders import progressed
from tests.patience import wait_until
from tests.workers import bench, shell

FLOOD = """
yes '{}' | head -c 3M >> $TIDEGATE_PROGRESS
echo '{"step": 9}' >> $TIDEGATE_PROGRESS
"""


def _follow(tmp_path: Path, text: bytes) -> ProgressFile:
    path = tmp_path / "progress.jsonl"
    path.write_bytes(text)
    file = ProgressFile(path, tmp_path / "checkpoints")
    file.read(1.0)
    return file


def test_a_writer_that_outruns_its_reader_is_read_piece_by_piece_and_no_further_than_its_end(
    tmp_path: Path,
) -> None:
    file = _follow(tmp_path, b'{"step": 1}\n' * 100_000 + b'{"step": 2}\n')
    assert (file.step, file.behind, file.caught_up) == (1, True, False)
    path = tmp_path / "progress.jsonl"
    readings = 0
    while file.step != 2:
        with path.open("ab") as more:
            more.write(b"{}\n" * 25_000)
        file.read(2.0)
        readings += 1
    assert 10 < readings < 50, "one piece each"
    assert file.behind
    assert file.caught_up
    assert file.step_interval_s is None, "nobody knows when that was said"
    assert not file.is_over()
    left = file.pieces_left
    while not file.is_over():
        with path.open("ab") as more:
            more.write(b'{"step": 3}\n' * 10_000)
        file.read(3.0)
        left -= 1
    assert (left, file.step) == (0, 2), "what it held when its writers were gone, and no more"


def test_of_an_endless_rest_the_last_part_is_read(tmp_path: Path) -> None:
    file = _follow(tmp_path, b'{"step": 1}\n')
    with (tmp_path / "progress.jsonl").open("r+b") as more:
        more.truncate(2**40)
    assert not file.is_over()
    assert file.faults == {"unread": 1}
    assert file.pieces_left < 20_000


def test_of_an_endless_rest_the_last_part_is_read_while_the_job_runs_too(tmp_path: Path) -> None:
    file = _follow(tmp_path, b'{"step": 1}\n')
    with (tmp_path / "progress.jsonl").open("r+b") as more:
        more.truncate(2**40)
        more.seek(0, 2)
        more.write(b'\n{"step": 2}\n')
    readings = 1
    file.read(2.0)
    while file.behind:
        file.read(2.0)
        readings += 1
    assert readings < 20_000
    assert (file.step, file.faults["unread"]) == (2, 1)


def test_a_flood_of_words_keeps_nobody_waiting_and_the_last_of_them_counts(tmp_path: Path) -> None:
    with bench(tmp_path) as jig:
        jig.start(shell(FLOOD), total_steps=9)
        exit_file = jig.run() / "exit.json"
        wait_until(exit_file.exists)
        jig.look()
        jig.look()
        assert not jig.all(GangCompleted), "its end is judged by all that it said"
        due_s = jig.executor.next_due_s()
        assert due_s is not None
        assert due_s <= time.time(), "the rest is read at once"
        looks = 0
        while not jig.all(GangCompleted):
            jig.look()
            looks += 1
        assert looks > 20, "piece by piece"
    assert [said.step for said in jig.all(GangStarted)] == [9]


def test_a_rate_that_nobody_has_is_one_that_can_be_reported(tmp_path: Path) -> None:
    def say(text: bytes) -> None:
        with (tmp_path / "progress.jsonl").open("ab") as more:
            more.write(text)

    file = _follow(tmp_path, b'{"step": 1}\n')
    say(b'{"step": 2}\n')
    file.read(2.0)
    say(b'{"step": 9007199254740992}\n')
    file.read(2.1)
    by_steps = file.samples_per_s(1e9)
    say(b'{"step_s": 1e-7}\n')
    file.read(3.0)
    file.pace(1e9)
    for rate in (by_steps, file.samples_per_s(1e9)):
        JobProgressed.model_validate({**progressed(1).model_dump(), "samples_per_s": rate})
