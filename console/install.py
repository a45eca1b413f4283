"""`tidegate edge-agent install`, `status`, `uninstall`: the agent as a service of a machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from bus.clock import SystemClock
from console import serve
from console.findings import drawn
from console.output import JsonPath, emit_json, fail, out, tell
from console.serve import needing
from console.service import sentence

if TYPE_CHECKING:
    from services.install.setup import Setup
    from services.install.status import Status

edge_agent = typer.Typer(invoke_without_command=True)
edge_agent.callback()(serve.edge_agent)

_STYLES = {"new": "green", "changed": "yellow", "same": "dim"}
_Root = Annotated[
    Path,
    typer.Option(
        "--root",
        metavar="DIR",
        show_default=False,
        help="A tree that is to become a machine, instead of this one.",
    ),
]
_File = Path | None
_SLASH = Path("/")


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


@edge_agent.command()
def install(
    name: Annotated[
        str | None, _option("--name", "NAME", "Who it is: the common name of its certificate.")
    ] = None,
    broker: Annotated[
        str | None, _option("--broker", "URL", "The MQTT broker: mqtts://HOST:8883.")
    ] = None,
    checkpoints: Annotated[
        str | None,
        _option("--checkpoints", "URL", "Where checkpoints are stored: s3://BUCKET/FOLDER."),
    ] = None,
    ca: Annotated[_File, _option("--ca", "FILE", "The authority to trust, PEM.")] = None,
    cert: Annotated[_File, _option("--cert", "FILE", "The agent's certificate, PEM.")] = None,
    key: Annotated[_File, _option("--key", "FILE", "The certificate's private key, PEM.")] = None,
    trusted_key: Annotated[
        list[str] | None,
        _option("--trusted-key", "KID=FILE", "A public key of the scheduler; may be repeated."),
    ] = None,
    gpus: Annotated[
        int | None, _option("--gpus", "N", "GPUs (or CPU slots) to offer; by default counted.")
    ] = None,
    gpu_type: Annotated[
        str | None,
        _option("--gpu-type", "NAME", "What they are, cpu for slots; by default the driver's."),
    ] = None,
    owner: Annotated[
        str | None,
        _option("--owner", "none", "Nobody but training needs the GPUs; owners go into --config."),
    ] = None,
    isolation: Annotated[
        str | None,
        _option(
            "--isolation",
            "tenant|none",
            "As whom jobs run: a user for each tenant (then the agent is root), or the agent's.",
        ),
    ] = None,
    config: Annotated[
        _File,
        _option("--config", "FILE", "A configuration of your own, instead of the options above."),
    ] = None,
    environment: Annotated[
        _File,
        _option(
            "--environment", "FILE", "Lines NAME=VALUE for the agent, as the store's credentials."
        ),
    ] = None,
    user: Annotated[
        str | None,
        _option("--user", "USER", "Whom the agent runs as; by default root, else tidegate."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")
    ] = False,
    root: _Root = _SLASH,
) -> None:
    """Install the agent as a systemd service, or bring it up to date.

    Writes /etc/tidegate/edge-agent.toml with certificates beside it, and a unit; keeps its state in
    /var/lib/tidegate. Again, without options, it keeps the configuration, writes the unit anew and
    restarts the agent; workers run on meanwhile. docs/install.md tells all of it.

    Exit codes: 0 done, 1 installed but the agent has a problem, or half installed since a step
    failed, or only root may install, 2 refused otherwise: nothing was changed.

    Example: tidegate edge-agent install --name edge-17 --broker mqtts://broker:8883
    --checkpoints s3://bucket/checkpoints --owner none --ca ca.pem --cert edge-17.pem
    --key edge-17.key
    """
    with needing("edge"):
        from console.agent_status import lines
        from services.install.environment import as_service
        from services.install.layout import Layout
        from services.install.prepare import prepare
        from services.install.setup import carry_out, left_to_do, set_up
        from services.install.status import settled
        from services.install.systemd import SystemdError
        from services.install.wanted import NotRoot, Request
    layout = Layout.of(root)
    request = Request(
        name,
        broker,
        checkpoints,
        ca,
        cert,
        key,
        trusted_key or (),
        gpus,
        gpu_type,
        owner,
        isolation,
        config,
        environment,
    )
    with as_service(layout, environment):
        prepared = prepare(request, layout, SystemClock().now_s())
    setup = set_up(prepared, layout, user)
    if not dry_run:
        try:
            carry_out(setup)
        except NotRoot as error:
            fail(f"{error}.", code=1)
        except (SystemdError, OSError) as error:
            # Files may be written by then: it is no refusal any more.
            fail(f"{sentence(error)} It is not all installed; the same command goes on.", code=1)
    _show_changes(setup, dry_run=dry_run)
    for remark in prepared.remarks:
        out().print(Text(f"! {remark}", "yellow"))
    if dry_run:
        out().print("Nothing was written. Without --dry-run it is.")
    elif layout.staged:
        out().print(Text(f"Staged in {layout.root}; nothing was started."))
        if (left := left_to_do(setup)) is not None:
            out().print(Text(f"! {left}", "yellow"))
    else:
        out().print("Restarted; workers ran on." if setup.upgrade else "Started.")
        found = settled(layout)
        out().print(_title(found), drawn(lines(found)), sep="\n")
        out().print("sudo tidegate doctor looks closer.")
        raise typer.Exit(1 if found.problems else 0)


def _show_changes(setup: "Setup", *, dry_run: bool) -> None:
    for change in setup.changes:
        style = _STYLES[change.kind]
        line = Text.assemble((f"{change.kind:8}", style), str(change.file.path))
        out().print(line.append(f"  {change.file.mode:04o}", "dim"))
        if dry_run or change.kind == "changed":
            for text in change.difference:
                out().print(Text(f"    {text}", "dim"), soft_wrap=True)
    who = f"{setup.user} ({'as it is' if setup.account else 'is made'})"
    folders = ", ".join(map(str, setup.folders))
    out().print(Text.assemble(("user    ", "dim"), who))
    out().print(Text.assemble(("keeps   ", "dim"), folders))


@edge_agent.command()
def status(
    config: Annotated[
        _File, _option("--config", "FILE", "Of an agent that runs without a service.")
    ] = None,
    root: _Root = _SLASH,
    json_path: JsonPath = None,
) -> None:
    """Say how the installed agent fares: service, link, what waits to be sent, gangs that run.

    Exit codes: 0 all is well, 1 there is a problem, 2 nothing is installed.

    Example: tidegate edge-agent status
    """
    with needing("edge"):
        from console.agent_status import document, lines
        from services.install.layout import Layout
        from services.install.status import look
    found = look(config, Layout.of(root))
    if not found.installed:
        fail(
            f"No agent is installed: there is no {found.config_file}. "
            "`tidegate edge-agent install` makes it; --help says how."
        )
    emit_json(document(found), json_path)
    if json_path != "-":
        out().print(_title(found), drawn(lines(found)), sep="\n")
    raise typer.Exit(1 if found.problems else 0)


def _title(found: "Status") -> Text:
    name = None if found.config is None else found.config.agent.name
    return Text.assemble((name or "An agent", "bold"), (f"  {found.config_file}", "dim"))


@edge_agent.command()
def uninstall(
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Remove its state on this machine too, and end gangs that run."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Even while gangs run.")] = False,
    root: _Root = _SLASH,
) -> None:
    """Stop and remove the service and its configuration; state and checkpoints stay.

    While gangs run it refuses, unless forced: then they run on by themselves; with --purge they are
    told to save and leave. Checkpoints in a store elsewhere are never touched.

    Exit codes: 0 done, or nothing is installed, 1 refused, or not all could be removed.

    Example: tidegate edge-agent uninstall
    """
    with needing("edge"):
        from services.install.layout import Layout
        from services.install.removal import remove
        from services.install.status import look
        from services.install.systemd import SystemdError
        from services.install.wanted import InstallError
    layout = Layout.of(root)
    found = look(None, layout)
    if not found.installed and not purge:
        tell(f"No agent is installed: there is no {found.config_file}. Nothing was changed.")
        return
    try:
        done = remove(found, layout, purge=purge, force=force)
    except InstallError as error:
        fail(f"{error}.", code=1)
    except (SystemdError, OSError) as error:
        # Files may be gone by then: it is no refusal, and nothing was called wrongly.
        fail(f"{sentence(error)} It is not all removed; the same command goes on.", code=1)
    for gone in done.gone:
        out().print(Text.assemble(("removed ", "red"), gone))
    for left in done.left:
        out().print(Text.assemble(("left    ", "green"), left))
