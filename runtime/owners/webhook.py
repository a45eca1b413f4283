"""A lender behind a URL: somebody else's service frees nodes and takes them back.

    POST URL                      {"node": "s1", "action": "drain", "order": 7, "attempt": 1}
                                  Idempotency-Key: s1-7
    GET  URL?node=s1&action=drain&order=7
    answer to both, status 2xx    {"state": "done"}, {"state": "pending"} or
                                  {"state": "failed", "error": "why"}

The action is `drain` or `hand_back`. While the state is `pending`, it is polled. The orders of a
node are numbered, so that a service that has two at once knows which counts: the higher one. The
next order is sent when the previous request has ended. An order is sent again, with the same number
and key and a higher `attempt`, after a lost connection, a status of 5xx, 408, 425 or 429, an answer
that makes no sense, a 404 or 410 to GET (the service forgot it), and a crash of the agent.
"""

import math
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import orjson
from pydantic.dataclasses import dataclass as checked

from runtime.durable import write_json
from runtime.http_client import Answer, HttpRequest, check_url
from runtime.owners.lender import POLL_S, Operation, Outcome
from runtime.threads import in_thread
from schemas.options import CHECKED, Seconds

_TRY_AGAIN = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}
_FORGOTTEN = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
#: A good answer is short.
_ANSWER_BYTES_MAX = 64 * 1024
_LOCAL = ("localhost", "127.0.0.1", "::1")


@checked(frozen=True, slots=True, config=CHECKED)
class WebhookOptions:
    """The address of the service, and its timeouts."""

    #: Where orders are sent; docs/lending.md has the requests and answers.
    url: str
    #: An operation that is not done after this long has failed.
    timeout_s: Seconds = 300.0
    #: How long to wait for the answer to one request.
    request_timeout_s: Seconds = 10.0
    #: How often the state of a pending order is polled.
    poll_every_s: Seconds = 2.0
    #: How long to wait after a request that failed, doubling...
    retry_s: Seconds = 1.0
    #: ...up to this long.
    retry_max_s: Seconds = 30.0
    #: Its first line is sent as bearer token; read for each request, so that it may be replaced.
    token_file: Path | None = None
    #: Authorities to trust, PEM; None: the system's.
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        check_url(self.url)
        parts = urlsplit(self.url)
        if parts.scheme == "http" and self.token_file and parts.hostname not in _LOCAL:
            raise ValueError("url: the token would be sent in clear; use https")


class _Order:
    """One operation of the service, from the first request to the outcome."""

    def __init__(
        self, node: str, operation: Operation, number: int, now_s: float, options: WebhookOptions
    ) -> None:
        self.node, self.operation, self.number = node, operation, number
        self.due_s = now_s
        self._options = options
        self._until_s = now_s + self._options.timeout_s
        self._pause_s = self._options.retry_s
        self._is_sent = False
        self._attempt = 0
        self._call: Future[Answer] | None = None
        self._give_up: Callable[[], None] = lambda: None  #: Lets its thread end soon.
        self._call_until_s = math.inf
        self._wrong = "no answer yet"

    def is_quiet(self, now_s: float) -> bool:
        """Whether none of its requests is under way; one that takes too long is cancelled."""
        if self._call is None or self._call.done():
            return True
        if now_s >= self._call_until_s:
            self._give_up()
        return self._call.done()

    def poll(self, now_s: float) -> Outcome | None:
        if now_s >= self._until_s:
            if self._call is not None:
                self._give_up()
            return self._outcome(f"not done in {self._options.timeout_s:g} s: {self._wrong}")
        if self._call is None:
            if now_s >= self.due_s:
                self._ask(now_s)
            return None
        self.due_s = min(now_s + POLL_S, self._until_s)
        if not self.is_quiet(now_s):
            return None
        call, self._call = self._call, None
        return self._judge(call, now_s)

    def _ask(self, now_s: float) -> None:
        options = self._options
        self.due_s = min(now_s + POLL_S, self._until_s)
        headers = {"Accept": "application/json"}
        try:
            if options.token_file is not None:
                headers["Authorization"] = f"Bearer {_token(options.token_file)}"
        except (OSError, ValueError) as error:
            self._again(f"token_file cannot be used: {error}", now_s)
            return
        said = {"node": self.node, "action": self.operation, "order": self.number}
        method, url, body = "POST", options.url, None
        if self._is_sent:
            method = "GET"
            url += ("&" if urlsplit(url).query else "?") + urlencode(said)
        else:
            self._attempt += 1
            body = orjson.dumps({**said, "attempt": self._attempt})
            headers["Content-Type"] = "application/json"
            headers["Idempotency-Key"] = f"{self.node}-{self.number}"
        question = HttpRequest(
            method,
            url,
            timeout_s=options.request_timeout_s,
            bytes_max=_ANSWER_BYTES_MAX,
            body=body,
            headers=headers,
            ca_file=options.ca_file,
        )
        self._call, self._give_up = in_thread(question), question.give_up
        self._call_until_s = now_s + options.request_timeout_s

    def _judge(self, call: Future[Answer], now_s: float) -> Outcome | None:
        answer = None if call.exception() else call.result()
        if answer is None:
            wrong = str(call.exception()) or "no answer"
        elif self._is_sent and answer.status in _FORGOTTEN:
            self._is_sent = False
            wrong = f"it has forgotten the order (status {answer.status})"
        elif not answer.is_good:
            wrong = f"status {answer.status}: {_shown(answer.body)}"
            if answer.status < 500 and answer.status not in _TRY_AGAIN:
                return self._outcome(wrong)
        else:
            match _json(answer.body):
                case {"state": "done"}:
                    return self._outcome("")
                case {"state": "failed", **more}:
                    return self._outcome(f"it says: {str(more.get('error', 'failed'))[:200]}")
                case {"state": "pending"}:
                    self._is_sent, self._wrong = True, "still pending"
                    self._pause_s = self._options.retry_s
                    self.due_s = min(now_s + self._options.poll_every_s, self._until_s)
                    return None
                case _:
                    wrong = (
                        f'an answer without {{"state": "done" or "pending"}}: {_shown(answer.body)}'
                    )
        self._again(wrong, now_s)
        return None

    def _again(self, wrong: str, now_s: float) -> None:
        self._wrong = wrong
        self.due_s = min(now_s + self._pause_s, self._until_s)
        self._pause_s = min(2 * self._pause_s, self._options.retry_max_s)

    def _outcome(self, wrong: str) -> Outcome:
        place = self._options.url.partition("?")[0]  # what follows may be a secret
        error = f"{self.operation} at {place}: {wrong}" if wrong else ""
        return Outcome(self.node, self.operation, error)


