"""docs/gateway-rights.md says who may ask for what, as the gateway answers."""

import re
from pathlib import Path

from scheduler.core.rights import MAY
from tests.gateway import rights_table
from tests.gateway.test_sight import two

__all__ = ["two"]


async def test_the_page_is_what_the_gateway_answers(two: Path) -> None:
    made = await rights_table.page(two)
    assert made == rights_table.PAGE.read_text(), "run python -m tests.gateway.rights_table"


def test_the_page_agrees_with_the_rights_that_the_scheduler_gives() -> None:
    """By verb, roles of the page that are answered are those that the core lets ask."""
    text = rights_table.PAGE.read_text()
    head = next(line for line in text.splitlines() if line.startswith("| | nobody"))
    columns = [one.strip() for one in head.strip("|").split("|")][1:]
    for verb, roles in MAY.items():
        (line,) = re.findall(rf"^\| `{re.escape(verb)}` \|(.*)\|$", text, re.MULTILINE)
        said = dict(zip(columns, (one.strip() for one in line.split("|")), strict=True))
        for role, column in (("tenant", "tenant: its own"), ("operator", "operator"),
                             ("admin", "admin")):  # fmt: skip
            assert (said[column] == "yes") is (role in roles), (verb, role)
        assert said["nobody"] == "401"
        assert said["viewer"] == "403"
        assert said["another's"] == "403" or "tenant" not in roles
