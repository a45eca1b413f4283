"""What people ask for in the page is done by a scheduler that runs: hold, cancel, drain, resume."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import demo
from tests.browser.window import Window
from tests.patience import PATIENCE_S

WAIT_MS = PATIENCE_S * 1000


@pytest.fixture
def window(browser: Browser, tmp_path: Path) -> Iterator[Window]:
    """A page of a demo that goes on meanwhile."""
    with demo(browser, tmp_path) as found:
        yield found


def confirmed(page: Page, verb: str) -> None:
    """Give a reason, ask, and wait until the scheduler did it."""
    dialog = page.locator("dialog.confirm")
    dialog.get_by_label("Why?").fill("a test <b>asks</b>")
    dialog.locator("button[type=submit]").click()
    expect(dialog.get_by_role("status")).to_have_text("1 done", timeout=WAIT_MS)
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


def running(window: Window) -> dict[str, Any]:
    """Wait for jobs that run, best in the training pool; give the one with the most left to do."""
    for _ in range(int(PATIENCE_S)):
        found = window.api("/jobs", state="running", pool="train")["jobs"]
        if not found:
            found = window.api("/jobs", state="running")["jobs"]
        if found:
            return max(found, key=lambda row: float(row["left_s"] or 0.0))
        window.page.wait_for_timeout(1000)
    raise AssertionError("no job ever ran")


@pytest.mark.slow
def test_jobs_are_held_drained_away_and_cancelled(window: Window) -> None:
    job = running(window)["job"]
    page = window.open(f"/jobs/{job}").page
    expect(page.get_by_role("button", name="Live", exact=True)).to_be_visible()
    page.get_by_role("button", name="Hold", exact=True).click()
    confirmed(page, "job.hold")
    page.get_by_role("button", name="Release", exact=True).wait_for(timeout=WAIT_MS)
    assert window.api(f"/jobs/{job}")["job"]["hold"]["reason"] == "a test <b>asks</b>"
    page.get_by_role("button", name="Release", exact=True).click()
    confirmed(page, "job.release")
    page.get_by_role("button", name="Hold", exact=True).wait_for(timeout=WAIT_MS)

    row = running(window)
    node = next(iter(row["allocation"]))
    window.open(f"/fleet?node={node}")
    verbs = page.get_by_role("region", name="What can be asked of it")
    verbs.get_by_role("button", name="Drain", exact=False).first.click()
    confirmed(page, "node.drain")
    page.wait_for_timeout(100)
    told: dict[str, Any] = {}
    for _ in range(int(PATIENCE_S)):  # its jobs save their work and leave
        (told,) = window.api("/nodes", text=node)["nodes"]
        if not any(told["holders"]):
            break
        page.wait_for_timeout(1000)
    assert not any(told["holders"])
    verbs.get_by_role("button", name="Uncordon", exact=False).first.click(timeout=WAIT_MS)
    confirmed(page, "node.uncordon")

    job = running(window)["job"]
    window.open(f"/jobs/{job}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    confirmed(page, "job.cancel")
    expect(page.locator(".job-state .state")).to_have_text("cancelled", timeout=WAIT_MS)
    acts = window.api("/requests", limit=20)["acts"]
    asked = [
        act["verb"] for act in acts if act["subject"] == "root" and act["verb"] != "job.submit"
    ]
    wanted = ["job.cancel", "node.uncordon", "node.drain", "job.release", "job.hold"]
    assert asked[: len(wanted)] == wanted
