"""Begins a service with as little as it needs: it stays for months, on machines with little room.

The operators' verbs, and what reads their options, take more memory than an agent does.
"""

import importlib
import os
import sqlite3
import sys
from collections.abc import Sequence
from errno import ENOSPC
from pathlib import Path
from typing import Any

from bus.contract import BusError
from console.start import imported
from runtime.store import StoreError

#: By verb, the module that is the service, and the extra that has all it needs.
SERVICES = {
    "scheduler": ("services.scheduler", "scheduler"),
    "bridge": ("services.bridge", "bridge"),
    "cloud-agent": ("services.cloud_agent", "cloud"),
    "edge-agent": ("services.edge_agent", "edge"),
}
#: What an operator can cause; anything else is a bug and keeps its traceback.
KNOWN: tuple[type[Exception], ...] = (BusError, StoreError, sqlite3.Error, OSError, ValueError)
STOPPED = "Stopped. What was recorded stays; run the same command again."


def begin(arguments: Sequence[str]) -> int | None:
    """Run the service that the arguments ask for; give the exit code.

    None: they ask for something else, or in another way than with --config and --set.
    """
    verb, *options = arguments or ("",)
    given = _read(options) if verb in SERVICES else None
    if given is None:
        return None
    try:
        return serve(verb, *given)
    except KeyboardInterrupt:
        _say(STOPPED)
    except KNOWN as error:
        if os.environ.get("TIDEGATE_DEBUG") == "1":
            raise
        _say(sentence(error))
    return 2


def serve(verb: str, config: Path | None, settings: Sequence[str]) -> int:
    """Be the service until it ends; give the exit code.

    Raises:
        Exception: one of `KNOWN`, where it cannot begin.
    """
    module, extra = SERVICES[verb]
    try:
        # Not before they are needed: a plain install has no brokers' clients.
        loading: Any = importlib.import_module("services.config")
        role: Any = importlib.import_module(module)
        imported()
        code: int = role.main(loading.load(config, settings))
    except ModuleNotFoundError as error:
        _say(f"{error.name} is not installed; pip install 'tidegate[{extra}]' has all it needs.")
        return 2
    return code


def sentence(error: Exception) -> str:
    """Say what is wrong, as one of `KNOWN` has it."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        what = "make room there" if error.errno == ENOSPC else "check the path and who may use it"
        return f"{where}{error.strerror}; {what}."
    # Each wrong key of a configuration, and each bad row of a trace, has a line of its own.
    lines: Sequence[str] = getattr(error, "lines", (str(error) or type(error).__name__,))
    texts = [" " * (len(one) - len(one.lstrip())) + " ".join(one.split()) for one in lines]
    return "\n".join(one if one.endswith((".", "!", "?", ":")) else f"{one}." for one in texts)


def _read(options: Sequence[str]) -> tuple[Path | None, list[str]] | None:
    """Read --config and --set; None if there is anything else."""
    config, settings = None, []
    left = iter(options)
    for option in left:
        name, sign, value = option.partition("=")
        value = value if sign else next(left, "")
        if name == "--config" and value:
            config = Path(value)
        elif name == "--set" and value:
            settings.append(value)
        else:
            return None
    return config, settings


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
