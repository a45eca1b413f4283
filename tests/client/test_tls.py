"""What a client says of certificates, and of who speaks TLS where the other does not."""

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority
from tidegate_client import Client, ContextError, NoGateway
from tidegate_client.errors import no_gateway
from tidegate_client.login import provider_of


@pytest.mark.usefixtures("slept")
def test_a_certificate_that_cannot_be_trusted_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "certs")
    files = authority.sign("tide", names=("elsewhere.example",), server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert or "", files.key)

    def greets(server: socket.socket) -> None:
        while True:
            try:
                with server.accept()[0] as one, context.wrap_socket(one, server_side=True):
                    pass
            except ssl.SSLError:
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=greets, args=(server,), daemon=True).start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(NoGateway) as raised:
            Client(url, "the-secret").overview()
        assert str(raised.value).startswith(
            f"{url}: its certificate is by an authority that this machine does not know; export "
            "SSL_CERT_FILE=ca.pem"
        )
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
        with pytest.raises(NoGateway) as raised:
            Client(url, "the-secret").overview()
        said = str(raised.value)
        assert said.startswith(f"{url}: its certificate cannot be trusted: IP address mismatch")
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("slept")
def test_who_speaks_tls_where_the_other_does_not_is_told_which_address_to_write(
    tmp_path: Path,
) -> None:
    files = Authority(tmp_path / "certs").sign("tide", names=("tide.example",), server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert or "", files.key)

    def speaks(server: socket.socket, *, tls: bool, resets: bool) -> None:
        while True:
            try:
                one = server.accept()[0]
            except OSError:
                return
            with one, contextlib.suppress(OSError):
                if tls and resets:
                    context.wrap_socket(one, server_side=True).close()
                elif one.recv(65_536) and not tls:
                    one.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    for scheme, resets, said in (
        ("http", True, "; if a gateway with TLS is there, write https:// and the name that its c"),
        ("http", False, "; if a gateway with TLS is there, write https:// and the name that its c"),
        ("https", False, "; what is there has no TLS: write http://127.0.0.1:"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:
            how = {"tls": scheme == "http", "resets": resets}
            threading.Thread(target=speaks, args=(server,), kwargs=how, daemon=True).start()
            url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
            with pytest.raises(NoGateway) as raised:
                Client(url, "the-secret").overview()
            assert said in str(raised.value)
            with httpx.Client() as http, pytest.raises(NoGateway) as raised:
                provider_of(url, http)
            assert said in str(raised.value)
            server.shutdown(socket.SHUT_RDWR)
    request = httpx.Request("GET", "https://tide.example:8321/api/v1/me")
    wrong = httpx.ConnectError("wrong version number", request=request)
    wrong.__cause__ = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    wrong.__cause__.reason = "WRONG_VERSION_NUMBER"
    assert "set in [gateway] of its configuration" in str(no_gateway(wrong)), "nobody writes http"


@pytest.mark.parametrize("holds", [None, "no certificate"])
def test_a_file_of_authorities_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if holds is not None:
        file.write_text(holds)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(ContextError) as raised:
        Client("https://tide.example:8321", "the-secret")
    assert str(raised.value).startswith(f"SSL_CERT_FILE: {file}: ")
    assert str(raised.value).endswith(
        "; name the PEM file of the authority's certificate there, or unset it"
    )
