"""The environment of the service: that of its own file, without the operator's shell.

Otherwise a shell in which TIDEGATE_MQTT_URL is set would make us check another broker.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from services.install.layout import ENVIRONMENT, Layout


def service_environment(layout: Layout, ours: Mapping[str, str]) -> dict[str, str]:
    """Give the environment that the service has; without its file, if we may not read that."""
    try:
        lines = layout.here(ENVIRONMENT).read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = {name: value for name, value in ours.items() if not name.startswith("TIDEGATE_")}
    for line in lines:
        name, sign, value = line.strip().partition("=")
        if sign and not name.startswith(("#", ";")):
            found[name] = value.strip("\"'")
    return found


@contextmanager
def as_service(layout: Layout) -> Iterator[None]:
    """Have the service's environment for a while."""
    before = dict(os.environ)
    try:
        enter(layout)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def enter(layout: Layout) -> None:
    """Have the service's environment from here on."""
    wanted = service_environment(layout, os.environ)
    os.environ.clear()
    os.environ.update(wanted)
