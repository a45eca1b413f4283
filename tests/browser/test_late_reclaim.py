"""Reclaims in the page: from forecast to hand-back, and docs/late-reclaim.md, *In the browser*."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import KINDS, served_night
from tests.browser.window import Window
from tests.patience import PATIENCE_S
from tests.process.gateway_process import Process

WAIT_MS = PATIENCE_S * 1000


@pytest.fixture(scope="module", params=KINDS)
def gateway(request: pytest.FixtureRequest) -> Iterator[Process]:
    """The night in a file, and over real Kafka."""
    with served_night(request, request.param) as found:
        yield found


def test_the_late_reclaim_is_found_and_prevented(window: Window) -> None:
    page = window.open("/").page
    expect(page.locator("dl.figures > div.bad", has_text="back late")).to_contain_text("3")
    page.get_by_role("link", name="Loans", exact=True).click()
    late = page.locator(".reclaims > li.late")
    expect(late).to_have_count(3, timeout=WAIT_MS)
    mine = late.filter(has_text="serve-002")
    expect(mine).to_contain_text("due after 0 s (08:22), late by 10 s.")
    expect(mine.locator("svg .seg-late")).to_have_count(1)

    mine.locator("a.entry").click()
    expect(page).to_have_url(re.compile(r"/decisions/1672\?(.*&)?entry=1672"), timeout=WAIT_MS)
    expect(page.locator("h1")).to_have_text("Entry 1672")
    expect(page.locator(".banner")).to_contain_text("serve-002 is called back")
    expect(page.locator("main")).to_contain_text("serve is forecast to need 9 GPUs")
    page.get_by_role("link", name="Tenants", exact=True).click()
    expect(page.locator("main")).to_contain_text("tide:loans.lead_s=0:loans.warm_up_s=0")

    window.open("/jobs/job-0009?entry=1683")
    expect(page.locator(".story")).to_contain_text("serve takes back nodes that it runs on")

    page.keyboard.press("g")
    page.keyboard.press("w")
    page.get_by_label("after entry").fill("1600")
    page.get_by_label("for hours").fill("30")
    page.get_by_label("policy, with options").fill("tide")
    page.get_by_role("button", name="Run it").click()
    outcome = window.table("Outcomes")
    outcome.wait_for(timeout=WAIT_MS)
    rows = {row[0]: row[1:] for row in window.rows("Outcomes")}
    recorded, control, branch = rows["nodes given back late"][:3]
    assert (recorded, branch) == ("3", "0")
    assert control in ("2", "3")
    assert "better" in rows["nodes given back late"][3]
    assert rows["jobs done"][1] == rows["jobs done"][2]
    assert rows["GPU hours on loan"][3].startswith("−")
    first = page.locator("section.card", has_text="First decision that differs").locator("li").first
    expect(first).to_contain_text("serve-001")
    expect(page.locator(".method-error")).to_contain_text("How far the method is off here")


def test_a_reclaim_is_followed_from_the_forecast_to_the_hand_back(window: Window) -> None:
    (ahead,) = window.api("/tide", points=2, entry=1660, forecast="true")["forecast"]
    owned = window.api("/tide", points=2, entry=1660)["rows"][-1]["owned"]
    assert max(row["need_high"] for row in ahead["rows"]) > owned, "more is foreseen than is left"
    page = window.open("/?entry=1660").page
    expect(page.locator(".legend").first).to_contain_text("forecast, and with margin")
    page.keyboard.press("]")
    expect(page.locator(".banner")).to_contain_text("serve-002 is called back")

    page.get_by_role("link", name="Loans", exact=True).click()
    called = page.locator(".reclaims > li").first
    expect(called).to_contain_text("serve-002", timeout=WAIT_MS)
    expect(called).to_contain_text("It is called back because serve is forecast to need 9 GPUs")
    lent = page.get_by_role("region", name="Nodes on loan").locator("tbody tr")
    expect(lent.filter(has_text="serve-002")).to_contain_text("reclaiming")
    page.keyboard.press("]")
    expect(page.locator(".banner")).to_contain_text("serve-002 is back")
    expect(called).to_contain_text("back after 10 s; due after 0 s (08:22), late by 10 s.")
    expect(lent).to_have_count(1)
    expect(lent.filter(has_text="serve-002")).to_have_count(0)
    back = int(page.url.partition("entry=")[2])
    (node,) = window.api("/nodes", text="serve-002", entry=back)["nodes"]
    assert (node["loan"], set(node["holders"])) == (None, {None})
    (before,) = window.api("/nodes", text="serve-002", entry=back - 1)["nodes"]
    assert before["loan"] is not None
