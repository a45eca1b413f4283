"""A job is submitted in the page, its node is drained, and it goes on elsewhere: all told there."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.brokers import fresh_namespace
from tests.browser.conftest import demo
from tests.browser.test_verbs import confirmed
from tests.browser.window import Window
from tests.integration.conftest import AGENTS
from tests.integration.gateways import Gateways, configured
from tests.integration.processes import TRAIN, Fleet
from tests.patience import PATIENCE_S, wait_until

WAIT_MS = PATIENCE_S * 1000
#: What the form has no field for.
FILE = {"sizes": 2, "start_cost_s": 0.5, "checkpoint_cost_s": 0.5, "memory_mib": 1}


@contextlib.contextmanager
def fleet_on_kafka(browser: Browser, bootstrap: str, folder: Path) -> Iterator[Window]:
    """Have a scheduler and two nodes over Kafka, and a page of a gateway that signs."""
    text, (token,) = configured(
        folder,
        f'bootstrap = "{bootstrap}"\nreplication = 1\nnamespace = "{fresh_namespace()}"',
    )
    fleet = Fleet(folder, text + AGENTS)
    gateways = Gateways(fleet, token)
    try:
        for role in (fleet.start("scheduler"), fleet.start("cloud-agent", **TRAIN)):
            wait_until(role.is_ready, f"ready: {role.log.name}")
        found = Window(browser, gateways.start(), token)
        yield found
        found.close()
    finally:
        gateways.end()
        fleet.end()


@pytest.fixture(params=["file", pytest.param("kafka", marks=pytest.mark.broker)])
def lively(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path) -> Iterator[Window]:
    """A page of a cell that goes on meanwhile, in a file or over real Kafka."""
    if request.param == "file":
        having = demo(browser, tmp_path)
    else:
        having = fleet_on_kafka(browser, request.getfixturevalue("kafka_bootstrap"), tmp_path)
    with having as found:
        yield found


def filled(page: Page, **fields: str) -> None:
    for label, text in fields.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(text)


def refused(page: Page, label: str) -> str:
    """Submit, and give what stands beside the one field that is wrong."""
    page.get_by_role("button", name="Submit…").click()
    field = page.get_by_label(label)
    expect(field).to_have_attribute("aria-invalid", "true", timeout=WAIT_MS)
    expect(field).to_be_focused()
    expect(page.locator(".submit-form [aria-invalid]")).to_have_count(1)
    return str(page.locator(f"#{field.get_attribute('aria-errormessage')}").inner_text())


@pytest.mark.slow
def test_a_job_is_submitted_drained_away_and_goes_on(lively: Window, tmp_path: Path) -> None:
    window = lively
    window.expected.append("422")  # what the gateway says of a field
    page = window.open("/jobs").page
    page.get_by_role("link", name="Submit a job").click()
    filled(page, name="mine", steps_in_all="1000000", priority="1000")
    assert refused(page, "samples a second, by GPUs").startswith("Say how fast it is")
    page.get_by_label("samples a second, by GPUs").fill("2=50")
    filled(page, GPUs_at_least="4", GPUs_at_most="2")
    assert refused(page, "GPUs at most") == "Must be at least “GPUs at least”."
    filled(page, GPUs_at_least="", GPUs_at_most="")
    file = tmp_path / "job.json"
    file.write_text(json.dumps(FILE))
    page.get_by_label("from a file").set_input_files(file)
    expect(page.get_by_label("the file of a job")).to_have_value(file.read_text())
    page.get_by_role("button", name="Submit…").click()
    dialog = page.locator("dialog.confirm")
    expect(dialog).to_contain_text(" asks for 2 GPUs.", timeout=WAIT_MS)
    dialog.get_by_label("Why?").fill("a test")
    dialog.locator("button[type=submit]").click()
    expect(page.locator("main h1")).to_have_text("mine", timeout=WAIT_MS)
    assert page.url.partition("?")[0].endswith("/jobs/mine")
    expect(page.locator(".job-state .state")).to_have_text("running", timeout=WAIT_MS)

    def row() -> dict[str, Any]:
        return cast("dict[str, Any]", window.api("/jobs/mine")["job"])

    # The journal has a step now and then; what a job did since is told by its progress.
    window.until(lambda: row()["progress"] > 0.0, "it takes steps")
    before = row()
    assert [before[name] for name in ("gpus_min", "gpus_max", "priority")] == [2, 2, 1000]
    (node,) = before["allocation"]
    window.open(f"/fleet?node={node}")
    verbs = page.get_by_role("region", name="What can be asked of it")
    verbs.get_by_role("button", name="Drain…").click()
    confirmed(page, "node.drain")

    window.open("/jobs/mine")
    page.get_by_text("The same as a table").click()
    stays = page.get_by_role("region", name="Stays as a table").locator("tbody tr")
    expect(stays).to_have_count(2, timeout=WAIT_MS)
    expect(stays.nth(0)).to_contain_text(node)
    expect(stays.nth(1)).not_to_contain_text(node)
    expect(page.locator(".story")).to_contain_text(f"{node} is drained by", timeout=WAIT_MS)
    expect(page.locator(".job-state .state")).to_have_text("running", timeout=WAIT_MS)
    window.until(lambda: row()["progress"] > before["progress"], "it goes on")
    after = row()
    assert (after["state"], after["migrations"]) == ("running", 1)
    assert node not in after["allocation"]
    (act,) = window.api("/requests", verb="job.submit", about="mine")["acts"]
    assert (act["result"], act["reason"]) == ("done", "a test")


def test_what_cannot_be_submitted_is_said_beside_the_field(window: Window) -> None:
    closed = window.api("/cells")["cells"][0]["closed"]
    assert "nobody goes on" in closed
    page = window.open("/jobs").page
    button = page.get_by_role("button", name="Submit a job")
    expect(button).to_be_disabled()
    expect(button).to_have_accessible_description(f"Nothing can be asked: {closed}.")
    window.open("/submit")
    expect(page.locator("main .problem")).to_contain_text(closed)
    expect(page.get_by_role("button", name="Submit…")).to_be_disabled()
    window.expected.append("404 (Not Found)")
    window.open("/submit?cell=nope")
    expect(page.locator("main .problem")).to_contain_text("there is no cell nope")
    expect(page.locator("main form")).to_have_count(0)
    window.open("/submit?entry=1600")
    expect(page.locator("main")).to_contain_text("What is past cannot be changed")
    expect(page.locator("main form")).to_have_count(0)
