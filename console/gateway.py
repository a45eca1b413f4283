"""`tidegate serve`: the gateway of a log; `tidegate gateway token`: a robot's way in."""

import asyncio
import logging
import re
import sys
import webbrowser
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from bus.clock import Clock, SystemClock
from bus.contract import Bus, BusError, Unreadable
from bus.sqlite import SqliteBus
from console.kafka import is_kafka, kafka_bus, options_of, settled
from console.output import fail, out, tell
from console.panel import plain_panel
from console.reading import DEFAULT_LOG, located
from console.request import signer_of, user
from console.serve import ConfigPath, Settings, needing
from schemas.parse import first_error
from schemas.release import release

#: Who asks for something waits so long for others who write the file, in seconds.
_BUSY_S = 5.0


def serve(
    source: Annotated[str | None, typer.Argument(metavar="[LOG]", help="As --log.")] = None,
    log: Annotated[
        str,
        typer.Option(
            "--log", help="The log, finished or live: a file, or kafka:.", envvar="TIDEGATE_LOG"
        ),
    ] = DEFAULT_LOG,
    port: Annotated[
        int | None,
        typer.Option(
            help="Where it listens; 0 for any that is free. If not given: gateway.port, 8321.",
            min=0,
            max=65535,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="The address it listens on; one that others reach needs TLS and identities. "
            "If not given: gateway.host, 127.0.0.1."
        ),
    ] = None,
    config: ConfigPath = None,
    settings: Settings = None,
    sign: Annotated[
        str | None,
        typer.Option(
            "--sign-key",
            metavar="KEY_ID=FILE",
            envvar="TIDEGATE_SIGN",
            help="Over Kafka: sign what people ask for with this Ed25519 key, which the scheduler "
            "trusts; without it the log is only read.",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the address in a browser.")] = True,
) -> None:
    """Serve a log over HTTP: every view, at any moment, and requests, as JSON.

    On this machine, the address that it prints lets a browser in; programs
    send its token. With gateway.auth of a configuration, people sign in and
    robots have tokens. An interrupt ends it. docs/gateway.md tells what can be
    asked, and by whom.

    Example: tidegate serve run.db --port 8321 --no-browser
    """
    address = source or log
    with needing("gateway"):
        from gateway.server import Place, serve as serve_
        from services.config import ConfigError, load
        from services.gateway_section import AuthSection
        from services.secret_files import open_to_all

    flags = list(settings or [])
    flags += [] if host is None else [f"gateway.host={host}"]
    flags += [] if port is None else [f"gateway.port={port}"]
    try:
        found = load(config, flags)
    except ConfigError as error:
        fail(str(error))
    section = found.gateway
    for sentence in open_to_all(found, "gateway"):
        logging.getLogger("tidegate.gateway").warning(sentence)
    kafka = None
    if is_kafka(address):
        kafka = asyncio.run(settled(address, options_of(address, config, flags)))
    name = located(address) if kafka is None else kafka.address
    if kafka is None:
        _check(name)

    def read() -> AuthSection:
        return load(config, flags).gateway.auth

    def writing(cell: str, clock: Clock) -> Bus:
        if kafka is not None:
            return kafka_bus(kafka, clock, cell)
        return SqliteBus.open(name, clock, busy_timeout_s=_BUSY_S)

    def announce(url: str) -> None:
        tell(url)
        out().print("An interrupt (Ctrl-C) ends it.")
        if browser:
            webbrowser.open(url)

    place = Place(
        name,
        partial(_of_file, name) if kafka is None else partial(kafka_bus, kafka, SystemClock()),
        Path(name) if kafka is None else None,
        () if kafka is None else kafka.cells,
        section=section,
        version=release(),
        file=config,
        read=read,
        user=user(),
        writing=writing,
        signer=None if kafka is None else signer_of(sign),
        lay_out=plain_panel,
    )
    raise typer.Exit(serve_(place, announce))


def _check(path: str) -> None:
    """End if a file is no log, or one of a newer release: no time would make it readable."""
    try:
        asyncio.run(SqliteBus.open_readonly(path, SystemClock()).close())
    except Unreadable as error:
        fail(f"--log: {error}.")
    except BusError:
        pass  # such as one that is locked: the gateway goes on, and says so until it is not


def _of_file(path: str, cell: str) -> Bus:
    """Open a log that is a file, which holds all cells."""
    del cell
    return SqliteBus.open_readonly(path, SystemClock())


gateway = typer.Typer(no_args_is_help=True, help="Let robots into a gateway.")


@gateway.callback()
def _gateway() -> None:
    """Let robots into a gateway."""


@gateway.command()
def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the robot is called.")],
    role: Annotated[str, typer.Option(help="viewer, tenant, operator or admin.")] = "viewer",
    tenant: Annotated[
        str | None, typer.Option(help="Whose jobs are its own; a tenant must have one.")
    ] = None,
    expires: Annotated[str, typer.Option(help="When its token ends: 12h, 90d.")] = "90d",
) -> None:
    """Make a robot's token, and the table of the configuration that lets it in.

    The token is on standard error, this once, and nowhere else; the table, which holds no secret,
    is on standard output. The gateway takes it a second after it is in its file.

    Example: tidegate gateway token ci --role tenant --tenant acme >> tidegate.toml
    """
    with needing("gateway"):
        from gateway.identities import new_token
        from services.gateway_section import RobotSection
    found = re.fullmatch(r"([1-9][0-9]{0,4})([hd])", expires)
    if found is None:
        fail(f"--expires: {expires!r} is no length of time; write 12h or 90d")
    hours = int(found[1]) * (24 if found[2] == "d" else 1)
    ends = datetime.fromtimestamp(int(SystemClock().now_s()) + hours * 3600, UTC)
    if role == "tenant" and tenant is None:
        fail("--tenant is missing: a robot whose role is tenant acts for one; add --tenant NAME")
    secret, digest = new_token()
    try:
        RobotSection.model_validate(
            {"name": name, "role": role, "tenant": tenant, "sha256": digest, "expires": ends}
        )
    except ValidationError as error:
        wrong = first_error(error)
        fail(f"--{wrong.field}: {wrong.reason}" if wrong.field else wrong.reason)
    lines = [f'name = "{name}"', f'role = "{role}"']
    lines += [] if tenant is None else [f'tenant = "{tenant}"']
    lines += [f'sha256 = "{digest}"', f"expires = {ends:%Y-%m-%dT%H:%M:%SZ}"]
    sys.stderr.write(f"Its token, shown this once: {secret}\n")
    sys.stdout.write("\n".join(["[[gateway.auth.robots]]", *lines]) + "\n")
