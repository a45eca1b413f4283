"""The code of jobs: what an archive may hold, where it comes from, how folders are packed."""

import gzip
import hashlib
import io
import os
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from console.packing import packed
from runtime.checkpoints.errors import CheckpointError
from runtime.checkpoints.filesystem import Filesystem
from runtime.executors.sections import MachineOptions
from runtime.jobcode import unpacking
from runtime.jobcode.fetching import CODE, CodeRefused, CodeSource, fetch_code, split_address
from runtime.jobcode.rules import Unfit, check_link, parts_of
from runtime.threads import in_thread
from schemas.programs import Program
from tests.patience import PATIENCE_S, wait_until

MIB = 2**20
URL = "s3://bucket/code/a.tar.gz"


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **more: Any) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    for field, value in more.items():
        setattr(found, field, value)
    return found


def tar(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        for one in entries:
            info, content = one if isinstance(one, tuple) else (one, b"")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return found.getvalue()


def zipped(*entries: tuple[str, bytes, int]) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return found.getvalue()


def _by_words(value: object) -> str:
    """Name a case by what is said of it: the bytes of an archive are others each time."""
    return value if isinstance(value, str) else "archive"


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to unpack into, with a neighbour that nobody may touch."""
    (tmp_path / "outside").write_text("as it was")
    folder = tmp_path / "inside"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_what_is_packed_is_unpacked_again(inside: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "run.sh").write_text("true\n")
    (source / "sub" / "run.sh").chmod(0o755)
    (source / "data").write_bytes(os.urandom(3 * MIB))
    (source / "sub" / "link").symlink_to("../data")
    for left_out in (".git", "sub/__pycache__"):
        (source / left_out).mkdir()
        (source / left_out / "x").write_text("x")
    archive = packed(str(source), f"file://{tmp_path}/store")
    unpacking.unpack("tar", io.BytesIO(archive.data), 4 * MIB)
    there = {str(one.relative_to(inside)) for one in inside.rglob("*")}
    assert there == {"data", "sub", "sub/empty", "sub/link", "sub/run.sh"}
    assert (inside / "sub" / "link").read_bytes() == (source / "data").read_bytes()
    assert stat.S_IMODE((inside / "sub" / "run.sh").stat().st_mode) == 0o700
    assert stat.S_IMODE((inside / "data").stat().st_mode) == 0o600


def test_the_same_files_are_the_same_bytes_and_are_stored_once(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        for file in ("b", "a") if name == "one" else ("a", "b"):
            (tmp_path / name / file).write_text(file)
        os.utime(tmp_path / name / "a", (0, len(name)))
    store = f"file://{tmp_path}/store"
    one, other = (packed(str(tmp_path / name), store) for name in ("one", "other"))
    assert one.data == other.data
    assert hashlib.sha256(one.data).hexdigest() == one.sha256
    assert "is now at" in one.told()
    assert "was there already at" in other.told()
    assert [path.name for path in (tmp_path / "store").iterdir()] == [one.name]
    assert (tmp_path / "store" / one.name).read_bytes() == one.data


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda top: (top / "out").symlink_to("../outside"), "'out': is a link that leads out"),
        (lambda top: (top / "out").symlink_to("/etc/passwd"), "leads out of the folder, to '/etc/"),
        (lambda top: (top / "out").symlink_to("a/../b"), "goes up in its middle"),
        (lambda top: os.mkfifo(top / "pipe"), "pipe: is a device, a pipe or a socket"),
        (lambda top: (top / "a\nb").touch(), "characters that nobody can see"),
        pytest.param(
            lambda top: (top / "large").write_bytes(os.urandom(65 * MIB)),
            "the limit is 64",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_no_code_is_not_packed(
    make: Callable[[Path], None], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outside").touch()
    top = tmp_path / "top"
    top.mkdir()
    make(top)
    with pytest.raises(BaseException, match="2"):  # how typer ends
        packed(str(top), f"file://{tmp_path}/store")
    assert word in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("archive", "word"),
    [
        (tar((entry("/etc/x"), b"x")), "'/etc/x': is an absolute path"),
        (tar((entry("../outside"), b"x")), "'../outside': leads out of the folder"),
        (tar((entry("a/../../outside"), b"x")), "leads out of the folder"),
        (tar(entry("out", tarfile.SYMTYPE, "../outside")), "is a link that leads out"),
        (tar(entry("out", tarfile.SYMTYPE, "/etc")), "is a link that leads out"),
        (tar(entry("out", tarfile.SYMTYPE, "a/..")), "goes up in its middle"),
        (tar(entry("out", tarfile.LNKTYPE, "../outside")), "is a hard link, a device or a pipe"),
        (tar(entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3)), "a device or a pipe"),
        (tar(entry("pipe", tarfile.FIFOTYPE)), "is a hard link, a device or a pipe"),
        (tar((entry("a"), b"x"), (entry("a"), b"y")), "'a': is in it twice"),
        (tar((entry("a"), b"x"), (entry("a/b"), b"y")), "'a': is a file and a folder in it"),
        (tar((entry("a"), bytes(9 * MIB))), "it unpacks to more than 8 MiB"),
        (tar(*(entry("x/" * 60 + str(n)) for n in range(3)), entry("x/" * 70)), "or too deep"),
        (tar((entry("a\x1b[2J"), b"x")), "characters that nobody can see"),
        (gzip.compress(b"no tar file at all" * 1000), "is damaged, or no archive of its kind"),
        (tar((entry("a"), os.urandom(MIB)))[:-500_000], "is damaged, or no archive of its kind"),
    ],
    ids=_by_words,
)
def test_a_hostile_archive_is_named_and_writes_nothing_elsewhere(
    archive: bytes, word: str, inside: Path
) -> None:
    with pytest.raises(Unfit) as wrong:
        unpacking.unpack("tar", io.BytesIO(archive), 8 * MIB)
    assert word in str(wrong.value)
    assert sorted(path.name for path in inside.parent.iterdir()) == ["inside", "outside"]
    assert (inside.parent / "outside").read_text() == "as it was"


@pytest.mark.parametrize(
    ("archive", "word"),
    [
        (zipped(("../outside", b"x", 0o644)), "leads out of the folder"),
        (zipped(("/etc/x", b"x", 0o644)), "is an absolute path"),
        (zipped(("out", b"../outside", stat.S_IFLNK | 0o777)), "is a link that leads out"),
        (zipped(("null", b"", stat.S_IFCHR | 0o666)), "is a device or a pipe"),
        (zipped(("bomb", bytes(64 * MIB), 0o644)), "it unpacks to more than 8 MiB"),
        (b"PK no zip file", "is damaged, or no archive of its kind"),
    ],
    ids=_by_words,
)
def test_a_hostile_zip_file_is_named(archive: bytes, word: str, inside: Path) -> None:
    with pytest.raises(Unfit) as wrong:
        unpacking.unpack("zip", io.BytesIO(archive), 8 * MIB)
    assert word in str(wrong.value)
    assert (inside.parent / "outside").read_text() == "as it was"


def test_a_zip_file_is_unpacked(inside: Path) -> None:
    link = ("sub/link", b"../a", stat.S_IFLNK | 0o777)
    archive = zipped(("a", b"x", 0o755), ("sub/b", b"y", 0o644), link)
    unpacking.unpack("zip", io.BytesIO(archive), MIB)
    assert (inside / "sub" / "link").read_text() == "x"
    assert os.access(inside / "a", os.X_OK)


def test_no_file_is_written_through_a_link_that_came_before_it(inside: Path) -> None:
    # The link itself may be: what is written "below" it makes a folder of that name first.
    archive = tar(entry("sub", tarfile.SYMTYPE, "."), (entry("sub/x"), b"x"))
    with pytest.raises(Unfit, match="'sub': is in it twice"):
        unpacking.unpack("tar", io.BytesIO(archive), MIB)
    assert not (inside / "x").exists()


def test_many_files_are_too_many(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "ENTRIES_MAX", 10)
    for names in ([f"f{n}" for n in range(11)], ["a/b/c/d/e/f/g/h/i/j/k"]):
        with pytest.raises(Unfit, match="more than 10 files and folders"):
            unpacking.unpack("tar", io.BytesIO(tar(*map(entry, names))), MIB)


_step = st.sampled_from(["..", "a", "b", "."])
_path = st.lists(_step, min_size=1, max_size=4).map("/".join)


@given(st.lists(st.tuples(_path, _path), max_size=6))
def test_links_that_are_let_through_never_lead_out_whatever_they_pass(
    links: list[tuple[str, str]],
) -> None:
    """Follow each as a kernel does; all of them are there, in folders that are no links."""
    made: dict[tuple[str, ...], list[str]] = {}
    for path, target in links:
        try:
            parts = parts_of(path)
            check_link(parts, target)
        except Unfit:
            continue
        above = [tuple(parts[:n]) for n in range(len(parts))]
        below = any(known[: len(parts)] == tuple(parts) for known in made)
        if parts and not below and not any(one in made for one in above):
            made[tuple(parts)] = target.split("/")
    for place, steps in made.items():
        at, left = list(place[:-1]), list(steps)
        for _ in range(200):  # links may go round
            if not left:
                break
            step = left.pop(0)
            if step == "..":
                assert at, (made, place)
                at.pop()
            elif step not in ("", "."):
                here = (*at, step)
                left = made[here] + left if here in made else left
                at = at if here in made else [*at, step]


# --- where it comes from ---


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
        ((), "red", r'this agent fetches no code, .*agent.workers.code = \["s3://bucket/code"\]'),
        (("s3://bucket/co",), "red", "is nowhere where this agent fetches from"),
        (("s3://buck", "file:///x"), "red", "which is s3://buck, file:///x"),
        (("s3://bucket/{tenant}",), "red", "which is s3://bucket/red; put it there"),
        (("s3://bucket/{tenant}",), None, "is nowhere where this agent fetches from"),
    ],
)
def test_code_of_anywhere_else_is_refused_with_what_to_do(
    allowed: tuple[str, ...], tenant: str | None, word: str
) -> None:
    with pytest.raises(CodeRefused, match=word):
        split_address(URL, tenant, allowed)


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


def wanted(url: str, place: str, digest: str | None = None) -> CodeSource:
    program = Program(argv=["true"], code=url, code_sha256=digest)
    return CodeSource(program, "red", (place,), 8, None)


def test_a_link_in_an_allowed_folder_leads_no_further(tmp_path: Path) -> None:
    shared, secret = tmp_path / "shared", tmp_path / "secret.zip"
    shared.mkdir()
    secret.write_bytes(zipped(("key", b"x", 0o600)))
    (shared / "a.zip").symlink_to(secret)
    os.mkfifo(shared / "pipe.zip")
    for name, word in (("a.zip", "is a link that leads elsewhere"), ("pipe.zip", "no plain file")):
        url = f"file://{shared}/{name}"
        with pytest.raises(CheckpointError, match=word):
            fetch_code(wanted(url, f"file://{shared}"), tmp_path / "job", threading.Event())


class _Sends(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/code/a.zip":
            self.send_response(302)
            self.send_header("Location", "/inner/a.zip")
            self.end_headers()
            return
        body = zipped(("key", b"x", 0o600))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

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
    data = zipped(("key", b"x", 0o600))
    first, second = _Held(data), _Held(data)
    left = [first, second]
    monkeypatch.setattr(Filesystem, "reading", lambda _self, _path: left.pop(0))
    source, stop = wanted(f"file://{tmp_path}/a.zip", f"file://{tmp_path}"), threading.Event()
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
    (tmp_path / "a.zip").write_bytes(zipped(("key", b"x", 0o600)))
    there = tmp_path / "job" / CODE
    there.mkdir(parents=True)
    (there / "draft-0123456789abcdef").write_bytes(b"x" * 1000)
    (there / "draft").write_bytes(b"of an earlier release")
    source = wanted(f"file://{tmp_path}/a.zip", f"file://{tmp_path}")
    unpacked = fetch_code(source, tmp_path / "job", threading.Event())
    assert {path.name for path in there.iterdir()} == {"archive", unpacked.name}


@pytest.mark.process
def test_a_server_does_not_lead_the_agent_on_to_another_address(
    server: str, tmp_path: Path
) -> None:
    there = fetch_code(
        wanted(f"{server}/code/b.zip", f"{server}/code"), tmp_path, threading.Event()
    )
    assert (there / "key").read_text() == "x"
    with pytest.raises((CheckpointError, CodeRefused)):
        fetch_code(wanted(f"{server}/code/a.zip", f"{server}/code"), tmp_path, threading.Event())
