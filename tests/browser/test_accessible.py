"""Axe finds nothing serious in any view, light or dark, in the present or the past."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.window import Window
from tests.composed import ROOT, lacks
from tests.process.gateway_process import Process

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = (
    "/?entry=1650", "/fleet?entry=1650", "/fleet?entry=1650&table=1", "/jobs?entry=1650", "/submit",
    "/jobs/job-0009?entry=1683", "/loans", "/loans?entry=1650", "/decisions", "/decisions/1672",
    "/what-if", "/tenants?entry=1650", "/health", "/dead-letters", "/audit",
    "/compare?entry=1600&vs=1672",
)  # fmt: skip
_RUN = """async () => (await axe.run({ resultTypes: ["violations"] })).violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html).slice(0, 3)}`)"""


@pytest.fixture(params=["light", "dark"])
def window(request: pytest.FixtureRequest, browser: Browser, gateway: Process) -> Iterator[Window]:
    found = Window(browser, gateway, dark=request.param == "dark")
    yield found
    found.close()


def serious(window: Window) -> list[str]:
    """Have axe look at the page as it is; give what it finds serious."""
    if not AXE.exists():
        lacks("axe-core", "make console installs it")
    window.page.evaluate(AXE.read_text())
    return [str(one) for one in window.page.evaluate(_RUN)]


def test_axe_finds_nothing_serious(window: Window) -> None:
    found = {path: told for path in VIEWS if (told := serious(window.open(path)))}
    assert not found, "\n".join(f"{path}: {one}" for path, told in found.items() for one in told)