class WebhookLender:
    """A Lender by requests to a URL."""

    def __init__(self, options: WebhookOptions, folder: Path) -> None:
        """Use this service; keep the numbers of orders in `folder`, which is made.

        Raises:
            OSError: the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._options = options
        self._folder = folder
        self._orders: dict[str, _Order] = {}
        #: Earlier orders whose last request may still be under way.
        self._before: dict[str, list[_Order]] = {}
        self._unwritten: dict[str, str] = {}

    def begin(self, node: str, operation: Operation, now_s: float) -> None:
        under_way = self._orders.get(node)
        if under_way is not None:
            if under_way.operation == operation:
                return
            self._before.setdefault(node, []).append(under_way)
        order = _Order(node, operation, self._number(node, operation, now_s), now_s, self._options)
        self._keep(order, is_open=True)
        self._orders[node] = order

    def poll(self, now_s: float) -> list[Outcome]:
        outcomes = []
        for node, order in list(self._orders.items()):
            before = [old for old in self._before.get(node, ()) if not old.is_quiet(now_s)]
            self._before[node] = before
            if before:
                order.due_s = now_s + POLL_S
            elif (outcome := order.poll(now_s)) is not None:
                before.append(self._orders.pop(node))
                self._keep(order, is_open=False)
                outcomes.append(outcome)
        return outcomes

    def next_due_s(self) -> float | None:
        return min((order.due_s for order in self._orders.values()), default=None)

    def problems(self) -> list[str]:
        return [f"order of {node}: {why}" for node, why in self._unwritten.items()]

    def _number(self, node: str, operation: Operation, now_s: float) -> int:
        """Give the number of an order: the last one if a crash interrupted it, else a higher one.

        Numbers are at least the seconds since 1970, so that they rise even if the file is lost.
        """
        try:
            match orjson.loads(self._file(node).read_bytes()):
                case {"order": int(last), "action": str(action), "is_open": bool(is_open)}:
                    return last if is_open and action == operation else max(last + 1, int(now_s))
                case _:
                    return int(now_s)
        except (OSError, orjson.JSONDecodeError):
            return int(now_s)

    def _keep(self, order: _Order, *, is_open: bool) -> None:
        kept = {"order": order.number, "action": order.operation, "is_open": is_open}
        self._unwritten.pop(order.node, None)
        try:
            write_json(self._file(order.node), kept)
        except OSError as error:
            self._unwritten[order.node] = f"its number cannot be written: {error}"

    def _file(self, node: str) -> Path:
        return self._folder / f"{node}.order.json"


def _token(file: Path) -> str:
    token = file.read_text(encoding="utf-8").partition("\n")[0].strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError(f"the first line of {file} is no token")
    return token


def _json(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _shown(body: bytes) -> str:
    return repr(body[:120].decode("utf-8", "replace"))
