"""Reading what a worker wrote: offsets do not move, and nothing but plain files is read."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from runtime.executors.log_files import LogFiles
from runtime.executors.logs import RotatingLog
from runtime.logs import LogPiece, NoLog

WHOLE = bytes(range(256)) * 8


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "j" / "3" / "logs"
    folder.mkdir(parents=True)
    return folder


def read(root: Path, offset: int = 0, size: int = 1 << 20, rank: int = 0) -> LogPiece:
    found = LogFiles(root).read("j", 3, rank, offset, size)
    assert isinstance(found, LogPiece), found
    return found


def why(root: Path, job: str = "j", epoch: int = 3, rank: int = 0) -> str:
    found = LogFiles(root).read(job, epoch, rank, 0, 10)
    assert isinstance(found, NoLog)
    return found.why


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(1, 25),
    st.integers(1, 4),
    st.integers(0, 500),
    st.integers(1, 60),
)
def test_an_offset_names_the_same_byte_whatever_was_rotated_away(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    max_bytes: int,
    files: int,
    offset: int,
    size: int,
) -> None:
    root = tmp_path_factory.mktemp("logs")
    folder = root / "runs" / "j" / "3" / "logs"
    folder.mkdir(parents=True)
    log, said = RotatingLog(folder / "rank-0.log", max_bytes, files), 0
    for length in lengths:
        log.write(WHOLE[said : said + length])
        said += length
    log.close()
    found = read(root, offset, size)
    assert found.end == said
    kept = [path for path in folder.iterdir() if path.suffix != ".dropped"]
    begin = said - sum(path.stat().st_size for path in kept)
    first = max(offset, begin)
    assert found.content == WHOLE[first:said][:size]
    assert (found.offset, found.skipped) == (min(first, said), max(0, begin - offset))
    assert read(root, -7).content == WHOLE[max(begin, said - 7) : said]


def test_the_newest_run_that_the_reader_may_know_is_read(tmp_path: Path, logs: Path) -> None:
    (logs / "rank-0.log").write_text("third")
    later = tmp_path / "runs" / "j" / "4" / "logs"
    later.mkdir(parents=True)
    (later / "rank-0.log").write_text("fourth")
    assert read(tmp_path).content == b"third"
    found = LogFiles(tmp_path).read("j", 9, 0, 0, 100)
    assert isinstance(found, LogPiece)
    assert (found.epoch, found.content, found.ended) == (4, b"fourth", False)
    (later.parent / "exit.json").write_text("{}")
    found = LogFiles(tmp_path).read("j", 9, 0, 0, 100)
    assert isinstance(found, LogPiece)
    assert found.ended


def test_after_a_resize_a_rank_is_its_newest_worker(tmp_path: Path, logs: Path) -> None:
    (logs / "rank-1.log").write_text("first")
    (logs / "rank-1-since-9.log").write_text("newest")
    (logs / "rank-1-since-7.log").write_text("between")
    assert read(tmp_path, rank=1).content == b"newest"


def test_links_pipes_and_folders_are_not_read(tmp_path: Path, logs: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the agent's key")
    (logs / "rank-0.log").symlink_to(secret)
    os.mkfifo(logs / "rank-1.log")
    (logs / "rank-2.log").mkdir()
    (logs / "rank-3.log").write_text("new")
    (logs / "rank-3.log.1").symlink_to(secret)
    for rank in range(3):
        assert "no worker of rank" in why(tmp_path, rank=rank)
    assert read(tmp_path, rank=3).content == b"new"
    outside = tmp_path / "outside"
    logs.rename(outside)
    logs.symlink_to(outside)
    assert "no worker of rank" in why(tmp_path, rank=3)


def test_what_is_not_there_is_said(tmp_path: Path, logs: Path) -> None:
    assert why(tmp_path, rank=5) == "its newest run here has no worker of rank 5"
    assert "cleared away" in why(tmp_path, job="k")
    logs.rmdir()
    assert why(tmp_path) == "none of its workers has been started here yet"


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_run_that_ended_before_its_workers_came_says_where_the_reason_is(
    tmp_path: Path, logs: Path, *, has_folder: bool
) -> None:
    (logs.parent / "exit.json").write_text("{}")
    if not has_folder:
        logs.rmdir()
    assert why(tmp_path) == (
        "its run here ended before a worker was started, so nothing was written; "
        "`tidegate why` says why it ended"
    )
    earlier = tmp_path / "runs" / "j" / "2" / "logs"
    earlier.mkdir(parents=True)
    (earlier / "rank-0.log").write_text("second")
    assert read(tmp_path).content == b"second"


def test_no_log_of_an_earlier_job_of_the_name_is_read(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "j" / "3" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_bytes(b"another tenant's")
    assert isinstance(LogFiles(tmp_path).read("j", 9, 0, 0, 100), LogPiece)
    assert isinstance(LogFiles(tmp_path).read("j", 9, 0, 0, 100, first_epoch=5), NoLog)
