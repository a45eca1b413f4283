"""The gateway as a process: its socket, its token, and the file by which local clients find it."""

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import socket
import ssl
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import uvicorn

from bus.clock import Clock, SystemClock
from bus.contract import Bus, BusError
from bus.signing import Signer
from bus.tls import show_certificate
from explain.reading import CELL
from gateway.app import make_app
from gateway.branches import Branches
from gateway.cells import Cells
from gateway.connections import Connection, Shortage, allow_many
from gateway.guard import LOOPBACK_HOSTS
from gateway.identities import Identities, Rules
from gateway.limits import Limits
from gateway.log import ServedLog
from gateway.outbox import Outbox
from gateway.past import Past
from gateway.posting import Desk
from gateway.request_context import Gateway, LayOut
from gateway.sealing import Seal, read_secret
from gateway.subjects import Authority, LocalToken, Role
from gateway.verifying import Verifying
from runtime.durable import write_json
from scheduler import garbage
from services.gateway_section import SECRET_BYTES, AuthSection, GatewaySection

HOST = "127.0.0.1"
#: Connections that are open when it ends are cut after so many seconds.
_GRACE_S = 2
#: How often garbage is looked for, in seconds, if nobody waits for a moment of the past.
_TIDY_S = 0.5
#: Who takes nothing of what is sent for so many seconds is cut off.
_STUCK_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gateway listens, and what it serves."""

    log: str
    #: Opens a cell of the log for reading; of a file, all of it. Other processes do, too: it is a
    #: plain function, or a part of one.
    opening: Callable[[str], Bus]
    path: Path | None
    cells: tuple[str, ...] = ()  #: Where each is stored apart, as on Kafka; not in a file.
    section: GatewaySection = field(default_factory=GatewaySection)
    version: str = ""
    file: Path | None = None  #: Where the section is from.
    #: Reads `[gateway.auth]` anew; a ValueError says what is wrong with it.
    read: Callable[[], AuthSection] = AuthSection
    user: str = "local"  #: Whose gateway it is: the name of whoever has its token.
    #: Opens a cell of the log for requests; None: it is only read.
    writing: Callable[[str, Clock], Bus] | None = None
    signer: Signer | None = None  #: Signs them, where the log is not a file.
    lay_out: LayOut | None = None  #: As `gateway.request_context.Gateway` has it.


def serve(place: Place, announce: Callable[[str], None]) -> int:
    """Be the gateway until it is told to end; give the exit status.

    Args:
        place: Where it listens, and what it serves.
        announce: Told the address to open, once it can be.

    Raises:
        BusError: it cannot listen there; the text says what to do.
    """
    section, clock = place.section, SystemClock()
    garbage.put_off()
    allow_many()
    with contextlib.closing(_listening(section.host, section.port)) as listening:
        port = listening.getsockname()[1]
        log, *others = _logs(place)
        outboxes = _outboxes(place, log)
        tls = _tls(section)
        url = section.public_url or f"{'https' if tls else 'http'}://{HOST}:{port}"
        authority: Authority
        found: contextlib.AbstractContextManager[None]
        if section.auth.configured:
            authority, found = identities(place, clock), contextlib.nullcontext()
            opened = url
        else:
            # Who can write the log, or holds a key that the scheduler trusts, can say what an
            # administrator can without us: a lesser role would only send them round the gateway.
            role = Role.ADMIN if outboxes else Role.VIEWER
            local = LocalToken(role, port, name=place.user)
            authority, found = local, _found_by_clients(url, local.token, place.log, port)
            opened = f"{url}/?token={local.token}"
        gateway = Gateway(
            Cells(log, clock, others=others),
            Past(),
            Limits(clock),
            authority,
            clock,
            place.version,
            Branches(place.opening),
            Verifying(place.opening),
            Desk(outboxes.pop(place.cells[0] if place.cells else CELL, None), outboxes),
            place.lay_out,
        )
        with found:
            asyncio.run(_run(gateway, _hosts(section), tls, listening, lambda: announce(opened)))
    return 0


def _logs(place: Place) -> list[ServedLog]:
    """Give the log; where cells are stored apart, a part for each of them."""
    if not place.cells:
        return [ServedLog(place.log, lambda: place.opening(CELL), place.path, _cache())]
    return [
        ServedLog(place.log, partial(place.opening, cell), None, _cache(), cell)
        for cell in place.cells
    ]


def _outboxes(place: Place, log: ServedLog) -> dict[str, Outbox]:
    """Give where requests of each part go; none where nobody would take or may write them."""
    writing = place.writing
    if writing is None or not (log.writable or place.signer):
        return {}
    signer = None if place.path else place.signer
    return {
        cell: Outbox(partial(writing, cell), place.path, signer) for cell in place.cells or (CELL,)
    }


def identities(place: Place, clock: Clock) -> Identities:
    """Make the authority that `[gateway.auth]` tells of.

    Raises:
        BusError: a file that it names cannot be used.
    """
    section, auth = place.section, place.section.auth
    secret = secrets.token_bytes(SECRET_BYTES)  # without a file nothing is sealed for longer
    if auth.secret_file is not None:
        secret = read_secret(auth.secret_file)
    provider = None
    if auth.issuer:
        from gateway.provider import Client, Provider  # all that speaks to one costs a start 0.3 s

        try:
            word = "" if (file := auth.client_secret_file) is None else file.read_text("utf-8")
        except OSError as error:
            raise BusError(
                f"gateway.auth.client_secret_file: {auth.client_secret_file}: {error.strerror}"
            ) from error
        client = Client(
            issuer=auth.issuer,
            client_id=auth.client_id,
            client_secret=word.partition("\n")[0].strip(),
            scopes=auth.scopes,
            audiences=auth.audiences,
            redirect_uri=f"{section.public_url.rstrip('/')}/callback",
        )
        provider = Provider(client, clock)
    rules = Rules(auth, place.file, place.read, clock)
    secure = section.public_url.startswith("https:")
    return Identities(rules, provider, Seal(secret), clock, secure)


def _hosts(section: GatewaySection) -> tuple[str, ...]:
    """Give the names under which it is asked."""
    if not section.public_url:
        return LOOPBACK_HOSTS
    name = urlsplit(section.public_url).hostname or ""
    return (f"[{name}]" if ":" in name else name,)


def _tls(section: GatewaySection) -> Callable[..., ssl.SSLContext] | None:
    """Give how connections are secured; None: they are not.

    Raises:
        BusError: the certificate or its key cannot be used.
    """
    cert, key = section.cert_file, section.key_file
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        show_certificate(context, cert, key)
    except OSError as error:
        raise BusError(
            f"gateway.cert_file: {cert} with {key} cannot be used: {error.strerror or error}; "
            "both must be PEM, and belong together"
        ) from error
    return lambda *_: context


async def _run(
    gateway: Gateway,
    hosts: tuple[str, ...],
    tls: Callable[..., ssl.SSLContext] | None,
    listening: socket.socket,
    announce: Callable[[], None],
) -> None:
    config = uvicorn.Config(
        make_app(gateway, hosts),
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        # Who asks, and from where, is what the request itself says, not a header of whoever's.
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
        lifespan="on",
        ssl_context_factory=tls,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(Shortage())

    def end() -> None:
        gateway.closing.set()
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    announce()
    tidying = asyncio.create_task(_tidy(gateway.past))
    try:
        await server.serve(sockets=[listening])
    finally:
        tidying.cancel()


async def _tidy(past: Past) -> None:
    """Look for garbage between answers: a look goes through the past states that are kept."""
    while True:
        await asyncio.sleep(_TIDY_S)
        if not past.seeking:
            garbage.look()


class _Server(uvicorn.Server):
    """A server that leaves signals to us: an interrupt is how people end it, and no failure."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio sends without delay (TCP_NODELAY) only where the socket says what it
    # is. Else the second part of each answer waits 40 ms for the client's acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Each connection has it from here. What waits for one is bounded: the socket's buffers.
            stuck_ms = int(_STUCK_S * 1000)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stuck_ms)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise BusError(
                f"--port: {port} is in use; is a gateway running already? Choose another, or 0 "
                "for any that is free"
            ) from error
        raise BusError(f"{host}:{port}: {error.strerror}; choose another") from error
    return listening


@contextlib.contextmanager
def _found_by_clients(url: str, token: str, log: str, port: int) -> Iterator[None]:
    """Keep a file, for this user alone, by which programs on this machine find the gateway."""
    path = runtime_folder() / f"gateway-{port}.json"
    where = log if log.startswith("kafka:") else str(Path(log).resolve())
    said = {"url": url, "token": token, "pid": os.getpid(), "log": where}
    write_json(path, said, synced=False)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            # Another may have the port, and the file, by now.
            if orjson.loads(path.read_bytes())["pid"] == os.getpid():
                path.unlink()


def runtime_folder() -> Path:
    """Give the folder of that file: of this user alone.

    Raises:
        BusError: somebody else has made it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir():
        folder = Path(base) / "tidegate"
    else:
        folder = Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise BusError(f"{folder} is not this user's; set XDG_RUNTIME_DIR to a folder that is")
    folder.chmod(0o700)
    return folder


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tidegate"
