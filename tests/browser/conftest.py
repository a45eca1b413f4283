"""Debian's Chromium, gateways on recorded logs, and pages of the console."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from console.main import main
from tests.browser.window import Window
from tests.composed import ROOT, lacks
from tests.ports import lacking
from tests.process.gateway_process import Process

CHROMIUM = "chromium"
#: Nothing of it asks anybody but the page that is tested.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
NIGHT = ROOT / "examples" / "late-reclaim.jsonl.zst"


def missing() -> str | None:
    """Say what keeps the console from being tested in a browser here; None: nothing."""
    if lacking(CHROMIUM):
        return "Debian's package chromium is not installed"
    if not (ROOT / "gateway" / "static" / "index.html").exists():
        return "the console is not built: run make console"
    return None


@pytest.fixture(scope="session", autouse=True)
def _browser_is_here() -> None:
    if (reason := missing()) is not None:
        lacks("browser", reason)


@pytest.fixture(scope="session")
def night(_browser_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The night of docs/late-reclaim.md, as a log."""
    path = tmp_path_factory.mktemp("night") / "night.db"
    apart(lambda: main(["journal", "import", str(NIGHT), "--log", str(path)]))
    return path


def apart(work: Callable[[], object]) -> None:
    """Do what needs a loop of its own: while there is a browser, the loop here is Playwright's."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()


@pytest.fixture(scope="module")
def browser(_browser_is_here: None) -> Iterator[Browser]:
    """A browser for a file of tests: with it ends its loop, which other tests could not bear."""
    path = next(
        found for folder in os.get_exec_path() if (found := Path(folder) / CHROMIUM).exists()
    )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def gateway(night: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A gateway on that night."""
    found = Process(night, tmp_path_factory.mktemp("gateway"))
    try:
        found.ready()
        yield found
    finally:
        found.kill()


@pytest.fixture
def window(browser: Browser, gateway: Process) -> Iterator[Window]:
    """A page of that gateway, not opened yet; fails if the browser complained."""
    found = Window(browser, gateway)
    try:
        yield found
    finally:
        found.close()
