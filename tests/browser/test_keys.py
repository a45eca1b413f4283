"""Without a mouse: the moment is moved by keys, and a job's why is reached from the tide."""

import re

from playwright.sync_api import Route, expect

from tests.browser.window import Window
from tests.patience import PATIENCE_S

WAIT_MS = PATIENCE_S * 1000
MOMENTS = re.compile("/api/v1/moments")


def test_the_moment_is_moved_by_keys_and_buttons(window: Window) -> None:
    page = window.open("/?entry=1600").page
    said = page.locator(".when")

    def shown(entry: str) -> None:
        expect(said).to_contain_text(f"entry {entry} ", timeout=WAIT_MS)

    shown("1,600")
    page.keyboard.press(".")
    shown("1,601")
    page.keyboard.press(",")
    page.keyboard.press(",")
    shown("1,599")
    page.keyboard.press("]")
    shown("1,672")  # serve-002 is called back
    expect(page.locator(".banner")).to_contain_text("serve-002 is called back")
    page.get_by_role("button", name=re.compile("One decision back")).click()
    shown("1,671")
    page.keyboard.press("c")
    expect(page).to_have_url(re.compile("vs=1671"))
    track = page.get_by_role("slider", name="Moment of the log")
    track.focus()
    track.press("ArrowRight")
    expect(said).not_to_contain_text("entry 1,671 ", timeout=WAIT_MS)
    before = page.url
    page.keyboard.press(" ")  # plays
    expect(page).not_to_have_url(before, timeout=WAIT_MS)
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="End", exact=True)).to_be_enabled()  # it is no more live
    page.keyboard.press("l")
    expect(page.locator(".banner")).to_have_count(0)
    expect(said).to_contain_text("entry 3,738")
    expect(track).to_have_attribute("aria-valuetext", re.compile("^the end, "))


def test_the_live_edge_stays_shown_after_a_drag(window: Window) -> None:
    """What the drag wanted last is shown a moment later, unless one went elsewhere meanwhile."""
    page = window.open("/?entry=1600").page
    expect(page.locator(".when")).to_contain_text("entry 1,600 ", timeout=WAIT_MS)
    page.evaluate("""() => {
      const track = document.querySelector(".track input");
      for (const share of [0.3, 0.4]) {
        track.value = Number(track.min) + share * (track.max - track.min);
        track.dispatchEvent(new Event("input", { bubbles: true }));
      }
      document.querySelector(".scrubber-said button:last-child").click();
    }""")
    page.wait_for_timeout(600)
    expect(page).not_to_have_url(re.compile("entry="))


def test_a_key_pressed_before_the_log_is_known_is_not_lost(window: Window) -> None:
    held: list[Route] = []
    window.page.route(MOMENTS, lambda route: held.append(route))
    page = window.open("/?entry=1600").page
    said = page.locator(".when")
    expect(said).to_have_text(re.compile("^– .*entry 1,600$"), timeout=WAIT_MS)
    page.keyboard.press(".")
    expect(said).to_contain_text("entry 1,600")
    page.wait_for_timeout(1000)
    for one in held:
        one.continue_()
    page.unroute(MOMENTS)
    expect(said).to_contain_text("entry 1,601 ", timeout=WAIT_MS)


def test_a_jobs_why_is_reached_without_a_mouse(window: Window) -> None:
    page = window.open("/?entry=1600").page
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the view")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.locator(":focus").inner_text() == "Jobs":
            break
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/jobs.*entry=1600"))
    table = page.get_by_role("region", name=re.compile("^Jobs: arrows move"))
    table.locator("tbody tr").first.wait_for(timeout=WAIT_MS)
    for _ in range(40):
        page.keyboard.press("Tab")
        if table.evaluate("node => node === document.activeElement"):
            break
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    row = window.api(
        "/jobs",
        entry=1600,
        sort="-submitted",
        limit=2,
        state="queued,starting,running,scaling,checkpointing,stopping,migrating",
    )
    job = row["jobs"][1]["job"]
    expect(page).to_have_url(re.compile(f"/jobs/{job}"), timeout=WAIT_MS)
    why = window.api(f"/jobs/{job}/why", entry=1600)["because"]["sentence"]
    expect(page.locator(".sentence")).to_contain_text(why[1:])
    page.keyboard.press("/")
    page.keyboard.type("job-0009")
    expect(page.get_by_role("option").first).to_contain_text("job-0009", timeout=WAIT_MS)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/jobs/job-0009"))
    page.keyboard.press("?")
    expect(page.locator("dialog[open]")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
