"""How quickly the console shows a large cell in a browser: paint, seeks, fleet, scrolling, memory.

Of a cell of 10,000 nodes, 50,000 jobs and a million entries, whose log is written first (some
minutes, 2 GB) and kept:

    python -m benchmarks.console_page --log cell.db --json out.json

and of a small one, in less than a minute:

    python -m benchmarks.console_page --nodes 30 --jobs 200 --entries 5000 --minutes 5

It needs Debian's chromium, and `make console` before. The gateway's index is made anew, unless
`--keep-index` is given.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser

from benchmarks import console_log
from benchmarks.console_watch import Watched, browsing, quantiles
from benchmarks.figures import parser_of, write
from benchmarks.gateway_cell import Served, memory, serving, until_ready

_LOADS = 5
_REPAINTS, _TICKS, _JUMPS = 25, 250, 8
_TICK_PX = 216
_COLOURINGS = ("tenant", "loan", "use", "health", "job")
Figures = dict[str, float]


def painted(browser: Browser, served: Served) -> Figures:
    """Open the first view several times, each time as somebody who was never here."""
    first, figures = [], []
    for _ in range(_LOADS):
        with Watched(browser, served.address) as page:
            one, other = page.open("/tide")
            first.append(one)
            figures.append(other)
    return quantiles("paint_first", first) | quantiles("paint_figures", figures)


def sought(browser: Browser, served: Served, places: int) -> Figures:
    """Click places all over the scrubber, and from each go a little on and back, by keys."""
    chance = np.random.default_rng(1)
    far: list[float] = []
    rested: list[float] = []
    near: list[float] = []
    step: list[float] = []
    with Watched(browser, served.address) as page:
        page.open("/tide")
        for place in chance.uniform(0.05, 0.95, places):
            far.append(page.click(float(place)))
            rested.append(page.rested())
            # An arrow is a two-thousandth of the log's time: some hundred entries of a long one.
            near += [page.press(f"Arrow{way}") for way in ("Right", "Left", "Left", "Left")]
            step += [page.press(",") for _ in range(3)]
        figures = {"page_tide_heap_mib": page.heap_mib(), "page_tide_rss_mib": page.rss_mib()}
    figures |= quantiles("seek_far", far) | quantiles("seek_far_all", rested)
    return figures | quantiles("seek_near", near) | quantiles("seek_step", step)


def fleet(browser: Browser, served: Served) -> Figures:
    """Colour the fleet otherwise, and step through the log; measure the repaint and the frames."""
    with Watched(browser, served.address) as page:
        _, shown = page.open("/fleet")
        page.page.locator("canvas.fleet-canvas[data-took]").wait_for()
        page.ask("watched.canvas()")
        page.ask("watched.record()")
        for number in range(_REPAINTS):
            colouring = _COLOURINGS[number % len(_COLOURINGS)]
            page.page.locator(".fleet-choices label", has_text=colouring).click()
            page.page.wait_for_timeout(100)
        frames = page.ask("watched.stop()")
        took = page.ask("watched.took.splice(0)")
        figures = {"fleet_shown_ms": shown} | quantiles("fleet_repaint", took)
        figures |= quantiles("fleet_frame", frames)
        seeks = [page.press(",") for _ in range(6)]
        figures |= quantiles("fleet_step", seeks)
        figures |= quantiles("fleet_step_repaint", page.ask("watched.took"))
        figures |= {"page_fleet_heap_mib": page.heap_mib(), "page_fleet_rss_mib": page.rss_mib()}
    return figures


def scrolled(browser: Browser, served: Served) -> Figures:
    """Scroll through all jobs by the wheel, then jump to places far away."""
    with Watched(browser, served.address) as page:
        page.page.goto(served.address.partition("?")[0] + "jobs?state=all")
        table = page.page.locator(".long")
        table.locator("tbody tr:not(.gap)").first.wait_for()
        page.page.wait_for_timeout(1000)
        table.hover()
        page.ask("watched.record()")
        for _ in range(_TICKS):
            page.page.mouse.wheel(0, _TICK_PX)
            page.page.wait_for_timeout(16)
        frames, long_tasks = page.ask("watched.stop()"), page.ask("watched.long")
        figures = quantiles("scroll_frame", frames)
        figures["scroll_frames_over_50_ms"] = sum(one > 50.0 for one in frames)
        figures["scroll_frames"] = len(frames)
        figures["scroll_long_tasks"] = long_tasks
        figures["scroll_rows"] = float(table.locator("table").get_attribute("aria-rowcount") or 1)
        jumps = []
        for share in [1.0, *np.random.default_rng(2).uniform(0.0, 1.0, _JUMPS - 1)]:
            go = "document.querySelector('.long')"
            page.ask(f"{go}.scrollTop = {share} * {go}.scrollHeight")
            jumps.append(float(page.ask("watched.reached()")))
        figures |= quantiles("scroll_jump", jumps)
        figures |= {"page_jobs_heap_mib": page.heap_mib(), "page_jobs_rss_mib": page.rss_mib()}
    return figures


def measure(log: Path, *, keep_index: bool, places: int) -> Figures:
    """Measure the console of a gateway of this log."""
    index = log.with_name(f"{log.name}.index.db")
    if not keep_index:
        for old in log.parent.glob(f"{index.name}*"):
            old.unlink()
    figures: Figures = {"log_mib": log.stat().st_size / 2**20}
    began_s = time.perf_counter()
    with serving(log) as served:
        figures["entries"] = until_ready(served.client) + 1
        if not keep_index:
            figures["index_s"] = time.perf_counter() - began_s
            figures["index_peak_mib"] = memory(served.pid, "VmHWM")
        figures["index_mib"] = sum(
            one.stat().st_size / 2**20 for one in log.parent.glob(f"{index.name}*")
        )
    # As it is found by whoever comes later: what making the index took is given back.
    with serving(log) as served, browsing() as browser:
        until_ready(served.client)
        sums = served.client.get("/overview").json()
        figures["nodes"] = sum(sums["nodes"].values())
        figures["jobs"] = sum(sums["jobs"].values())
        figures["jobs_running"] = sums["jobs"].get("running", 0)
        figures["server_ready_mib"] = memory(served.pid, "VmRSS")
        for part in (painted, partial(sought, places=places), fleet, scrolled):
            began_s = time.perf_counter()
            figures |= part(browser, served)
            sys.stderr.write(f"{[*figures][-1]}: {time.perf_counter() - began_s:.0f} s\n")
        figures["server_rss_mib"] = memory(served.pid, "VmRSS")
        figures["server_peak_mib"] = memory(served.pid, "VmHWM")
    return figures


def run(nodes: int, jobs: int, entries: int, minutes: int, places: int) -> Figures:
    """Measure the console of a cell of this size, whose log is written first."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "cell.db"
        console_log.write(log, nodes, jobs, entries, minutes)
        return measure(log, keep_index=False, places=places)


def main() -> int:
    parser = parser_of("console_page", __doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=int, default=1, help="of the policy's own work (1)")
    parser.add_argument("--log", type=Path, help="of the cell; written there if it is not")
    parser.add_argument("--places", type=int, default=12, help="of the log that are sought (12)")
    parser.add_argument("--keep-index", action="store_true", help="that of an earlier gateway")
    options = parser.parse_args()
    size = (options.nodes, options.jobs, options.entries, options.minutes)
    if options.log is None:
        figures = run(*size, options.places)
    else:
        if not options.log.exists():
            console_log.write(options.log, *size)
        figures = measure(options.log, keep_index=options.keep_index, places=options.places)
    write(options.json or "-", **figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
