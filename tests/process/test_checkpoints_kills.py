"""Commits and fetches killed by SIGKILL at random moments: nothing half is ever taken for good."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime.checkpoints.store import CheckpointStore

MIB = 2**20
PART_BYTES = 4 * MIB
PARTS = 16
#: What is there and not told of yet: three parts beside one that moves, and three that were done
#: before one ahead of them.
UNTOLD_BYTES = 6 * PART_BYTES
SEED = int(os.environ.get("TIDEGATE_SEED", "1"))

CHILD = f"""
import sys
from pathlib import Path
from runtime.checkpoints.store import CheckpointStore

def tell(transfer):
    print(transfer.done_bytes, transfer.moved_bytes, flush=True)

verb, url, place = sys.argv[1:]
store = CheckpointStore(url, part_bytes={PART_BYTES})
if verb == "commit":
    store.commit("job-1", 1, 10, Path(place), 1.0, tell)
else:
    store.fetch(store.find("job-1", 10), Path(place), tell)
"""


@pytest.fixture(scope="module")
def data() -> bytes:
    return np.random.default_rng(SEED).bytes(PARTS * PART_BYTES)


@pytest.fixture
def source(tmp_path: Path, data: bytes) -> Path:
    """A checkpoint of 64 MiB in two files; parts end in the middle of both."""
    folder = tmp_path / "step-10"
    folder.mkdir()
    cut = len(data) // 2 - PART_BYTES // 2
    (folder / "a.bin").write_bytes(data[:cut])
    (folder / "b.bin").write_bytes(data[cut:])
    return folder


def killed_after(parts: int, delay_s: float, *arguments: str) -> list[tuple[int, int]]:
    """Run the child, kill it so long after it told of so many parts; give all that it told."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        told = []
        for line in child.stdout:
            told.append(line)
            if len(told) == parts:
                time.sleep(delay_s)
                child.kill()
    return [(int(done), int(moved)) for done, moved in map(str.split, told)]


def moments() -> Iterator[tuple[int, float]]:
    """When to kill: further on each time, at a random moment within the part that follows."""
    chance = np.random.default_rng(SEED)
    for parts in (1, 4, 8, 12, 17):
        yield parts, float(chance.uniform(0.0, 0.03))


def found_there(told: list[tuple[int, int]]) -> int:
    """Bytes that a run found there, of which it told before it was killed.

    Parts go side by side, so it may have moved some before it told of all that it found.
    """
    return max((done - moved for done, moved in told), default=0)


@pytest.mark.slow
def test_a_commit_killed_again_and_again_ends_good(source: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    store = CheckpointStore(url)
    arrived = 0
    for parts, delay_s in moments():
        told = killed_after(parts, delay_s, "commit", url, str(source))
        # Nothing is sent twice.
        assert found_there(told) >= min(arrived, told[-1][0]) - UNTOLD_BYTES
        assert told[-1][1] <= PARTS * PART_BYTES - arrived
        arrived = max(arrived, told[-1][0])
        found = store.find("job-1", 10)
        if found is not None:  # it was done before the kill
            assert arrived == found.size_bytes
            store.fetch(found, tmp_path / f"after-{parts}")
    told = killed_after(0, 0.0, "commit", url, str(source))
    assert told[-1][0] == PARTS * PART_BYTES
    assert told[-1][1] <= PARTS * PART_BYTES - arrived
    found = store.find("job-1", 10)
    assert found is not None
    fetched = store.fetch(found, tmp_path / "into")
    for name in ("a.bin", "b.bin"):
        assert (fetched / name).read_bytes() == (source / name).read_bytes()
    # Half-written objects of the killed ones are gone: 17 parts and the manifest.
    assert len(list((tmp_path / "store" / "job-1" / "1-10").iterdir())) == PARTS + 2


@pytest.mark.slow
def test_a_fetch_killed_again_and_again_ends_good(source: Path, tmp_path: Path) -> None:
    url, into = f"file://{tmp_path}/store", tmp_path / "into"
    CheckpointStore(url, part_bytes=PART_BYTES).commit("job-1", 1, 10, source, 1.0)
    whole = into / "1-10" / "step-10"
    arrived = 0
    for parts, delay_s in moments():
        told = killed_after(parts, delay_s, "fetch", url, str(into))
        # Nothing is fetched twice.
        assert found_there(told) >= min(arrived, told[-1][0]) - UNTOLD_BYTES
        assert told[-1][1] <= PARTS * PART_BYTES - arrived
        arrived = max(arrived, told[-1][0])
        if whole.exists():
            assert arrived == PARTS * PART_BYTES
    told = killed_after(0, 0.0, "fetch", url, str(into))
    assert told[-1][0] == PARTS * PART_BYTES
    assert told[-1][1] <= PARTS * PART_BYTES - arrived
    for name in ("a.bin", "b.bin"):
        assert (whole / name).read_bytes() == (source / name).read_bytes()
    assert [each.name for each in into.iterdir()] == ["1-10"]
