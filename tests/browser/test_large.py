"""A list too long to be read whole, and a fleet of which little changes, are shown in parts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Request, expect

from benchmarks import gateway_cell
from tests.browser.conftest import apart
from tests.browser.window import Window
from tests.process.gateway_process import Process

pytestmark = pytest.mark.slow
NODES, JOBS = 60, 900


@pytest.fixture(scope="module")
def busy(_browser_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A gateway of a cell with many jobs."""
    folder = tmp_path_factory.mktemp("busy")
    log: Path = folder / "busy.db"
    apart(lambda: asyncio.run(gateway_cell.write(log, NODES, JOBS, 2)))
    found = Process(log, folder / "run")
    try:
        found.ready()
        yield found
    finally:
        found.kill()


@pytest.fixture
def large(browser: Browser, busy: Process) -> Iterator[Window]:
    found = Window(browser, busy)
    try:
        yield found
    finally:
        found.close()


def test_the_end_of_a_long_list_is_read_without_what_is_before_it(large: Window) -> None:
    asked: list[int] = []

    def note(request: Request) -> None:
        url = urlsplit(request.url)
        if url.path == "/api/v1/jobs" and "skip" in (query := parse_qs(url.query)):
            asked.append(int(query["skip"][0]))

    large.page.on("request", note)
    large.open("/jobs?state=all")
    assert asked == []
    page = large.api("/jobs", sort="-submitted", limit=1000)
    rows, total = page["jobs"], page["total"]
    assert total >= JOBS
    large.page.locator(".long").press("End")
    last = large.table("Jobs").locator(f'tr[aria-rowindex="{total + 1}"]')
    expect(last).to_contain_text(rows[-1]["job"])
    # The last part, and the one before it, which whoever goes up comes to next.
    expect(large.table("Jobs").locator("tbody tr:not(.gap)").first).to_be_visible()
    large.page.wait_for_load_state("networkidle")
    assert set(asked) <= {(total - 1) // 200 * 200, (total - 1) // 200 * 200 - 200}
    shown = large.rows("Jobs")
    names = [row["job"] for row in rows]
    assert [row[1] for row in shown] == names[total - len(shown) :]

    # What was chosen far below counts, also from the top.
    large.page.get_by_label(f"Choose {rows[-1]['job']}", exact=True).check()
    large.page.locator(".long").press("Home")
    expect(large.table("Jobs").locator('tr[aria-rowindex="2"]')).to_contain_text(names[0])
    expect(large.page.get_by_text("1 job chosen")).to_be_visible()


def test_of_a_fleet_only_nodes_that_changed_are_painted_anew(large: Window) -> None:
    decided = large.api("/decisions", limit=1000)["decisions"]
    # Of all that is decided here, what a few nodes show: they are about to be lent.
    entry = next(one["entry"] for one in decided if "LoanRequested" in one["facts"])
    image = "document.querySelector('canvas.fleet-canvas').toDataURL()"
    canvas = large.page.locator("canvas.fleet-canvas")

    large.open(f"/fleet?entry={entry - 1}")
    expect(canvas).to_have_attribute("data-painted", str(NODES))
    before = large.page.evaluate(image)
    large.page.keyboard.press(".")
    expect(large.page).to_have_url(f"{large.gateway.url}/fleet?entry={entry}")
    expect(canvas).not_to_have_attribute("data-painted", str(NODES))
    after = large.page.evaluate(image)
    painted = int(canvas.get_attribute("data-painted") or 0)
    assert 0 < painted < NODES / 2
    assert after != before

    # In other colours and back, and a page that never saw another moment: the same picture.
    for colouring in ("loan", "job"):
        large.page.locator(".fleet-choices label", has_text=colouring).click()
        large.settled()
    assert large.page.evaluate(image) == after
    large.open(f"/fleet?entry={entry}")
    expect(canvas).to_have_attribute("data-painted", str(NODES))
    assert large.page.evaluate(image) == after
