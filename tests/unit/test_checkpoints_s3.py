"""The checkpoint store on an S3 server, moto's, over HTTP."""

import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from runtime.checkpoints.filesystem import PARTS_AT_ONCE
from runtime.checkpoints.store import CheckpointError, CheckpointStore, Damaged, Transfer

# Its packages warn about themselves.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client that knows another way in than the store, with one bucket."""
    s3 = ThreadedMotoServer("127.0.0.1", 0)
    s3.start()
    host, port = s3.get_host_and_port()
    url = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST")).close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    client = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    client.mkdir("bucket")
    try:
        yield client
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        s3.stop()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "step-10"
    (folder / "empty").mkdir(parents=True)
    (folder / "model.bin").write_bytes(os.urandom(10_000_000))
    (folder / "state #1?.json").write_bytes(b"{}")
    (folder / "none").write_bytes(b"")
    return folder


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/some/folder"])
def test_a_checkpoint_goes_there_and_back(
    url: str, bucket: Any, source: Path, tmp_path: Path
) -> None:
    store = CheckpointStore(url, part_bytes=3_000_000)
    written_s = store.probe()
    assert written_s is not None
    assert abs(written_s - time.time()) < 120, "the store's clock, which is this machine's"
    assert store.find("job:1", 10) is None
    for epoch, step in ((1, 10), (2, 10), (2, 20)):
        store.commit("job:1", epoch, step, source, 1.0)
    found = store.find("job:1", 10)
    assert found is not None
    assert found.uri == f"{url}/job:1/2-10"
    fetched = store.fetch(found, tmp_path / "into")
    assert (fetched / "model.bin").read_bytes() == (source / "model.bin").read_bytes()
    assert (fetched / "none").read_bytes() == b""
    assert (fetched / "empty").is_dir()
    assert store.retain("job:1", 1) == [f"{url}/job:1/2-10", f"{url}/job:1/1-10"]
    assert [each.step for each in store.committed("job:1")] == [20]
    left = bucket.find(url.removeprefix("s3://"))
    assert len(left) == 4 + 1 + 1  # model.bin in four parts, the state, the manifest


def test_an_interrupted_commit_goes_on(bucket: Any, source: Path) -> None:
    store, stop = CheckpointStore("s3://bucket/x", part_bytes=1_000_000), threading.Event()
    with pytest.raises(CheckpointError, match="stopped"):
        store.commit("job-1", 1, 10, source, 1.0, lambda _: stop.set(), stop)
    assert store.find("job-1", 10) is None
    told: list[Transfer] = []
    again = CheckpointStore("s3://bucket/x", part_bytes=1_000_000, verify="full")
    again.commit("job-1", 1, 10, source, 1.0, told.append)
    had = told[-1].total_bytes - told[-1].moved_bytes
    assert 1_000_000 <= had <= PARTS_AT_ONCE * 1_000_000, "no part begins after a stop"


def test_damage_is_noticed(bucket: Any, source: Path, tmp_path: Path) -> None:
    store = CheckpointStore("s3://bucket", part_bytes=3_000_000)
    checkpoint = store.commit("job-1", 1, 10, source, 1.0)
    part = f"bucket/job-1/1-10/{checkpoint.manifest.files[0].parts[2]}"
    bucket.pipe_file(part, bytes(3_000_000))
    with pytest.raises(Damaged, match=part):
        store.fetch(checkpoint, tmp_path / "into")
    bucket.rm_file(part)
    assert CheckpointStore("s3://bucket").find("job-1", 10) is None
    assert store.commit("job-1", 1, 10, source, 1.0) == checkpoint
    assert store.find("job-1", 10) == checkpoint


def test_a_missing_bucket_is_said_and_not_made(bucket: Any, source: Path) -> None:
    store = CheckpointStore("s3://nothing/x")
    commit = partial(store.commit, "job-1", 1, 10, source, 1.0)
    for deed in (partial(store.find, "job-1", 10), commit, store.probe):
        with pytest.raises(CheckpointError, match="no such bucket"):
            deed()
    assert bucket.ls("") == ["bucket"]
    with pytest.raises(CheckpointError, match="names no bucket"):
        CheckpointStore("s3://")


def test_a_server_that_is_gone_is_said(
    bucket: Any, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = CheckpointStore("s3://bucket/x")
    with pytest.raises(CheckpointError, match="try again"):
        store.commit("job-1", 1, 10, source, 1.0)
