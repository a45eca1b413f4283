"""compose/certs: what it makes, what it leaves alone, and the names it will not sign."""

import base64
import hashlib
import os
import signal
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bus.signing import Signer, Verifier
from tests.security.secure_broker import certs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "certs"
    done = certs(folder, "make")
    assert done.returncode == 0, done.stderr
    assert "for tests" in done.stderr
    assert certs(folder, "device", "edge-1").returncode == 0
    assert certs(folder, "server", "gateway").returncode == 0
    return folder


def load(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())


def name_of(certificate: x509.Certificate) -> str:
    (attribute,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attribute.value)


@pytest.mark.parametrize(
    "name", ["mosquitto", "kafka", "gateway", "bridge-1", "bridge-2", "edge-1"]
)
def test_each_certificate_names_one_and_is_good_for_one_side(folder: Path, name: str) -> None:
    certificate = load(folder, name)
    certificate.verify_directly_issued_by(load(folder, "ca"))
    assert name_of(certificate) == name
    is_server = name in ("mosquitto", "kafka", "gateway")
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [
        ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    if is_server:
        reached = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert reached.get_values_for_type(x509.DNSName) == ["localhost", name]
        assert [str(ip) for ip in reached.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_only_the_owner_can_read(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_the_signing_key_and_what_is_printed_are_a_pair(folder: Path) -> None:
    printed = certs(folder, "trusted").stdout
    trusted = tomllib.loads(printed)["trusted_keys"]
    signer = Signer.from_file("k1", folder / "signing-k1.pem")
    assert Verifier.of(trusted).problem(b"x", signer.headers(b"x")) is None
    assert len(base64.b64decode(trusted["k1"])) == 32


def test_a_second_run_changes_nothing(folder: Path) -> None:
    def hashes() -> dict[str, str]:
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()
        }

    before = hashes()
    for arguments in (
        ("make",),
        ("device", "edge-1"),
        ("bridge", "bridge-1"),
        ("server", "gateway"),
    ):
        assert certs(folder, *arguments).returncode == 0
    assert hashes() == before


def test_a_second_signing_key_is_added_beside_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    assert certs(folder, "make").returncode == 0
    printed = certs(folder, "make", "--kid", "k2").stdout
    assert list(tomllib.loads(printed)["trusted_keys"]) == ["k1", "k2"]


def test_revoking_adds_to_the_list_and_works_in_a_moved_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert certs(first, "make").returncode == 0
    assert certs(first, "device", "edge-1", "edge-2").returncode == 0
    first.rename(second)
    for _ in range(2):
        assert certs(second, "revoke", "edge-1").returncode == 0
    revoked = x509.load_pem_x509_crl((second / "crl.pem").read_bytes())
    assert [one.serial_number for one in revoked] == [load(second, "edge-1").serial_number]
    again = certs(second, "device", "edge-1")
    assert (again.returncode, "was revoked" in again.stderr) == (0, True)


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("device", "+"),
        ("device", "#"),
        ("device", "edge-1/+"),
        ("device", "edge-1/up"),
        ("device", "edge-1/CN=bridge-1"),
        ("device", "_state"),
        ("device", "$SYS"),
        ("device", ".."),
        ("device", "../edge-1"),
        ("device", ""),
        ("device", "a b"),
        ("device", "x" * 65),
        ("device", "bridge-1"),
        ("device", "bridge-77"),
        ("device", "kafka"),
        ("device", "ca"),
        ("device", "signing-k1"),
        ("bridge", "edge-1"),
        ("bridge", "bridge-1x"),
        ("revoke", "ca"),
        ("revoke", "mosquitto"),
        ("revoke", "nobody"),
    ],
)
def test_names_that_would_give_other_rights_are_refused(folder: Path, verb: str, name: str) -> None:
    before = sorted(folder.rglob("*"))
    done = certs(folder, verb, name)
    assert done.returncode == 2
    assert done.stderr.startswith("compose/certs: ")
    assert sorted(folder.rglob("*")) == before


def test_several_at_once_make_one_authority(tmp_path: Path) -> None:
    """Two of four failed, at files that another had removed."""
    folder = tmp_path / "certs"
    with ThreadPoolExecutor() as pool:
        made = [*pool.map(lambda _: certs(folder, "make"), range(4))]
    assert [one.returncode for one in made] == [0] * 4, [one.stderr for one in made]
    assert len({one.stdout for one in made}) == 1
    for name in ("mosquitto", "bridge-1"):
        load(folder, name).verify_directly_issued_by(load(folder, "ca"))


@pytest.mark.parametrize("at", ["req -x509", "ca", "x509 -req", "genpkey"])
def test_what_was_killed_in_between_is_made_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """An empty file was taken for one that is there, for ever."""
    folder, real = tmp_path / "certs", which("openssl")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "openssl"
    script.write_text(
        f'#!/bin/bash\n[[ "$* " == \'{at} \'* ]] || exec {real} "$@"\n'
        'for last; do [ "$before" = -out ] && : > "$last"; before=$last; done\nkill -9 $PPID\n'
    )
    script.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
        assert certs(folder, "make").returncode == -signal.SIGKILL
    (folder / "bridge-group").write_text("")  # as one that was killed there leaves it
    done = certs(folder, "make")
    assert (done.returncode, done.stdout[:16]) == (0, "trusted_keys = {"), done.stderr
    load(folder, "mosquitto").verify_directly_issued_by(load(folder, "ca"))
    assert len((folder / "bridge-group").read_text()) == 33


def test_without_an_authority_it_says_what_to_do(tmp_path: Path) -> None:
    done = certs(tmp_path / "none", "device", "edge-1")
    assert done.returncode == 2
    assert "compose/certs make" in done.stderr
    assert not (tmp_path / "none").exists()
