"""One checkpoint store of several cells, whose jobs may have the same names."""

from pathlib import Path
from uuid import uuid4

import pytest

from runtime.checkpoints.store import CheckpointStore


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid4()}/store"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_text("weights")
    return path


def committed(store: CheckpointStore, job: str = "train") -> list[tuple[int, int]]:
    return [(one.epoch, one.step) for one in store.committed(job)]


def test_jobs_of_one_name_in_two_cells_keep_what_is_theirs(
    url: str, source: Path, tmp_path: Path
) -> None:
    west, east = (CheckpointStore(url, cell=cell) for cell in ("west", "east"))
    assert west.commit("train", 5, 100, source, 1.0).uri == f"{url}/train/5-100"
    source.write_text("others")
    assert east.commit("train", 6, 100, source, 1.0).uri == f"{url}/@east/train/6-100"
    east.commit("train", 6, 150, source, 1.0)
    east.retain("train", 1)
    assert (committed(west), committed(east)) == ([(5, 100)], [(6, 150)])
    found = CheckpointStore(url, cell="west").find("train", 100)
    assert found is not None
    assert west.fetch(found, tmp_path / "into").read_text() == "weights"
    assert east.find("train", 100) is None
    for store, epoch in ((west, 5), (east, 6)):
        store.keep_output("train", epoch, "log.txt", [b"x"])
        assert store.outputs_kept("train", epoch).endswith(f"train/outputs/{epoch}")
        store.keep_log("train", epoch, 0, str(epoch).encode())
    (said, at), others = west.kept_log("train", 0) or (b"", ""), east.kept_log("train", 0)
    assert (said, at) == (b"5", f"{url}/train/failed-5-rank-0.log")
    assert others is not None
    assert others[0] == b"6"
    assert west._filesystem.entries("train/outputs").keys() == {"5"}


def test_what_a_release_before_has_stored_is_the_cells_that_goes_on_with_it(
    url: str, source: Path
) -> None:
    CheckpointStore(url).commit("train", 5, 100, source, 1.0)
    west = CheckpointStore(url, cell="west")
    assert west.find("train", 100) is not None
    west.commit("train", 6, 200, source, 1.0)
    assert committed(west) == [(6, 200), (5, 100)]
    assert committed(CheckpointStore(url)) == [(6, 200), (5, 100)], "so does the release before"
    assert committed(CheckpointStore(url, cell="east")) == []


def test_a_job_stays_in_its_place_when_that_of_the_other_cell_is_cleared_away(
    url: str, source: Path
) -> None:
    CheckpointStore(url, cell="west").commit("train", 5, 100, source, 1.0)
    CheckpointStore(url, cell="east").commit("train", 6, 100, source, 1.0)
    CheckpointStore(url)._filesystem.remove_folder("train")
    assert committed(CheckpointStore(url, cell="east")) == [(6, 100)]
