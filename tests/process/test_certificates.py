"""What is wrong with certificates is said by file, with what to do."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from services.certificates import Complaint, Files, complaints
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def judge(files: Files, name: str = "edge-17") -> list[Complaint]:
    return complaints(files, name, SystemClock().now_s())


def only(files: Files, name: str = "edge-17") -> Complaint:
    (found,) = judge(files, name)
    assert found.fix
    return found


def test_good_files_have_no_complaint(authority: Authority) -> None:
    assert judge(authority.sign("edge-17")) == []
    assert judge(Files(authority.ca, None, None)) == []


def test_an_authority_in_between_goes_into_the_agents_file(
    authority: Authority, tmp_path: Path
) -> None:
    between = Authority(tmp_path / "between", "between", above=authority)
    files = Files(authority.ca, *(lambda f: (f.cert, f.key))(between.sign("edge-17")))
    assert "not signed by" in only(files).said
    assert files.cert is not None
    files.cert.write_bytes(files.cert.read_bytes() + between.ca.read_bytes())
    assert judge(files) == []


@pytest.mark.parametrize(
    ("name", "made", "serious", "said", "fix"),
    [
        ("edge-17", {"begins": -9, "ends": -2}, True, "ended on", "sign a new one for edge-17"),
        ("edge-17", {"ends": 12}, False, "ends on", ""),
        ("edge-17", {"begins": 1}, True, "", "timedatectl"),
        ("edge-18", {}, True, "is for edge-18, but the agent is edge-17", "device edge-17"),
        ("edge-17", {"server": True}, True, "", "clientAuth"),
    ],
    ids=["ended", "ends soon", "begins later", "another's", "a server's"],
)
def test_a_certificate_that_will_not_do_is_told_with_what_to_do(
    authority: Authority, name: str, made: dict[str, Any], serious: bool, said: str, fix: str
) -> None:
    found = only(authority.sign(name, **made))
    assert (found.about, found.serious) == ("cert", serious)
    assert said in found.said
    assert fix in found.fix


def test_one_of_another_fleet_is_not_signed_by_ours(authority: Authority, tmp_path: Path) -> None:
    theirs = Authority(tmp_path / "theirs").sign("edge-17")
    found = only(Files(authority.ca, theirs.cert, theirs.key))
    assert "not signed by the authority" in found.said
    assert "one fleet" in found.fix
    assert not found.serious, "a broker may have another authority for its clients"


def test_a_key_of_another_certificate(authority: Authority) -> None:
    files, other = authority.sign("edge-17"), authority.sign("edge-18")
    found = only(Files(files.ca, files.cert, other.key))
    assert (found.about, found.fix) == ("key", "give the two files that were made together")
    assert only(Files(files.ca, files.cert, None)).about == "key"


def test_an_authority_that_ended(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old = authority.sign("old", begins=-9, ends=-2)
    found = only(Files(old.cert, None, None))
    assert (found.about, found.serious) == ("ca", True)
    assert "whoever runs the broker" in found.fix


@pytest.mark.parametrize("about", ["ca", "cert", "key"])
def test_what_cannot_be_read_is_named(authority: Authority, tmp_path: Path, about: str) -> None:
    good, junk = authority.sign("edge-17"), tmp_path / "junk.pem"
    junk.write_text("junk")
    for path, word in ((junk, "PEM"), (tmp_path / "none.pem", "No such file")):
        files = Files(**{"ca": good.ca, "cert": good.cert, "key": good.key, about: path})
        found = only(files)
        assert found.about == about
        assert word in found.said


def test_a_key_with_a_password_could_not_be_opened(authority: Authority, tmp_path: Path) -> None:
    files, locked = authority.sign("edge-17"), tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", str(files.key), "-aes256", "-passout", "pass:secret"]
    subprocess.run([*command, "-out", str(locked)], check=True, env={**os.environ})
    found = only(Files(files.ca, files.cert, locked))
    assert "has a password" in found.said
    assert f"openssl pkey -in {locked}" in found.fix
