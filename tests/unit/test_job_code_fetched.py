"""The code of jobs: which addresses are let through, and what is fetched from there."""

import io
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from runtime.checkpoints.errors import CheckpointError
from runtime.checkpoints.filesystem import Filesystem
from runtime.executors.sections import MachineOptions
from runtime.jobcode.fetching import CODE, CodeRefused, CodeSource, fetch_code, split_address
from runtime.threads import in_thread
from schemas.programs import Program
from tests.archives import zipped
from tests.patience import PATIENCE_S, wait_until

ARCHIVE = zipped(("key", b"x", 0o600))
URL = "s3://bucket/code/a.tar.gz"


@pytest.mark.parametrize(
    ("allowed", "tenant", "rest"),
    [
        (("s3://bucket/code",), "red", "a.tar.gz"),
        (("s3://bucket/code/", "file:///x"), None, "a.tar.gz"),
        (("s3://bucket",), "red", "code/a.tar.gz"),
        (("s3://bucket/{tenant}",), "code", "a.tar.gz"),
    ],
)
def test_code_comes_from_an_allowed_place(
    allowed: tuple[str, ...], tenant: str | None, rest: str
) -> None:
    assert split_address(URL, tenant, allowed)[1] == rest


@pytest.mark.parametrize(
    ("allowed", "tenant", "word"),
    [
        ((), "red", r'this agent fetches no code; .*agent.workers.code = \["s3://bucket/code"\]'),
        (("s3://bucket/co",), "red", "this agent fetches code from s3://bucket/co alone"),
        (("s3://buck", "file:///x"), "red", "from s3://buck, file:///x alone"),
        (("s3://bucket/{tenant}",), "red", "from s3://bucket/red alone; put it there"),
        (("s3://bucket/{tenant}",), None, "fetches code from s3://bucket/{tenant} alone"),
    ],
)
def test_code_of_anywhere_else_is_refused_with_what_to_do(
    allowed: tuple[str, ...], tenant: str | None, word: str
) -> None:
    with pytest.raises(CodeRefused, match=word):
        split_address(URL, tenant, allowed)


@pytest.mark.parametrize("allowed", [(), ("s3://bucket/code",)])
def test_what_to_do_comes_before_a_long_address(allowed: tuple[str, ...]) -> None:
    """The scheduler keeps the first 200 characters of what a gang failed of."""
    with pytest.raises(CodeRefused) as refused:
        split_address(f"file:///{'long/' * 40}a.tar.gz", "red", allowed)
    assert "agent.workers.code" in str(refused.value)[:150]


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({"code": "s3://bucket/a.txt"}, "code: must end in .tar.gz, .tgz, .zip"),
        ({"code": "s3://bucket/../a.zip"}, "code: must not hold .."),
        ({"code": "s3://bucket/%2e%2e/a.zip"}, "match pattern"),
        ({"code": "simplecache::s3://bucket/a.zip"}, "match pattern"),
        ({"code": "https://host/a?x=.zip"}, "match pattern"),
        ({"code": "s3://key:secret@bucket/a.zip"}, "code: holds a login"),
        ({"code": "/etc/passwd.zip"}, "match pattern"),
        ({"code": URL, "workdir": "/opt"}, "workdir: leave it out"),
        ({"code_sha256": "0" * 64}, "code_sha256: goes with code"),
        ({"code": URL, "code_sha256": "A" * 64}, "match pattern"),
    ],
)
def test_a_job_names_code_in_one_way(over: dict[str, str], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        Program.model_validate({"argv": ["a"], **over})


@pytest.mark.parametrize("place", ["/shared/code", "s3://k:s@bucket/code", "file:///a/../b"])
def test_a_place_is_the_begin_of_addresses(place: str) -> None:
    with pytest.raises(ValidationError, match="is no place to fetch from"):
        MachineOptions.model_validate({"code": [place]})


def wanted(place: str, name: str) -> CodeSource:
    program = Program(argv=["true"], code=f"{place}/{name}")
    return CodeSource(program, "red", (place,), 8, None)


def fetched(place: str, name: str, job: Path) -> Path:
    return fetch_code(wanted(place, name), job, threading.Event())


def test_a_link_in_an_allowed_folder_leads_no_further(tmp_path: Path) -> None:
    shared, secret = tmp_path / "shared", tmp_path / "secret.zip"
    shared.mkdir()
    secret.write_bytes(ARCHIVE)
    (shared / "a.zip").symlink_to(secret)
    os.mkfifo(shared / "pipe.zip")
    for name, word in (("a.zip", "is a link that leads elsewhere"), ("pipe.zip", "no plain file")):
        with pytest.raises(CheckpointError, match=word):
            fetched(f"file://{shared}", name, tmp_path / "job")


class _Sends(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/code/a.zip":
            self.send_response(302)
            self.send_header("Location", "/inner/a.zip")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(ARCHIVE)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(ARCHIVE)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    _Sends.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sends) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()
    assert not [path for path in _Sends.asked if path.startswith("/inner")]


class _Held(io.BytesIO):
    """An archive that its store holds up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked.set()
        assert self.goes_on.wait(PATIENCE_S)
        return super().read(size)


@pytest.mark.process
def test_a_fetch_that_was_given_up_disturbs_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was sent away while its store was slow, and is back here."""
    first, second = _Held(ARCHIVE), _Held(ARCHIVE)
    left = [first, second]
    monkeypatch.setattr(Filesystem, "reading", lambda _self, _path: left.pop(0))
    source, stop = wanted(f"file://{tmp_path}", "a.zip"), threading.Event()
    given_up = in_thread(lambda: fetch_code(source, tmp_path / "job", stop))
    wait_until(first.asked.is_set)
    stop.set()
    later = in_thread(lambda: fetch_code(source, tmp_path / "job", threading.Event()))
    wait_until(second.asked.is_set)
    first.goes_on.set()
    assert isinstance(given_up.exception(PATIENCE_S), CheckpointError)
    second.goes_on.set()
    assert (later.result(PATIENCE_S) / "key").read_text() == "x"


@pytest.mark.process
def test_what_a_killed_agent_had_fetched_of_code_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(ARCHIVE)
    there = tmp_path / "job" / CODE
    there.mkdir(parents=True)
    (there / "draft-0123456789abcdef").write_bytes(b"x" * 1000)
    (there / "draft").write_bytes(b"of an earlier release")
    unpacked = fetched(f"file://{tmp_path}", "a.zip", tmp_path / "job")
    assert {path.name for path in there.iterdir()} == {"archive", unpacked.name}


@pytest.mark.process
def test_a_server_does_not_lead_the_agent_on_to_another_address(
    server: str, tmp_path: Path
) -> None:
    assert (fetched(f"{server}/code", "b.zip", tmp_path) / "key").read_text() == "x"
    with pytest.raises((CheckpointError, CodeRefused)):
        fetched(f"{server}/code", "a.zip", tmp_path)
