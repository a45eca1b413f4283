"""Signatures: what the signer's own key signed is obeyed, and nothing else."""

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from bus.contract import BusError
from bus.signing import ALG, KEY_ID, SIGNATURE, Signer, Verifier

SEED = bytes(range(32))
SIGNER = Signer("k1", Ed25519PrivateKey.from_private_bytes(SEED))
VERIFIER = Verifier.of({"k1": SIGNER.public()})
BYTES = b'{"id":"c1"}'
HEADERS = SIGNER.headers(BYTES)


def test_the_exact_bytes_are_obeyed() -> None:
    assert VERIFIER.problem(BYTES, HEADERS) is None
    assert VERIFIER.problem(BYTES, {**HEADERS, "traceparent": "00-1"}) is None


def test_the_signature_is_rfc_8032s() -> None:
    # Test 2 of section 7.1.
    seed = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
    signature = (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    signer = Signer("k", Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)))
    assert base64.b64decode(signer.headers(b"\x72")[SIGNATURE]).hex() == signature


@pytest.mark.parametrize("position", range(len(BYTES)))
def test_a_changed_byte_is_refused(position: int) -> None:
    changed = bytearray(BYTES)
    changed[position] ^= 1
    problem = VERIFIER.problem(bytes(changed), HEADERS)
    assert problem is not None
    assert problem[0] == SIGNATURE


def test_the_same_json_written_otherwise_is_refused() -> None:
    assert VERIFIER.problem(b'{"id": "c1"}', HEADERS) is not None


def _without(name: str) -> dict[str, str]:
    return {key: value for key, value in HEADERS.items() if key != name}


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({}, SIGNATURE),
        (_without(SIGNATURE), SIGNATURE),
        (_without(KEY_ID), KEY_ID),
        (_without(ALG), ALG),
        ({**HEADERS, ALG: "none"}, ALG),
        ({**HEADERS, ALG: "HS256"}, ALG),
        ({**HEADERS, KEY_ID: "k2"}, KEY_ID),
        ({**HEADERS, SIGNATURE: ""}, SIGNATURE),
        ({**HEADERS, SIGNATURE: "not base64!"}, SIGNATURE),
        ({**HEADERS, SIGNATURE: "é"}, SIGNATURE),
        ({**HEADERS, SIGNATURE: base64.b64encode(bytes(64)).decode()}, SIGNATURE),
        ({**HEADERS, SIGNATURE: HEADERS[SIGNATURE][:40]}, SIGNATURE),
    ],
)
def test_headers_that_prove_nothing_are_refused(headers: dict[str, str], field: str) -> None:
    problem = VERIFIER.problem(BYTES, headers)
    assert problem is not None
    assert problem[0] == field


def test_a_stranger_who_uses_our_key_id_is_refused() -> None:
    stranger = Signer("k1", Ed25519PrivateKey.generate())
    problem = VERIFIER.problem(BYTES, stranger.headers(BYTES))
    assert problem is not None
    assert problem[0] == SIGNATURE


def test_keys_rotate_by_trusting_two_for_a_while() -> None:
    newer = Signer("k2", Ed25519PrivateKey.generate())
    both = Verifier.of({"k1": SIGNER.public(), "k2": newer.public()})
    after = Verifier.of({"k2": newer.public()})
    assert both.problem(BYTES, HEADERS) is None
    assert both.problem(BYTES, newer.headers(BYTES)) is None
    assert after.problem(BYTES, HEADERS) is not None
    assert after.problem(BYTES, newer.headers(BYTES)) is None


@pytest.mark.process
def test_keys_made_by_openssl_are_read(tmp_path: Path) -> None:
    private, public = tmp_path / "sign.pem", tmp_path / "sign.pub.pem"
    openssl = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)]
    subprocess.run(openssl, check=True)
    openssl = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)]
    subprocess.run(openssl, check=True)
    signer = Signer.from_file("k", private)
    with pytest.raises(BusError, match=r"sign\.pub\.pem: is the public half; name the private one"):
        Signer.from_file("k", public)
    headers = signer.headers(BYTES)
    for trusted in (signer.public(), str(public)):
        assert Verifier.of({"k": trusted}).problem(BYTES, headers) is None


def _missing(path: Path) -> None: ...


def _text(path: Path) -> None:
    path.write_text("no key")


def _other_kind(path: Path) -> None:
    key = X25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_missing, "No such file"),
        (_text, "signing key"),
        (_other_kind, "is no Ed25519 key"),
    ],
)
def test_a_bad_signing_key_says_how_to_make_one(
    tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "key.pem"
    make(path)
    with pytest.raises(BusError, match=says) as caught:
        Signer.from_file("k", path)
    assert "openssl genpkey" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!", "/nowhere/key.pem"])
def test_a_bad_trusted_key_is_named(text: str) -> None:
    with pytest.raises(BusError, match="trusted key k7"):
        Verifier.of({"k7": text})


def test_the_file_of_a_trusted_key_may_have_any_name(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "scheduler.pub"
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    signer, verifier = Signer("k", key), Verifier.of({"k": str(path)})
    assert verifier.problem(BYTES, signer.headers(BYTES)) is None


def test_a_trusted_key_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.pem"
    public = X25519PrivateKey.generate().public_key()
    path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(BusError, match="trusted key k7"):
        Verifier.of({"k7": str(path)})
