"""`tidegate scheduler`, `bridge`, `cloud-agent`, `edge-agent`: the services, as verbs."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from console import service
from console.output import fail
from console.start import importing_late

ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration, a TOML file. docs/configuration.md lists its keys; "
        "tidegate config prints what is in force.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set one key; may be repeated."),
]


def scheduler(config: ConfigPath = None, settings: Settings = None) -> None:
    """Lead cells: consume events, decide, command. A second process stands by.

    Example: tidegate scheduler --config tidegate.toml --set scheduler.name=scheduler-1
    """
    _serve("scheduler", config, settings)


def bridge(config: ConfigPath = None, settings: Settings = None) -> None:
    """Carry edge agents' messages from MQTT to Kafka, and their commands back.

    Example: tidegate bridge --config tidegate.toml --set bridge.name=bridge-1
    """
    _serve("bridge", config, settings)


def cloud_agent(config: ConfigPath = None, settings: Settings = None) -> None:
    """Look after a cluster's nodes, over Kafka or, on one machine, a file.

    Example: tidegate cloud-agent --config tidegate.toml --set agent.name=train
    """
    _serve("cloud-agent", config, settings)


def edge_agent(
    context: typer.Context, config: ConfigPath = None, settings: Settings = None
) -> None:
    """Look after one edge server, over MQTT; it works on while it is offline.

    Without a verb it runs here and now. As a service of this machine: install, status, uninstall.

    Example: tidegate edge-agent --config tidegate.toml --set agent.name=edge-17
    """
    verb = context.invoked_subcommand
    if verb is None:
        _serve("edge-agent", config, settings)
    elif config is not None or settings:
        fail(f"--config and --set go after {verb}; see `tidegate edge-agent {verb} --help`.")


def config(config: ConfigPath = None, settings: Settings = None) -> None:
    """Print the configuration as it is in force, secrets hidden.

    Example: tidegate config --config tidegate.toml --set kafka.namespace=plant
    """
    with needing("service"):
        loading: Any = importlib.import_module("services.config")
    loaded = loading.load(config, settings or [])
    loaded.scheduler.check_policy()
    sys.stdout.write(loaded.model_dump_json(indent=2) + "\n")


def _serve(verb: str, config: Path | None, settings: list[str] | None) -> None:
    raise typer.Exit(service.serve(verb, config, settings or []))


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Import what an extra brings; say which to install where a module turns out to be missing."""
    try:
        with importing_late():
            yield
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'tidegate[{extra}]' has all it needs.")
