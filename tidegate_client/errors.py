"""What can go wrong, as exceptions; the text of each says what to do next."""

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import TypeVar

import httpx

#: OpenSSL's codes where no known authority vouches for a certificate: X509_V_ERR_..., of
#: DEPTH_ZERO_SELF_SIGNED_CERT to UNABLE_TO_VERIFY_LEAF_SIGNATURE, and UNABLE_TO_GET_ISSUER_CERT.
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}
#: What OpenSSL says, by release, of an answer that is none of TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
#: Names of this machine, where a gateway may do without TLS.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_Error = TypeVar("_Error", bound=BaseException)


class TidegateError(Exception):
    """Anything that this client raises on purpose."""


class NoGateway(TidegateError):
    """No gateway is named, or none answers."""


class ContextError(TidegateError):
    """The file of contexts, or a context in it, cannot be used."""


class TimedOut(TidegateError):
    """What was waited for did not come in time."""


class JobEnded(TidegateError):
    """A job ended in another way than was waited for."""

    def __init__(self, job: str, state: str, why: str | None) -> None:
        super().__init__(f"{job} is {state}{f': {why}' if why else ''}")
        self.job, self.state = job, state


class BranchFailed(TidegateError):
    """A branch came to nothing, or somebody ended it."""


class Problem(TidegateError):
    """The gateway answered with an error (RFC 9457)."""

    def __init__(self, status: int, detail: str, parameter: str | None, after_s: float | None):
        super().__init__(detail)
        self.status, self.detail, self.parameter = status, detail, parameter
        #: In so many seconds the same may be answered, if the gateway says so.
        self.after_s = after_s


class BadRequest(Problem):
    """A parameter or an argument is wrong."""


class NotKnown(Problem):
    """The gateway does not know who asks: the token is missing, wrong or out of date."""


class NotAllowed(Problem):
    """Whoever asks may not do this."""


class NotFound(Problem):
    """There is no such job, entry or moment."""


class Refused(Problem):
    """The scheduler refused a request; nothing was done."""


class Conflict(Problem):
    """The key was used for another request, or another branch."""


class TooMany(Problem):
    """More was asked than one may; it was tried again, as often as this client does."""


class Unavailable(Problem):
    """The gateway cannot answer now; it was tried again, as often as this client does."""


_KINDS: Mapping[int, type[Problem]] = {
    401: NotKnown,
    403: NotAllowed,
    404: NotFound,
    409: Refused,
    429: TooMany,
}


def problem_of(answer: httpx.Response) -> Problem:
    """Read an answer that is an error; one that is no problem document gets its first words."""
    try:
        said = answer.json()
        detail, parameter = str(said["detail"]), said.get("parameter")
    except (ValueError, KeyError, TypeError, AttributeError):
        detail, parameter = answer.text[:200].strip() or answer.reason_phrase, None
    status = answer.status_code
    kind = _KINDS.get(status, Unavailable if status >= 500 else BadRequest)
    if status == 422 and parameter == "Idempotency-Key":
        kind = Conflict
    return kind(status, detail, parameter, retry_after_s(answer))


def no_gateway(error: httpx.RequestError) -> NoGateway:
    """Say where nobody answers, by what stands before the path, and why; the error is its cause."""
    where = _where(error.request.url)
    refused = _cause(error, ssl.SSLCertVerificationError)
    if refused is None:
        why = (str(error) or type(error).__name__).rstrip(".")
        found = NoGateway(f"no gateway answers at {where}: {why}; {_instead(error)}")
    elif refused.verify_code in _UNKNOWN_AUTHORITY:
        found = NoGateway(
            f"{where}: its certificate is by an authority that this machine does not know; export "
            "SSL_CERT_FILE=ca.pem, with that authority's certificate, or give that to the system"
        )
    else:
        found = NoGateway(
            f"{where}: its certificate cannot be trusted: {refused.verify_message.rstrip('.')}; "
            "ask at an address that it is for, or have it made anew"
        )
    found.__cause__ = error
    return found


def other_answer(answer: httpx.Response) -> NoGateway:
    """Say that what answers is no gateway, such as the page of a proxy, or one that differs."""
    told = "the address is the gateway's own, and that its release fits this client's"
    if answer.is_redirect:
        said = f"leads to {answer.headers['location'][:200]}"
    else:
        said = f"answers with {answer.text[:100].strip()!r}"
    return NoGateway(f"{_where(answer.request.url)} {said}, as no gateway does; see that {told}")


def _where(url: httpx.URL) -> str:
    """Give an address without its path, and without a password."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


@contextlib.contextmanager
def reading_authorities() -> Iterator[None]:
    """Name what keeps httpx from a client of its own: it reads the file of SSL_CERT_FILE.

    Raises:
        ContextError: that file is not there, or has no certificate.
    """
    try:
        yield
    except OSError as error:  # those of ssl are, too
        why = error.strerror or str(error)
        text = (
            f"SSL_CERT_FILE: {os.environ.get('SSL_CERT_FILE')}: {why.partition(' (_ssl')[0]}; "
            "name the PEM file of the authority's certificate there, or unset it"
        )
        raise ContextError(text) from error


def _instead(error: httpx.RequestError) -> str:
    """Say what to do where nobody answers: one side may speak TLS, and the other not."""
    url = error.request.url
    other = url.copy_with(scheme="http" if url.scheme == "https" else "https")
    wrong = _cause(error, ssl.SSLError)
    if wrong is not None and wrong.reason in _NO_TLS:
        if url.host in LOOPBACK:
            return f"what is there has no TLS: write {_where(other)}"
        return (
            "what is there has no TLS: see that the port is right, and that cert_file is set in "
            "[gateway] of its configuration"
        )
    closed = isinstance(error, httpx.RemoteProtocolError)
    if url.scheme == "http" and (closed or _cause(error, ConnectionResetError)):
        return (
            "if a gateway with TLS is there, write https:// and the name that its certificate is "
            "for; if not, see that it runs there (tidegate serve)"
        )
    return "see that it runs there (tidegate serve), and that this machine can reach it"


def _cause(error: BaseException, kind: type[_Error]) -> _Error | None:
    """Find the error of a kind that another came of; None: there is none."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, kind):
        at = at.__cause__ or at.__context__
    return at


def retry_after_s(answer: httpx.Response) -> float | None:
    """Give what Retry-After says, in seconds; None: nothing that is a number."""
    try:
        return max(0.0, float(answer.headers.get("retry-after", "")))
    except ValueError:
        return None
