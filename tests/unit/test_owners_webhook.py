"""The webhook against a real HTTP server that answers well, late, wrongly or not at all."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from runtime.owners import Outcome, WebhookLender, WebhookOptions
from tests.certificates import Authority
from tests.lending import failed, outcome
from tests.patience import wait_until

#: Status and body of an answer; a number instead of a body: bytes that come one each 0.05 s.
Said = tuple[int, bytes | int]
DONE = (200, b'{"state": "done"}')
PENDING = (202, b'{"state": "pending"}')


class Service:
    """A service that answers as `answer` says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], Said] = lambda _: DONE
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.respond(dict(parse_qsl(urlsplit(self.path).query)))

            def do_POST(self) -> None:
                self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def respond(self, said: dict[str, Any]) -> None:
                asked = {"method": self.command, "path": self.path, **said}
                asked["key"] = self.headers.get("Idempotency-Key")
                asked["token"] = self.headers.get("Authorization")
                service.asked.append(asked)
                status, body = service.answer(asked)
                self.send_response(status)
                self.end_headers()
                if isinstance(body, bytes):
                    self.wfile.write(body)
                    return
                for _ in range(body):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.05)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that gives up is what some tests are about

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def posts(self) -> list[dict[str, Any]]:
        return [one for one in self.asked if one["method"] == "POST"]


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


def options(service: Service, **more: Any) -> WebhookOptions:
    values = {
        "url": f"http://127.0.0.1:{service.port}/lend",
        "poll_every_s": 0.02,
        "retry_s": 0.02,
        "retry_max_s": 0.05,
    }
    return WebhookOptions(**{**values, **more})


def drained(lender: WebhookLender) -> Outcome:
    lender.begin("s1", "drain", time.time())
    return outcome(lender)


def test_an_order_is_posted_and_done(service: Service, tmp_path: Path) -> None:
    lender = WebhookLender(options(service), tmp_path)
    assert lender.next_due_s() is None
    assert drained(lender) == Outcome("s1", "drain")
    (asked,) = service.asked
    number = asked["order"]
    assert asked == {
        "method": "POST",
        "path": "/lend",
        "node": "s1",
        "action": "drain",
        "order": number,
        "attempt": 1,
        "key": f"s1-{number}",
        "token": None,
    }
    lender.begin("s1", "hand_back", time.time())
    assert outcome(lender) == Outcome("s1", "hand_back")
    assert service.asked[1]["action"] == "hand_back"
    assert service.asked[1]["order"] > number
    assert lender.next_due_s() is None


def test_pending_is_asked_for_until_it_is_done(service: Service, tmp_path: Path) -> None:
    service.answer = lambda _: DONE if len(service.asked) == 4 else PENDING
    assert drained(WebhookLender(options(service), tmp_path)) == Outcome("s1", "drain")
    assert [one["method"] for one in service.asked] == ["POST", "GET", "GET", "GET"]
    number = service.asked[0]["order"]
    assert service.asked[1]["path"] == f"/lend?node=s1&action=drain&order={number}"


def test_a_query_of_the_url_is_kept(service: Service, tmp_path: Path) -> None:
    service.answer = lambda asked: DONE if asked["method"] == "GET" else PENDING
    url = f"http://127.0.0.1:{service.port}/lend?team=llm"
    drained(WebhookLender(options(service, url=url), tmp_path))
    assert service.asked[1]["path"].startswith("/lend?team=llm&node=s1&action=drain&order=")


@pytest.mark.parametrize(
    "bad",
    [
        (500, b"oops"),
        (503, b""),
        (429, b"slow down"),
        (200, b"<html>"),
        (200, b"\xff\xfe"),
        (200, b'{"state": "maybe"}'),
        (200, b"[]"),
        (204, b""),
    ],
)
def test_what_may_pass_is_tried_again_under_the_same_key(
    service: Service, tmp_path: Path, bad: Said
) -> None:
    service.answer = lambda _: bad if len(service.asked) < 3 else DONE
    assert drained(WebhookLender(options(service), tmp_path)) == Outcome("s1", "drain")
    assert [one["attempt"] for one in service.posts()] == [1, 2, 3]
    assert len({one["key"] for one in service.posts()}) == 1


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ((401, b"who are you"), "status 401: 'who are you'"),
        ((302, b""), "status 302"),
        ((200, b'{"state": "failed", "error": "no such node"}'), "it says: no such node"),
    ],
)
def test_what_will_not_pass_fails_at_once(
    service: Service, tmp_path: Path, bad: Said, says: str
) -> None:
    service.answer = lambda _: bad
    assert says in drained(WebhookLender(options(service), tmp_path)).error
    assert len(service.asked) == 1


def test_a_service_that_forgot_is_told_again(service: Service, tmp_path: Path) -> None:
    answers = [PENDING, (404, b""), PENDING, DONE]
    service.answer = lambda _: answers[len(service.asked) - 1]
    assert drained(WebhookLender(options(service), tmp_path)) == Outcome("s1", "drain")
    assert [one["method"] for one in service.asked] == ["POST", "GET", "POST", "GET"]


def test_who_is_always_pending_has_failed_in_time(service: Service, tmp_path: Path) -> None:
    service.answer = lambda _: PENDING
    url = f"http://127.0.0.1:{service.port}/lend?key=secret"

    def operation(limit_s: float) -> Outcome:
        done = drained(WebhookLender(options(service, url=url, timeout_s=limit_s), tmp_path))
        assert f"not done in {limit_s:g} s: " in done.error
        assert "secret" not in done.error
        return done

    failed(operation, "still pending")


