"""Metrics pages over real HTTP on loopback, as servers give them and as broken ones do."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: What is sent, and whether the connection is then left open.
Answer = Callable[[socket.socket, threading.Event], None]


def page(name: str) -> str:
    """A recorded-looking page, by file name."""
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8")


def text(body: str, status: str = "200 OK") -> Answer:
    """The body, whole, as a well-behaved server sends it."""

    def send(client: socket.socket, _: threading.Event) -> None:
        raw = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        client.sendall(head.encode() + raw)

    return send


def chunked(body: str) -> Answer:
    """The body in chunks of ten bytes."""

    def send(client: socket.socket, _: threading.Event) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        raw = body.encode()
        for at in range(0, len(raw), 10):
            part = raw[at : at + 10]
            client.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        client.sendall(b"0\r\n\r\n")

    return send


def raw(answer: bytes) -> Answer:
    """These bytes, whatever they are."""
    return lambda client, _: client.sendall(answer)


def hanging(client: socket.socket, closed: threading.Event) -> None:
    """Nothing, for ever."""
    closed.wait()


def dripping(client: socket.socket, closed: threading.Event) -> None:
    """A byte now and then, for ever: no single read ever times out."""
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not closed.wait(0.02):
        client.sendall(b"#")


def endless(client: socket.socket, closed: threading.Event) -> None:
    """As much as the other side takes."""
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not closed.is_set():
        client.sendall(b"metric 1\n" * 10_000)


class Site:
    """A server whose answer can be changed, and which can be gone and come back on its port."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked = 0
        #: The last that came.
        self.request = b""
        self._port = 0
        self._closed = threading.Event()
        self._listener: socket.socket | None = None
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/metrics"

    def up(self) -> None:
        """Listen, on the same port as before."""
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", self._port), reuse_port=True)
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        """Be gone: connections are refused."""
        self._closed.set()
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                request = b""
                while b"\r\n\r\n" not in request:
                    part = client.recv(4096)
                    if not part:
                        return
                    request += part
                self.request = request
                self.asked += 1
                self.answer(client, self._closed)
            except OSError:
                return  # the client went away, as impatient clients do


@contextmanager
def served(answer: Answer) -> Iterator[Site]:
    """A site while the block runs."""
    site = Site(answer)
    try:
        yield site
    finally:
        site.down()
