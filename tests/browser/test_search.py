"""The search of the console says what it knows, and leads to what is typed."""

import re

from playwright.sync_api import Route, expect

from tests.browser.window import Window
from tests.patience import PATIENCE_S

WAIT_MS = PATIENCE_S * 1000
JOBS = re.compile(r"/api/v1/jobs\?.*fields=")


def test_what_was_typed_before_is_not_gone_to(window: Window) -> None:
    """The answer to the newer text is still on its way when one presses Enter."""
    page = window.open("/?entry=1600").page
    jobs = [row["job"] for row in window.api("/jobs", entry=1600, limit=2)["jobs"]]
    page.keyboard.press("/")
    box = page.get_by_role("combobox", name=re.compile("^Search jobs"))
    box.fill(jobs[0])
    expect(page.get_by_role("option", name=re.compile(jobs[0]))).to_have_count(1, timeout=WAIT_MS)
    held: list[Route] = []
    page.route(JOBS, lambda route: held.append(route))
    box.fill(jobs[1])
    page.keyboard.press("Enter")
    expect(page.get_by_role("option")).to_have_count(0)
    expect(page.locator("dialog.search")).to_contain_text("Looking…")
    window.until(lambda: held, "it is asked for")
    for one in held:
        one.continue_()
    page.unroute(JOBS)
    expect(page.get_by_role("option", name=re.compile(jobs[1]))).to_have_count(1, timeout=WAIT_MS)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/jobs/{jobs[1]}"), timeout=WAIT_MS)


def test_without_an_answer_it_does_not_say_that_there_is_nothing(window: Window) -> None:
    page = window.open("/?entry=1600").page
    window.expected.append("ERR_FAILED")
    page.route(JOBS, lambda route: route.abort())
    page.keyboard.press("/")
    page.get_by_role("combobox", name=re.compile("^Search jobs")).fill("job-")
    dialog = page.locator("dialog.search")
    expect(dialog).to_contain_text("The gateway does not answer.", timeout=WAIT_MS)
    expect(dialog).not_to_contain_text("Nothing is called so.")
    page.unroute(JOBS)
    page.get_by_role("combobox").fill("no-such-job")
    expect(dialog).to_contain_text("Nothing is called so.", timeout=WAIT_MS)
