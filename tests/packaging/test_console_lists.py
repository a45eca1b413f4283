"""Lists that the console in a browser has of its own, against what they are lists of."""

import re
from pathlib import Path

from gateway.pages import VIEWS
from scheduler.core.rights import MAY
from scheduler.policies.registry import POLICIES

_SOURCE = Path(__file__).parents[2] / "web/src"


def _strings(path: str, name: str) -> list[str]:
    text = (_SOURCE / path).read_text()
    found = re.search(rf"const {name}\b[^=]*= \[(.*?)\]", text, re.DOTALL)
    assert found, f"{path} has no list {name}"
    return re.findall(r'"([^"]+)"', found.group(1))


def test_the_console_offers_each_policy() -> None:
    assert set(_strings("rules/policy-field.tsx", "POLICIES")) == set(POLICIES)


def test_the_audit_can_be_filtered_by_each_verb() -> None:
    read = {"job.logs"}  # never in the audit: it is journalled as no act
    assert set(_strings("views/audit.tsx", "VERBS")) == set(MAY) - read


def test_the_gateway_serves_the_page_at_each_view() -> None:
    text = (_SOURCE / "views/index.ts").read_text()
    assert set(re.findall(r'path: "([a-z-]+)"', text)) == set(VIEWS)
