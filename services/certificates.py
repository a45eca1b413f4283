"""Checks a client's certificates, to say more about a problem than a broker does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: A certificate that ends sooner than this gets a warning.
SOON_S = 30 * 86_400.0

About = Literal["ca", "cert", "key"]


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that is wrong with one of the files."""

    about: About
    said: str
    fix: str
    #: Whether it keeps the client from connecting; otherwise it is a warning.
    serious: bool = True


@dataclass(frozen=True, slots=True)
class Files:
    """A client's files, in PEM form; None: there is no such file."""

    ca: Path | None
    cert: Path | None
    key: Path | None


class _Wrong(Exception):
    """A file cannot be used at all."""

    def __init__(self, about: About, said: str, fix: str) -> None:
        self.complaint = Complaint(about, said, fix)


def complaints(files: Files, name: str | None, now_s: float) -> list[Complaint]:
    """Find the problems of a client's files, the most important first.

    Args:
        files: The files; a certificate may have those that lead to the authority after it.
        name: The agent, whose name must be the certificate's common name; None: any will do.
        now_s: Now, in seconds since the Unix epoch.
    """
    found: list[Complaint] = []
    authorities = _chain_or_complaint("ca", files.ca, found)
    chain = _chain_or_complaint("cert", files.cert, found)
    found += _of_authorities(files.ca, authorities, now_s)
    if files.cert is not None and chain:
        found += _of_certificate(files.cert, chain, authorities, name, now_s)
    if files.cert is not None and files.key is None:
        fix = "give the private key that the certificate was made for"
        found.append(Complaint("key", f"{files.cert} has no key with it", fix))
    if files.key is not None:
        try:
            found += _of_key(files.key, chain)
        except _Wrong as wrong:
            found.append(wrong.complaint)
    return found


def _chain_or_complaint(
    about: About, path: Path | None, found: list[Complaint]
) -> list[x509.Certificate]:
    try:
        return _chain(about, path) if path is not None else []
    except _Wrong as wrong:
        found.append(wrong.complaint)
        return []


def common_name(certificate: x509.Certificate) -> str:
    """Give the name that a certificate is for, by which the broker knows its client."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def ends_s(certificate: x509.Certificate) -> float:
    """Give the moment that a certificate ends, in seconds since the Unix epoch."""
    return certificate.not_valid_after_utc.timestamp()


def day(certificate: x509.Certificate) -> str:
    """Give the day that a certificate ends, for people."""
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")


def ends_on(certificate: Path) -> str:
    """Give the day that the certificate of a file ends; the file was found good before."""
    return day(_chain("cert", certificate)[0])


def _chain(about: About, path: Path) -> list[x509.Certificate]:
    try:
        text = path.read_bytes()
    except OSError as error:
        said = f"{path}: {error.strerror}"
        raise _Wrong(about, said, "correct the path, or who may read it") from None
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError:
        fix = "give a file that begins with -----BEGIN CERTIFICATE-----"
        raise _Wrong(about, f"{path}: holds no certificate in PEM form", fix) from None


def _of_authorities(
    path: Path | None, authorities: Sequence[x509.Certificate], now_s: float
) -> Iterator[Complaint]:
    fix = "get the authority's present certificate from whoever runs the broker"
    if authorities and all(ends_s(one) <= now_s for one in authorities):
        yield Complaint("ca", f"{path}: ended on {day(authorities[0])}", fix)
    elif soon := [one for one in authorities if now_s < ends_s(one) < now_s + SOON_S]:
        yield Complaint("ca", f"{path}: ends on {day(soon[0])}", fix, serious=False)


def _of_certificate(
    path: Path,
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    name: str | None,
    now_s: float,
) -> Iterator[Complaint]:
    own = chain[0]
    if name is None:
        name = common_name(own)
    renew = f"have the authority sign a new one for {name}"
    if ends_s(own) <= now_s:
        yield Complaint("cert", f"{path}: ended on {day(own)}", renew)
    elif own.not_valid_before_utc.timestamp() > now_s:
        begins = own.not_valid_before_utc.strftime("%Y-%m-%d %H:%M UTC")
        yield Complaint(
            "cert",
            f"{path}: begins on {begins} only",
            "see that this machine's clock is right (timedatectl)",
        )
    elif ends_s(own) < now_s + SOON_S:
        yield Complaint("cert", f"{path}: ends on {day(own)}", renew, serious=False)
    if common_name(own) != name:
        yield Complaint(
            "cert",
            f"{path}: is for {common_name(own) or 'nobody'}, but the agent is {name}; the broker "
            "lets a client speak under its certificate's common name alone",
            f"have one signed for {name} (for trying out: compose/certs device {name}), or give "
            "the agent that name",
        )
    if authorities and not _leads_to(chain, authorities):
        yield Complaint(
            "cert",
            f"{path}: was not signed by the authority that the agent is to trust",
            "see that the broker trusts who signed it: give certificate and authority of one "
            "fleet; with an authority between them, put its certificate into the same file, after "
            "the agent's",
            serious=False,  # brokers may have one authority for servers, another for clients
        )
    if not _may_be_a_client(own):
        yield Complaint(
            "cert",
            f"{path}: is not for clients (extendedKeyUsage lacks clientAuth)",
            f"{renew} with extendedKeyUsage=clientAuth",
        )


def _leads_to(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> bool:
    at, left = chain[0], list(chain[1:])
    while not any(_signed(at, one) for one in authorities):
        above = [one for one in left if _signed(at, one)]
        if not above:
            return False
        at = above[0]
        left.remove(at)
    return True


def _signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _may_be_a_client(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    any_usage = ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage or any_usage in usage


def _of_key(path: Path, chain: Sequence[x509.Certificate]) -> Iterator[Complaint]:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        fix = "correct the path, or who may read it"
        raise _Wrong("key", f"{path}: {error.strerror}", fix) from None
    except TypeError:
        fix = f"take it off: openssl pkey -in {path} -out NEW"
        raise _Wrong("key", f"{path}: has a password, which nobody could enter", fix) from None
    except (ValueError, UnsupportedAlgorithm):
        fix = "give a file that begins with -----BEGIN PRIVATE KEY-----"
        raise _Wrong("key", f"{path}: holds no private key in PEM form", fix) from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if chain and key.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        yield Complaint(
            "key",
            f"{path}: is not the key of the certificate",
            "give the two files that were made together",
        )
