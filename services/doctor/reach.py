"""Whether a server can be reached: its name, its port, and TLS with all that can be wrong there."""

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography import x509

from bus.options import Tls
from bus.tls import show_certificate
from services.certificates import SOON_S, common_name, day, ends_s
from services.doctor.finding import Finding, Reporter

#: A server that does not answer a connection within this long is behind a wall.
_CONNECT_S = 3.0
#: TLS 1.3 tells a client after its handshake that its certificate is refused; on a good day
#: nothing comes.
_REFUSAL_S = 0.5
#: Of OpenSSL's verify(1): X509_V_ERR_CERT_NOT_YET_VALID, _CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH,
#: _IP_ADDRESS_MISMATCH.
_NOT_YET, _EXPIRED, _NAME, _ADDRESS = 9, 10, 62, 64


@dataclass(frozen=True, slots=True)
class Server:
    """A server, and the keys of the configuration that lead to it."""

    host: str
    port: int
    tls: Tls | None
    #: What it is, for people, and where its address is configured.
    what: str
    key: str
    #: The section with its certificates.
    section: str


def reach(server: Server, report: Reporter, now_s: float) -> Iterator[Finding]:
    """Check name, port and TLS in this order; stop at the first problem."""
    where = f"{server.host}:{server.port}"
    try:
        socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name can be so
        yield report.problem(
            f"the name {server.host} does not resolve: {getattr(error, 'strerror', None) or error}",
            f"correct the host in {server.key}, or this machine's DNS (getent hosts {server.host})",
        )
        return
    try:
        line = socket.create_connection((server.host, server.port), _CONNECT_S)
    except ConnectionRefusedError:
        yield report.problem(
            f"nothing listens at {where}",
            f"start {server.what}, or correct the port in {server.key} (Mosquitto: 8883 with TLS, "
            "1883 without; Kafka: 9092)",
        )
        return
    except OSError as error:
        why = error.strerror or f"no answer within {_CONNECT_S:.0f} s"
        yield report.problem(
            f"{where} cannot be reached: {why}",
            f"see routes and firewalls on the way to {where}, or correct {server.key}",
        )
        return
    with line:
        if server.tls is None:
            yield report.ok(f"{where} answers, without TLS")
        else:
            yield from _secured(server, server.tls, line, report, now_s)


def _secured(
    server: Server, tls: Tls, line: socket.socket, report: Reporter, now_s: float
) -> Iterator[Finding]:
    section = server.section
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        if tls.cert_file:
            show_certificate(context, tls.cert_file, tls.key_file)
    except OSError as error:  # SSLError is one
        yield report.problem(
            f"the files of [{section}] cannot be used: {error}",
            f"see the findings on certificates; correct {section}.ca_file, cert_file or key_file",
        )
        return
    try:
        with context.wrap_socket(line, server_hostname=server.host) as secured:
            ended = secured.getpeercert(binary_form=True)
            yield from _good(server, x509.load_der_x509_certificate(ended or b""), report, now_s)
            secured.settimeout(_REFUSAL_S)
            try:
                secured.recv(1)
            except TimeoutError:
                return
    except ssl.SSLCertVerificationError as error:
        yield _unverified(server, error, report)
    except (OSError, ValueError) as error:
        yield _refused(server, error, report)


def _good(
    server: Server, certificate: x509.Certificate, report: Reporter, now_s: float
) -> Iterator[Finding]:
    said = f"{server.host}:{server.port} answers, with TLS; its certificate ends on "
    said += day(certificate)
    if ends_s(certificate) < now_s + SOON_S:
        yield report.warning(said, f"renew the certificate of {server.what} before that day")
    else:
        yield report.ok(said)


def _unverified(server: Server, error: ssl.SSLCertVerificationError, report: Reporter) -> Finding:
    theirs = _seen(server)
    if error.verify_code == _EXPIRED:
        ended = f" on {day(theirs)}" if theirs else ""
        return report.problem(
            f"a certificate of {server.what} ended{ended}",
            f"renew the certificate of {server.what} and restart it; if this machine's clock is "
            "wrong, set it (timedatectl)",
        )
    if error.verify_code == _NOT_YET:
        return report.problem(
            f"the certificate of {server.what} begins only later",
            "see that this machine's clock is right (timedatectl)",
        )
    if error.verify_code in (_NAME, _ADDRESS):
        names = ", ".join(_names(theirs)) or "none"
        return report.problem(
            f"the certificate of {server.what} is not for {server.host}; its names are {names}",
            f"write one of these names into {server.key}, or have a certificate made for "
            f"{server.host}",
        )
    trusted = server.tls.ca_file if server.tls and server.tls.ca_file else "the system's list"
    by = f" (it is by {theirs.issuer.rfc4514_string()})" if theirs else ""
    return report.problem(
        f"the certificate of {server.what} is by no authority of {trusted}: "
        f"{error.verify_message}{by}",
        f"name in {server.section}.ca_file the authority that signed the certificate of "
        f"{server.what}",
    )


def _refused(server: Server, error: Exception, report: Reporter) -> Finding:
    reason = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
    has_own = bool(server.tls and server.tls.cert_file)
    if "alert" in reason and has_own:
        return report.problem(
            f"{server.what} refuses our certificate: {reason}",
            f"have {server.section}.cert_file signed anew by the authority that it trusts; it may "
            "have ended or been revoked",
        )
    if "alert" in reason:
        return report.problem(
            f"{server.what} asks for a certificate, and we have none: {reason}",
            f"set {server.section}.cert_file and key_file",
        )
    return report.problem(
        f"{server.host}:{server.port} does not speak TLS as we do: {reason or 'it hung up'}",
        f"see that the port in {server.key} is the one with TLS",
    )


def _seen(server: Server) -> x509.Certificate | None:
    """Fetch the certificate that was not trusted, to tell what it is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is said over it
    try:
        with (
            socket.create_connection((server.host, server.port), _CONNECT_S) as line,
            context.wrap_socket(line, server_hostname=server.host) as secured,
        ):
            return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return None


def _names(certificate: x509.Certificate | None) -> list[str]:
    if certificate is None:
        return []
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [common_name(certificate)]
    return [str(one.value) for one in found]
