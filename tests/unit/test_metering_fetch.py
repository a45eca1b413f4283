"""One GET, against servers that behave and servers that do not."""

import socket
import threading
from collections.abc import Callable

import pytest

from runtime.http_client import HttpError, HttpTimeoutError, HttpTooLargeError, check_url
from runtime.metering.fetch import fetch
from runtime.periodic import monotonic_s
from tests.metering.pages import (
    Answer,
    Site,
    chunked,
    dripping,
    endless,
    hanging,
    page,
    raw,
    served,
    text,
)
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("how", [text, chunked], ids=["whole", "chunked"])
def test_a_page_is_got_whole(how: Callable[[str], Answer]) -> None:
    with served(how(page("vllm_v1"))) as site:
        assert fetch(site.url, PATIENCE_S) == page("vllm_v1")


def test_an_answer_that_says_its_length_ends_there_though_the_connection_stays_open() -> None:
    def stay(client: socket.socket, closed: threading.Event) -> None:
        text("a 1\n")(client, closed)
        closed.wait()

    with served(stay) as site:
        assert fetch(site.url, PATIENCE_S) == "a 1\n"


def test_the_query_is_sent_and_that_it_is_to_be_plain_text() -> None:
    with served(text("a 1\n")) as site:
        fetch(f"{site.url}?x=1", PATIENCE_S)
        assert b"GET /metrics?x=1 HTTP/1.1\r\n" in site.request
        assert b"\r\nAccept: text/plain;version=0.0.4" in site.request


@pytest.mark.parametrize("answer", [hanging, dripping], ids=["hanging", "dripping"])
def test_a_page_that_does_not_end_in_time_is_given_up(answer: Answer) -> None:
    with served(answer) as site:
        began_s = monotonic_s()
        with pytest.raises(HttpTimeoutError, match=r"no whole answer within 0.1 s"):
            fetch(site.url, 0.1)
        assert 0.1 <= monotonic_s() - began_s < PATIENCE_S


def test_a_page_that_is_too_large_is_given_up() -> None:
    with served(endless) as site, pytest.raises(HttpTooLargeError, match="more than 8388608 bytes"):
        fetch(site.url, PATIENCE_S)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (text("gone", "503 Service Unavailable"), "answers 503 Service Unavailable; give the"),
        (text("", "302 Found"), "answers 302 Found"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "not a whole answer in HTTP"),
        (raw(b""), "not a whole answer in HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na 1\n"), "IncompleteRead"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe\n"), "not a page in UTF-8"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "not a whole answer"),
    ],
)
def test_what_is_no_page_is_an_error_that_says_so(answer: Answer, what: str) -> None:
    with served(answer) as site, pytest.raises(HttpError, match=what):
        fetch(site.url, PATIENCE_S)


def test_a_server_that_is_not_there_is_an_error() -> None:
    site = Site(hanging)
    site.down()
    with pytest.raises(HttpError, match="is the server up and the address right"):
        fetch(site.url, PATIENCE_S)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:1/metrics",
        "ftp://a/",
        "http:///x",
        "http://a:99999/",
        "http://a/ b",
        "http://u:p@a/",
        "http://a:0/",
        "http://a/#part",
        "http://a/\u00fc",
    ],
)
def test_an_address_that_cannot_be_fetched_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url: "):
        check_url(url)
