"""Writes schemas/openapi.json from the routes and models.

python -m gateway.openapi            write it
python -m gateway.openapi --check    exit 1 if it is not what the code says
"""

import json
import sys
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from gateway.app import make_app
from gateway.branches import Branches
from gateway.cells import Cells
from gateway.limits import Limits
from gateway.log import ServedLog
from gateway.past import Past
from gateway.request_context import Gateway
from gateway.subjects import LocalToken, Role
from gateway.verifying import Verifying
from schemas.pages import keep

FILE = Path(__file__).resolve().parents[1] / "schemas" / "openapi.json"


def make() -> FastAPI:
    """Make the application as it is without a log."""
    clock = SystemClock()
    opening = partial(SqliteBus.open_readonly, Path(), clock)  # never called
    log = ServedLog("none", opening, None, Path())
    authority = LocalToken(Role.VIEWER, 8321)
    gateway = Gateway(
        Cells(log, clock),
        Past(),
        Limits(clock),
        authority,
        clock,
        "",
        Branches(opening),
        Verifying(opening),
    )
    return make_app(gateway)


def text() -> str:
    """Give the document."""
    document = make().openapi()
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or say whether it is as it should be."""
    return keep("gateway.openapi", {FILE: text()}, arguments)


if __name__ == "__main__":
    sys.exit(main())
