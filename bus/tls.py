"""How a program shows its own certificate to others."""

import ssl
from os import PathLike, fspath

Place = str | PathLike[str]


def show_certificate(context: ssl.SSLContext, cert: Place, key: Place = "") -> None:
    """Load a certificate and its private key, which may be in the same file.

    Raises:
        OSError: they cannot be used; a key with a password is refused, too, where OpenSSL would
            ask for the password on the terminal and wait.
    """
    place = fspath(key) or fspath(cert)

    def refuse() -> str:
        raise OSError(
            f"{place} has a password, which nobody could enter; take it off: "
            f"openssl pkey -in {place} -out NEW"
        )

    context.load_cert_chain(cert, fspath(key) or None, refuse)
