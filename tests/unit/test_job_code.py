"""The code of jobs: how folders are packed, and what an archive may hold to be unpacked."""

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from console.packing import packed
from runtime.jobcode import unpacking
from runtime.jobcode.rules import Unfit, check_link, parts_of
from tests.archives import entry, tar, zipped

MIB = 2**20


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


_TARS = [
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
]
_ZIPS = [
    (zipped(("../outside", b"x", 0o644)), "leads out of the folder"),
    (zipped(("/etc/x", b"x", 0o644)), "is an absolute path"),
    (zipped(("out", b"../outside", stat.S_IFLNK | 0o777)), "is a link that leads out"),
    (zipped(("null", b"", stat.S_IFCHR | 0o666)), "is a device or a pipe"),
    (zipped(("bomb", bytes(64 * MIB), 0o644)), "it unpacks to more than 8 MiB"),
    (b"PK no zip file", "is damaged, or no archive of its kind"),
]


@pytest.mark.parametrize(
    ("kind", "archive", "word"),
    [*(("tar", *case) for case in _TARS), *(("zip", *case) for case in _ZIPS)],
    ids=_by_words,
)
def test_a_hostile_archive_is_named_and_writes_nothing_elsewhere(
    kind: str, archive: bytes, word: str, inside: Path
) -> None:
    with pytest.raises(Unfit) as wrong:
        unpacking.unpack(kind, io.BytesIO(archive), 8 * MIB)
    assert word in str(wrong.value)
    assert sorted(path.name for path in inside.parent.iterdir()) == ["inside", "outside"]
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
