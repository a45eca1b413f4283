"""Debian's Chromium, gateways on recorded logs, and pages of the console."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from playwright.sync_api import Browser, sync_playwright

from console.main import main
from tests.browser.night_on_kafka import gateway_of_night
from tests.browser.window import Window
from tests.composed import ROOT, lacks
from tests.patience import PATIENCE_S
from tests.ports import free_port, lacking
from tests.process.gateway_process import Process

CHROMIUM = "chromium"
#: Nothing of it asks anybody but the page that is tested.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
NIGHT = ROOT / "examples" / "late-reclaim.jsonl.zst"
#: Where logs are.
KINDS = ("file", pytest.param("kafka", marks=pytest.mark.broker))


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
    # The health page names the log: a long path must not widen it.
    path = tmp_path_factory.mktemp("night-of-" + "a-fleet-with-a-long-name-" * 3) / "night.db"
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


@contextlib.contextmanager
def served_night(request: pytest.FixtureRequest, kind: str) -> Iterator[Process]:
    """Have a gateway on that night, which is in a file or on Kafka."""
    folder = request.getfixturevalue("tmp_path_factory").mktemp("gateway")
    if kind == "file":
        found = Process(request.getfixturevalue("night"), folder)
    else:
        bootstrap = request.getfixturevalue("kafka_bootstrap")
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(gateway_of_night, NIGHT, bootstrap, folder).result()
    try:
        found.ready()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def gateway(request: pytest.FixtureRequest) -> Iterator[Process]:
    """A gateway on that night."""
    with served_night(request, "file") as found:
        yield found


@contextlib.contextmanager
def demo(browser: Browser, folder: Path) -> Iterator[Window]:
    """Have a demo that goes on meanwhile, and a page of the gateway beside it."""
    port = free_port()
    command = ["demo", "--hours", "12", "--seconds", "960", "--no-live", "--serve"]
    process = subprocess.Popen(
        [sys.executable, "-m", "console.main", *command, "--port", str(port),
         "--log", str(folder / "day.db")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(folder), "COLUMNS": "200"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = process.stderr.readline().strip().rpartition(" ")[2]
        url, _, token = address.partition("/?token=")
        found = Window(
            browser, cast("Process", SimpleNamespace(url=url, address=address, token=token))
        )
        yield found
        found.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def window(browser: Browser, gateway: Process) -> Iterator[Window]:
    """A page of that gateway, not opened yet; fails if the browser complained."""
    found = Window(browser, gateway)
    try:
        yield found
    finally:
        found.close()
