"""A page of the console in a real browser, and the API that it reads; what goes wrong is kept."""

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any, Self

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Route, expect

from tests.composed import ROOT
from tests.patience import PATIENCE_S
from tests.process.gateway_process import Process

#: Reports of the browser that a policy was broken, as errors like others.
_TELL_BREACHES = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`against the policy: ${event.violatedDirective} ${event.blockedURI}`));
"""
#: Tests read and reload faster than people: a page that is told to wait does, and shows nothing.
_WAITS = "429 (Too Many Requests)"
SIZE = {"width": 1280, "height": 800}
# `set_default_timeout` of a context is not that of `expect`, which gives up after five seconds.
expect.set_options(timeout=PATIENCE_S * 1000)


#: Addresses of the page itself; what it asks for is below `api` and `assets`.
_DOCUMENTS = re.compile(r"https?://[^/]+/(?!api/|assets/)")


def _page(route: Route) -> None:
    route.fulfill(path=ROOT / "gateway" / "static" / "index.html", content_type="text/html")


class Window:
    """One page, as somebody sees it whom the gateway lets in.

    Args:
        robot: The token of a robot, which goes with each request; without it the page comes in by
            the address that the gateway printed.
        dark: Whether the system is dark.
    """

    def __init__(
        self, browser: Browser, gateway: Process, robot: str | None = None, *, dark: bool = False
    ) -> None:
        self.gateway = gateway
        self.wrong: list[str] = []
        #: Parts of what the browser may complain of, such as an answer that is "404" on purpose.
        self.expected: list[str] = [_WAITS]
        self.context = browser.new_context(
            viewport={"width": SIZE["width"], "height": SIZE["height"]},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            extra_http_headers={"Authorization": f"Bearer {robot}"} if robot else {},
        )
        self.context.set_default_timeout(PATIENCE_S * 1000)
        self.context.add_init_script(_TELL_BREACHES)
        self.context.on("request", self._asked)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self.wrong.append(f"thrown: {error.error}"))
        if robot is None:
            self.context.request.get(gateway.address)
        else:  # the page itself is for people, who sign in; what it asks for comes of the gateway
            self.context.route(_DOCUMENTS, _page)
        self.page: Page = self.context.new_page()
        self._client = httpx.Client(
            base_url=f"{gateway.url}/api/v1",
            headers={"Authorization": f"Bearer {robot or gateway.token}"},
            timeout=PATIENCE_S,
        )

    def open(self, path: str = "/") -> Self:
        """Go to a view by its address; return when it shows something."""
        self.page.goto(self.gateway.url + path)
        self.settled()
        return self

    def settled(self) -> None:
        """Wait until nothing on the page is being read for the first time."""
        self.page.locator("main h1, main h2, main .problem").first.wait_for(state="attached")
        expect(self.page.locator("main").locator(".waiting, .was")).to_have_count(
            0, timeout=PATIENCE_S * 1000
        )

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds, while the page goes on; fail saying what does not."""
        end_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end_s, what
            self.page.wait_for_timeout(100)

    def api(self, path: str, **parameters: Any) -> Any:
        """Ask the gateway itself, as the same subject."""
        while True:
            answer = self._client.get(path, params=parameters)
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                break
            self.page.wait_for_timeout(200)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()

    def figures(self, within: str = "main") -> dict[str, str]:
        """Give the numbers of a view by their labels."""
        boxes = self.page.locator(f"{within} dl.figures > div")
        pairs = boxes.evaluate_all(
            "all => all.map(one => [one.querySelector('dt').innerText,"
            " one.querySelector('dd').firstChild.textContent])"
        )
        return dict(pairs)

    def rows(self, label: str) -> list[list[str]]:
        """Give the text of each cell of a table, by the name that the table or its region has."""
        found = (
            self.table(label)
            .locator("tbody tr:not(.gap)")
            .evaluate_all(
                "all => all.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
            )
        )
        return [list(row) for row in found]

    def table(self, label: str) -> Locator:
        """Find a table by the name that it or the region around it has."""
        return self.page.locator(
            f'table[aria-label="{label}"], [role=region][aria-label="{label}"] table'
        ).first

    def close(self) -> None:
        """Leave; fail if anything went wrong on the way."""
        with contextlib.suppress(Exception):
            self.context.close()
        self._client.close()
        assert not self.wrong, "\n".join(self.wrong)

    def _asked(self, request: Request) -> None:
        ours = (self.gateway.url + "/", "data:", "blob:" + self.gateway.url)
        if not request.url.startswith(ours):
            self.wrong.append(f"asked another host: {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        told = f"{message.text} {where}"
        if message.type == "error" and not any(one in told for one in self.expected):
            self.wrong.append(told)
