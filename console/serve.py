"""`tidegate scheduler`, `bridge`, `cloud-agent`, `edge-agent`: the services, as verbs."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from console.output import fail

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
    _serve("services.scheduler", "scheduler", config, settings)


def bridge(config: ConfigPath = None, settings: Settings = None) -> None:
    """Carry edge agents' messages from MQTT to Kafka, and their commands back.

    Example: tidegate bridge --config tidegate.toml --set bridge.name=bridge-1
    """
    _serve("services.bridge", "bridge", config, settings)


def cloud_agent(config: ConfigPath = None, settings: Settings = None) -> None:
    """Look after a cluster's nodes, over Kafka.

    Example: tidegate cloud-agent --config tidegate.toml --set agent.name=train
    """
    _serve("services.cloud_agent", "cloud", config, settings)


def edge_agent(config: ConfigPath = None, settings: Settings = None) -> None:
    """Look after one edge server, over MQTT; it works on while it is offline.

    Example: tidegate edge-agent --config tidegate.toml --set agent.name=edge-17
    """
    _serve("services.edge_agent", "edge", config, settings)


def config(config: ConfigPath = None, settings: Settings = None) -> None:
    """Print the configuration as it is in force, secrets hidden.

    Example: tidegate config --config tidegate.toml --set kafka.namespace=plant
    """
    try:
        loading: Any = importlib.import_module("services.config")
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'tidegate[service]' has all it needs.")
    sys.stdout.write(loading.load(config, settings or []).model_dump_json(indent=2) + "\n")


def _serve(module: str, extra: str, config: Path | None, settings: list[str] | None) -> None:
    try:
        # Not before they are needed: a plain install has no brokers' clients.
        loading: Any = importlib.import_module("services.config")
        role: Any = importlib.import_module(module)
        code = role.main(loading.load(config, settings or []))
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'tidegate[{extra}]' has all it needs.")
    raise typer.Exit(code)
