"""Cookies that only gateways with one secret can read or make; other keys come of it, too."""

import hashlib
import hmac
from pathlib import Path
from typing import Any

import orjson

from bus.contract import BusError
from services.gateway_section import SECRET_BYTES

_HEADER = {"alg": "dir", "enc": "A256GCM"}


class Seal:
    """Encrypts small documents, each for one purpose and until a moment."""

    def __init__(self, secret: bytes) -> None:
        """Use a secret; each purpose has a key of its own, derived from it."""
        self._secret = secret

    def key(self, purpose: str) -> bytes:
        """Derive a key, by HMAC."""
        return hmac.new(self._secret, f"tidegate {purpose}".encode(), hashlib.sha256).digest()

    def sealed(self, purpose: str, document: dict[str, Any], until_s: float) -> str:
        """Seal a document; it can be opened before `until_s`, in seconds since the Unix epoch."""
        from joserfc import jwe  # here, as where nobody signs in nothing is sealed
        from joserfc.jwk import OctKey

        text = orjson.dumps({**document, "until_s": until_s})
        return jwe.encrypt_compact(_HEADER, text, OctKey.import_key(self.key(purpose)),
                                   algorithms=["dir", "A256GCM"])  # fmt: skip

    def opened(self, purpose: str, text: str, now_s: float) -> dict[str, Any] | None:
        """Open a document; None: it is none of ours, or its time is over."""
        from joserfc import jwe
        from joserfc.errors import JoseError
        from joserfc.jwk import OctKey

        try:
            found = jwe.decrypt_compact(text, OctKey.import_key(self.key(purpose)),
                                        algorithms=["dir", "A256GCM"])  # fmt: skip
            document: dict[str, Any] = orjson.loads(found.plaintext or b"")
        except (JoseError, ValueError, TypeError):  # TypeError: of a header's wrong type
            return None
        return document if now_s < document["until_s"] else None


def read_secret(path: Path) -> bytes:
    """Read the secret of a gateway.

    Raises:
        BusError: it cannot be read, or is too short; the text says what to do.
    """
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise BusError(f"gateway.auth.secret_file: {path}: {error.strerror}") from error
    if len(secret) < SECRET_BYTES:
        raise BusError(
            f"gateway.auth.secret_file: {path} has {len(secret)} bytes, and needs "
            f"{SECRET_BYTES}; write another: openssl rand -base64 48 > {path}"
        )
    return secret
