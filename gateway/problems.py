"""Errors as RFC 9457 has them: what is wrong with a request, and what to do next."""

from collections.abc import Mapping
from http import HTTPStatus

import orjson
from fastapi import Response

MEDIA_TYPE = "application/problem+json"
#: Said to whoever asks while the gateway is told to end.
ENDS = "the gateway ends"


class Problem(Exception):
    """An answer that is an error. Its detail says what to do next."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        parameter: str | None = None,
        headers: Mapping[str, str] | None = None,
        request: str | None = None,
        entry: int | None = None,
    ) -> None:
        """State the problem.

        Args:
            status: The HTTP status.
            detail: What is wrong and what to do next.
            parameter: The name of the parameter that is wrong, if one is.
            headers: Of the answer, such as Retry-After.
            request: The id of the request that was refused, if one was.
            entry: The entry of the journal that refuses it.
        """
        super().__init__(detail)
        self.status, self.detail, self.parameter = status, detail, parameter
        self.headers = dict(headers or {})
        self.request, self.entry = request, entry


def later(detail: str, seconds: float, status: int = 503) -> Problem:
    """Say that the same request may be answered after so many seconds."""
    wait_s = max(1, round(seconds + 0.5))
    return Problem(status, detail, headers={"Retry-After": str(wait_s)})


def refused(detail: str) -> Problem:
    """Say that a token is not believed."""
    return Problem(401, detail, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})


def wrong_field(name: str, reason: str, status: int = 422) -> Problem:
    """Refuse a field of what is sent, or a parameter."""
    return Problem(status, f"{name}: {reason}", parameter=name or None)


def used_before(key: str, kind: str) -> Problem:
    """Refuse a key that somebody used already for something else of its kind."""
    reason = f"{key} was used for another {kind}; give this one a key of its own"
    return wrong_field("Idempotency-Key", reason)


def response(problem: Problem) -> Response:
    """Write a problem."""
    status = HTTPStatus(problem.status)
    body: dict[str, object] = {
        "type": "about:blank",
        "title": status.phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    for name in ("parameter", "request", "entry"):
        if (value := getattr(problem, name)) is not None:
            body[name] = value
    return Response(
        orjson.dumps(body), problem.status, headers=problem.headers, media_type=MEDIA_TYPE
    )