def test_nobody_there_has_failed_in_time(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"

    def operation(limit_s: float) -> Outcome:
        given = WebhookOptions(url, timeout_s=limit_s, retry_s=0.05)
        return drained(WebhookLender(given, tmp_path))

    failed(operation, "not done in ", "Connection refused")


def test_an_answer_that_drips_is_given_up_and_the_next_not_overtaken(
    service: Service, tmp_path: Path
) -> None:
    ended: list[str] = []

    def slow(asked: dict[str, Any]) -> Said:
        if asked["action"] == "hand_back":
            ended.append("hand_back")
            return DONE
        time.sleep(0.4)
        ended.append("drain")
        return 200, 2000  # bytes that would take 100 s

    service.answer = slow
    lender = WebhookLender(options(service, request_timeout_s=1.0, timeout_s=60.0), tmp_path)
    lender.begin("s1", "drain", time.time())
    wait_until(lambda: lender.poll(time.time()) or service.asked, "it was not asked")
    lender.begin("s1", "hand_back", time.time())
    began_s = time.monotonic()
    assert outcome(lender) == Outcome("s1", "hand_back")
    assert ended == ["drain", "hand_back"]
    assert time.monotonic() - began_s < 60, "the drip was not given up"


def test_a_crash_sends_the_same_order_again(service: Service, tmp_path: Path) -> None:
    service.answer = lambda _: PENDING
    lost = WebhookLender(options(service), tmp_path)
    lost.begin("s1", "drain", time.time())
    wait_until(lambda: lost.poll(time.time()) or service.posts(), "it was not asked")
    service.answer = lambda _: DONE
    assert drained(WebhookLender(options(service), tmp_path)) == Outcome("s1", "drain")
    first, second = service.posts()
    assert first["key"] == second["key"]

    drained(WebhookLender(options(service), tmp_path))
    assert service.posts()[-1]["order"] > first["order"], "a new order has a new number"


def test_numbers_rise_even_if_the_file_is_lost(service: Service, tmp_path: Path) -> None:
    drained(WebhookLender(options(service), tmp_path))
    time.sleep(1.01)  # numbers are in seconds
    (tmp_path / "s1.order.json").write_text("{")
    drained(WebhookLender(options(service), tmp_path))
    first, second = service.posts()
    assert second["order"] > first["order"]


def test_a_token_is_read_for_each_request(service: Service, tmp_path: Path) -> None:
    token = tmp_path / "token"

    def operation(limit_s: float) -> Outcome:
        given = options(service, token_file=token, timeout_s=limit_s)
        return drained(WebhookLender(given, tmp_path))

    failed(operation, "token_file cannot be used", "No such file")
    for word in ("first", "second"):
        token.write_text(f"{word}\n")
        assert operation(60.0).error == ""
    assert [one["token"] for one in service.asked] == ["Bearer first", "Bearer second"]
    token.write_text("\x01")
    failed(operation, "is no token")


def test_nodes_do_not_wait_for_each_other(service: Service, tmp_path: Path) -> None:
    service.answer = lambda asked: PENDING if asked["node"] == "slow" else DONE
    lender = WebhookLender(options(service), tmp_path)
    lender.begin("slow", "drain", time.time())
    assert drained(lender) == Outcome("s1", "drain")


def test_who_answers_is_checked(service: Service, tmp_path: Path) -> None:
    made = Authority(tmp_path).sign("service", names=("127.0.0.1",), server=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(str(made.cert), str(made.key))
    service.server.socket = tls.wrap_socket(service.server.socket, server_side=True)
    url = f"https://127.0.0.1:{service.port}/"

    def operation(limit_s: float) -> Outcome:
        return drained(WebhookLender(options(service, url=url, timeout_s=limit_s), tmp_path))

    failed(operation, "CERTIFICATE_VERIFY_FAILED")
    url_only, lost = {"url": url}, tmp_path / "lost.pem"
    failed(
        lambda limit_s: drained(
            WebhookLender(options(service, **url_only, ca_file=lost, timeout_s=limit_s), tmp_path)
        ),
        f"ca_file: {lost} cannot be used",
    )
    lender = WebhookLender(options(service, url=url, ca_file=made.ca), tmp_path)
    assert drained(lender) == Outcome("s1", "drain")


def test_a_number_that_cannot_be_written_is_a_problem(service: Service, tmp_path: Path) -> None:
    lender = WebhookLender(options(service), tmp_path / "orders")
    (tmp_path / "orders" / "s1.order.json").mkdir()
    assert drained(lender) == Outcome("s1", "drain")
    assert "order of s1: its number cannot be written" in lender.problems()[0]
    (tmp_path / "orders" / "s1.order.json").rmdir()
    drained(lender)
    assert lender.problems() == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"url": "ftp://host/"}, "url: give http"),
        ({"url": "https:///path"}, "url: give http"),
        ({"url": "https://ann@host/"}, "url: must have no user name"),
        ({"url": "http://host:99999/"}, "url: "),
        ({"url": "https://host/a b"}, "url: "),
        ({"url": "http://host/", "token_file": Path("t")}, "url: the token would be sent in clear"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"request_timeout_s": 0.0}, "request_timeout_s"),
        ({"poll_every_s": 0.0}, "poll_every_s"),
        ({"retry_s": 0.0}, "retry_s"),
        ({"retry_max_s": -1.0}, "retry_max_s"),
    ],
)
def test_options_name_the_field_that_is_wrong(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        WebhookOptions(**{"url": "http://localhost/", **wrong})
