"""A page of the console in Debian's Chromium, and how long what one does there takes to be drawn.

All times are the page's own (the Performance API): from the time stamp of the browser's event, or
of the navigation, to the frame after the one in which the page had drawn it.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import Browser, Locator, sync_playwright

from benchmarks.gateway_cell import memory

#: Nothing of it asks anybody but the page that is measured.
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
SIZE = {"width": 1280, "height": 800}
_PATIENCE_MS = 120_000
#: Runs before the page's own scripts.
_WATCH = """
const w = (window.watched = { frames: [], took: [], long: 0, figures: null });
const next = () => new Promise((go) => requestAnimationFrame(go));
const drawn = async (done) => {
  const end = performance.now() + 60_000;
  while (!done()) {
    if (performance.now() > end) throw new Error(`not drawn in a minute: ${done}`);
    await next();
  }
  await next();
  return performance.now();
};
const settled = () => document.querySelector("main .waiting, main .was, main .problem") === null;
const tasks = new PerformanceObserver((list) => (w.long += list.getEntries().length));
tasks.observe({ type: "longtask" });

// From the navigation until the view has its numbers.
w.arrived = drawn(() => document.querySelector("main dl.figures dd") !== null && settled());

// From an event that names another moment until the view is of that moment.
w.await = (kind) => {
  const was = location.search;
  let begun = null;
  performance.clearResourceTimings();  // of which a browser keeps 250
  w.seen = new Promise((go) => {
    const seen = (event) => { begun = event.timeStamp; go(); };
    addEventListener(kind, seen, { capture: true, once: true });
  });
  w.moved = w.seen.then(async () => {
    await next();
    const end = await drawn(() => location.search !== was && settled());
    return end - begun;
  });
  // And until nothing is asked any more, for what stands beside.
  w.rested = async () => {
    await w.moved;
    for (;;) {
      const asked = performance.getEntriesByType("resource").filter((one) =>
        one.startTime >= begun && /api.v1.(?!stream|verified|moments)/.test(one.name));
      const last = Math.max(begun, ...asked.map((one) => one.responseEnd));
      if (performance.now() - last > 700) return last - begun;
      await new Promise((go) => setTimeout(go, 50));
    }
  };
};
w.record = () => {
  w.frames = []; w.long = 0; w.on = true;
  const frame = (at) => { w.frames.push(at); if (w.on) requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
};
w.stop = () => {
  w.on = false;
  return w.frames.slice(1).map((at, place) => at - w.frames[place]);
};
w.canvas = () => {
  const canvas = document.querySelector("canvas.fleet-canvas");
  new MutationObserver(() => w.took.push(Number(canvas.dataset.took)))
    .observe(canvas, { attributes: true, attributeFilter: ["data-took"] });
};
// From now until the middle of a long table has a row.
w.reached = async () => {
  const begun = performance.now();
  const box = document.querySelector(".long").getBoundingClientRect();
  const there = () => {
    const at = document.elementFromPoint(box.left + 200, box.top + box.height / 2);
    const row = at?.closest("tbody tr:not(.gap)");
    return row && row.cells[0].innerText.trim() + row.cells[1].innerText.trim() !== "";
  };
  await next();
  return (await drawn(there)) - begun;
};
"""


def quantiles(name: str, ms: list[float]) -> dict[str, float]:
    """Give the middle, the 95th percentile and the largest of some times."""
    return {
        f"{name}_p50_ms": float(np.percentile(ms, 50)),
        f"{name}_p95_ms": float(np.percentile(ms, 95)),
        f"{name}_max_ms": float(max(ms)),
    }


@contextmanager
def browsing() -> Iterator[Browser]:
    """Have a browser.

    Raises:
        FileNotFoundError: Debian's Chromium is not installed.
    """
    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("Debian's package chromium is not installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()


class Watched:
    """A page of a gateway, which knows nobody and has nothing kept before."""

    def __init__(self, browser: Browser, address: str) -> None:
        """Sign in by the address that the gateway printed."""
        url = urlsplit(address)
        self._url = f"{url.scheme}://{url.netloc}"
        self._browser = browser
        self.context = browser.new_context(viewport={"width": 1280, "height": 800})
        self.context.set_default_timeout(_PATIENCE_MS)
        self.context.add_init_script(_WATCH)
        self.context.request.get(address)
        self.page = self.context.new_page()

    def __enter__(self) -> Self:
        """Give it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.context.close()

    def ask(self, script: str) -> Any:
        """Evaluate a script in the page, and wait for what it promises."""
        return self.page.evaluate(script)

    def open(self, path: str) -> tuple[float, float]:
        """Go to a view; give when it painted first, and when it had its figures, in ms."""
        self.page.goto(self._url + path)
        arrived = float(self.ask("watched.arrived"))
        first = self.ask("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        return float(first), arrived

    @property
    def track(self) -> Locator:
        """The scrubber, usable once the log's moments are known."""
        found = self.page.locator(".track input[type=range]:enabled")
        found.wait_for()
        return found

    def click(self, share: float) -> float:
        """Click the scrubber at a share of its width; give in how many ms that is drawn."""
        box = self.track.bounding_box()
        assert box is not None
        x, y = box["x"] + share * box["width"], box["y"] + box["height"] / 2
        self.ask("watched.await('pointerdown')")
        self.page.mouse.click(x, y)
        return float(self.ask("watched.moved"))

    def press(self, key: str) -> float:
        """Press a key that moves through the log; give in how many ms that is drawn."""
        self.ask("watched.await('keydown')")
        self.page.keyboard.press(key)
        return float(self.ask("watched.moved"))

    def rested(self) -> float:
        """Give how many ms after the event the last answer came, also of what stands beside."""
        return float(self.ask("watched.rested()"))

    def heap_mib(self) -> float:
        """Give what the page's objects take, after what is garbage was collected."""
        session = self.context.new_cdp_session(self.page)
        session.send("HeapProfiler.collectGarbage")
        session.send("Performance.enable")
        metrics = session.send("Performance.getMetrics")["metrics"]
        session.detach()
        used = next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize")
        return float(used) / 2**20

    def rss_mib(self) -> float:
        """Give the resident memory of the largest process that draws pages."""
        session = self._browser.new_browser_cdp_session()
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
        session.detach()
        drawing = [one["id"] for one in processes if one["type"] == "renderer"]
        return max(memory(pid, "VmRSS") for pid in drawing if Path(f"/proc/{pid}").exists())
