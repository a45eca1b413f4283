"""Commands and requests carry a signature over their exact bytes: no broker can give orders.

Ed25519 (RFC 8032) by the `cryptography` package. The envelope within names the agent, the leader's
epoch (`bootid`) and when the command expires, so the one signature covers them all. Two key ids
may be trusted at once: that is how keys are rotated.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from bus.contract import BusError

ALGORITHM = "Ed25519"
#: Names of the headers, on Kafka records and as MQTT user properties.
SIGNATURE, KEY_ID, ALG = "sig", "kid", "alg"


class Signer:
    """Signs with one key."""

    def __init__(self, key_id: str, key: Ed25519PrivateKey) -> None:
        self.key_id = key_id
        self._key = key

    @classmethod
    def from_file(cls, key_id: str, path: Path | str) -> Self:
        """Read a private key (PEM, PKCS 8, without password).

        Raises:
            BusError: it cannot be read or is no Ed25519 key.
        """
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            pem = Path(path).read_bytes()
            if b"PUBLIC KEY" in pem and b"PRIVATE KEY" not in pem:
                raise BusError(f"signing key {path}: is the public half; name the private one")
            key = load_pem_private_key(pem, None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BusError(f"signing key {path}: {_why(error)}; {_MAKE}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BusError(f"signing key {path}: is no Ed25519 key; {_MAKE}")
        return cls(key_id, key)

    def headers(self, value: bytes) -> dict[str, str]:
        """Give the headers that go with these bytes."""
        signature = base64.b64encode(self._key.sign(value)).decode()
        return {SIGNATURE: signature, KEY_ID: self.key_id, ALG: ALGORITHM}

    def public(self) -> str:
        """Give the public key as agents are configured with it: base64 of its 32 bytes."""
        raw = self._key.public_key().public_bytes_raw()
        return base64.b64encode(raw).decode()


class Verifier:
    """Knows the keys whose word counts here."""

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys = dict(keys)

    @classmethod
    def of(cls, trusted: Mapping[str, str]) -> Self:
        """Take public keys by key id: base64 of 32 bytes, or the path of a PEM file.

        Raises:
            BusError: one of them is no such key; it is named.
        """
        return cls({key_id: _public(key_id, text) for key_id, text in trusted.items()})

    def problem(self, value: bytes, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Find why these bytes do not count: header and reason; None if they do."""
        if SIGNATURE not in headers:
            return SIGNATURE, "is missing: this is not signed"
        if headers.get(ALG) != ALGORITHM:
            return ALG, f"must be {ALGORITHM}"
        key = self._keys.get(headers.get(KEY_ID, ""))
        if key is None:
            return KEY_ID, "names no key that is trusted here"
        try:
            key.verify(base64.b64decode(headers[SIGNATURE], validate=True), value)
        except (InvalidSignature, binascii.Error, ValueError):
            return SIGNATURE, "does not fit the bytes: forged, or changed on the way"
        return None


_MAKE = "make one with: openssl genpkey -algorithm ed25519 -out FILE"


def is_key_text(text: str) -> bool:
    """Whether a trusted key is given as its 32 bytes in base64; else it is the path of a file."""
    return re.fullmatch(r"[A-Za-z0-9+/]{43}=", text) is not None


def _public(key_id: str, text: str) -> Ed25519PublicKey:
    try:
        if is_key_text(text):
            return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
        # Takes 5 MiB: an edge agent does without if it is given its keys as base64.
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        key = load_pem_public_key(Path(text).read_bytes())
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("is no Ed25519 key")
        return key
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BusError(
            f"trusted key {key_id}: {_why(error)}; give base64 of the 32 bytes of an Ed25519 "
            "public key, or the path of its PEM file"
        ) from None


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
