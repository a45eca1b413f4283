"""What a page does when an answer is late, refused for a while, or does not come."""

import base64
import json
import re
import time
from collections.abc import Callable

from playwright.sync_api import Route, expect

from tests.browser.window import Window
from tests.patience import PATIENCE_S

WAIT_MS = PATIENCE_S * 1000


def _json(route: Route, document: object, status: int = 200, **headers: str) -> None:
    route.fulfill(
        status=status, content_type="application/json", body=json.dumps(document), headers=headers
    )


def test_output_is_read_on_after_a_refusal_that_passes(window: Window) -> None:
    """As of several tabs that ask too often, and of a gateway that is started anew."""
    page = window.page
    window.expected += ["503 (Service Unavailable)", "ERR_FAILED"]
    jobs = window.api("/jobs", state="completed,running,cancelled,failed", limit=50)["jobs"]
    job = next(row["job"] for row in jobs if row["first_start_s"] is not None)

    def why(route: Route) -> None:
        said = window.api(f"/jobs/{job}/why")
        said["spec"]["program"] = {"argv": ["train"]}
        _json(route, said)

    page.route(re.compile(f"/api/v1/jobs/{job}/why"), why)
    page.route(re.compile("/api/v1/requests"), lambda route: _json(route, {"result": "done"}))
    said = {"content": base64.b64encode(b"step 7\n").decode(), "offset": 0, "end": ""}
    left: list[Callable[[Route], None]] = [
        lambda route: _json(route, {"next": 4, "pieces": []}),
        lambda route: _json(route, {"detail": "Too many."}, 429, **{"Retry-After": "1"}),
        lambda route: _json(route, {"detail": "It ends."}, 503),
        lambda route: route.abort(),
        lambda route: _json(route, {"next": 5, "pieces": [said]}),
    ]
    rest = {"next": 5, "pieces": []}
    page.route(
        re.compile(f"/api/v1/jobs/{job}/output"),
        lambda route: left.pop(0)(route) if left else _json(route, rest),
    )
    window.open(f"/jobs/{job}")
    page.get_by_role("button", name=re.compile("^(Read its end|Follow)$")).click()
    expect(page.get_by_label("Output")).to_have_text("step 7", timeout=WAIT_MS)
    assert not left
    page.unroute_all()


def test_a_reader_whose_clock_is_off_asks_by_the_gateways(window: Window) -> None:
    page = window.page
    page.add_init_script("const now = Date.now; Date.now = () => now() + 600_000;")
    jobs = window.api("/jobs", state="completed,running,cancelled,failed", limit=50)["jobs"]
    job = next(row["job"] for row in jobs if row["first_start_s"] is not None)
    asked: list[float] = []

    def why(route: Route) -> None:
        said = window.api(f"/jobs/{job}/why")
        said["spec"]["program"] = {"argv": ["train"]}
        _json(route, said | {"now_s": time.time()})

    def request(route: Route) -> None:
        asked.append(json.loads(route.request.post_data or "")["args"]["until_s"] - time.time())
        _json(route, {"result": "done"})

    page.route(re.compile(f"/api/v1/jobs/{job}/why"), why)
    page.route(re.compile("/api/v1/requests"), request)
    page.route(
        re.compile(f"/api/v1/jobs/{job}/output"),
        lambda route: _json(route, {"next": 4, "pieces": []}),
    )
    window.open(f"/jobs/{job}")
    page.get_by_role("button", name=re.compile("^(Read its end|Follow)$")).click()
    window.until(lambda: asked, "it asks")
    page.goto("about:blank")  # or it asks on, and the gateway itself, which knows no such reader
    page.unroute_all()
    assert 30.0 < asked[0] < 60.0


def test_a_moment_that_no_calendar_has_is_said_so(window: Window) -> None:
    page = window.page
    job = window.api("/jobs", state="completed", limit=1)["jobs"][0]["job"]

    def why(route: Route) -> None:
        said = window.api(f"/jobs/{job}/why")
        said["spec"]["deadline_s"] = 1e14
        _json(route, said)

    page.route(re.compile(f"/api/v1/jobs/{job}/why"), why)
    window.open(f"/jobs/{job}")
    expect(page.locator("main")).to_contain_text("beyond year 9999", timeout=WAIT_MS)
    page.unroute_all()


def test_a_dialog_stays_until_all_that_it_asked_for_is_told(window: Window) -> None:
    """Closed by Escape while requests are sent, it told nobody which of them were refused."""
    page = window.page
    held: list[Route] = []
    page.route(re.compile("/api/v1/requests"), lambda route: held.append(route))
    window.open("/tenants")
    page.get_by_role("button", name=re.compile("quota", re.IGNORECASE)).first.click()
    form = page.locator("form.quota-form")
    form.get_by_label("tenant").fill("vision")
    form.get_by_label("GPUs at once").fill("4")
    form.get_by_role("button", name="Set…").click()
    dialog = page.locator("dialog.confirm")
    dialog.locator("button[type=submit]").click()
    expect(dialog.get_by_role("status").last).to_contain_text("asking for 1 request")
    # Of a second one in a row Chromium does not ask, by `cancel`, whether it may close the dialog.
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    expect(dialog).to_be_visible()
    window.until(lambda: len(held) == 2, "it is asked for, after it was tried")
    window.expected.append("409 (Conflict)")
    _json(held[1], {"detail": "It is closed."}, 409)
    expect(dialog).to_contain_text("refused: It is closed.", timeout=WAIT_MS)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    held[0].abort()
    window.expected.append("ERR_FAILED")
    page.unroute_all()


def test_the_stream_stays_with_the_cell_that_was_chosen_meanwhile(window: Window) -> None:
    """After a refusal it asks who one is, and the answer came when one had gone to another cell."""
    page = window.page
    window.expected += ["503 (Service Unavailable)", "404 (Not Found)"]
    streams: list[str] = []
    held: list[Route] = []

    def refuse(route: Route) -> None:
        streams.append(route.request.url)
        _json(route, {"detail": "It ends."}, 503)

    page.route(re.compile("/api/v1/stream"), refuse)
    page.goto(f"{window.gateway.url}/?entry=1600")
    window.until(lambda: streams, "the stream is asked for")
    page.route(re.compile("/api/v1/me"), lambda route: held.append(route))
    window.until(lambda: held, "it asks who it is")
    page.evaluate(
        "history.pushState(null, '', '/?cell=other&entry=1600');"
        "dispatchEvent(new PopStateEvent('popstate'))"
    )
    window.until(lambda: "cell=other" in streams[-1], "the other cell is followed")
    for one in held:
        one.continue_()
    page.wait_for_timeout(1500)
    assert "cell=other" in streams[-1]
    page.unroute_all(behavior="ignoreErrors")
