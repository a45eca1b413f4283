"""What a job reports of itself is drawn, be it little."""

import asyncio
import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.conftest import apart
from tests.browser.window import Window
from tests.gateway.test_curves import SECRET, write_reports
from tests.process.gateway_process import Process

#: Keeps what is written on canvases.
_KEEP_TEXTS = """
  window.texts = [];
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.texts.push(text);
    return write.call(this, text, ...rest);
  };
"""
#: Whether anything on a canvas has the colour of lines.
_DRAWN = """node => {
  const all = (canvas) => new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const probe = document.createElement("canvas");
  const brush = probe.getContext("2d");
  brush.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  brush.fillRect(0, 0, 1, 1);
  return all(node).includes(all(probe)[0]);
}"""


def test_one_sample_is_a_point_on_an_axis_of_minutes(browser: Browser, tmp_path: Path) -> None:
    log = tmp_path / "one.db"
    apart(lambda: asyncio.run(write_reports(log)))
    gateway = Process(log, tmp_path / "run")
    try:
        gateway.ready()
        window = Window(browser, gateway)
        window.context.add_init_script(_KEEP_TEXTS)
        page = window.open("/jobs/zeta-secret-run").page
        chart = page.get_by_role("img", name=re.compile(f"^{SECRET} over time, 1 points"))
        expect(chart.locator("canvas")).to_be_visible()
        assert chart.locator("canvas").evaluate(_DRAWN), "nothing is drawn"
        (point,) = window.api("/jobs/zeta-secret-run/curves")["curves"][SECRET]
        assert point[2] == 0.25
        times = [text for text in page.evaluate("window.texts") if ":" in text]
        assert len(set(times)) > 2, times
        window.close()
    finally:
        gateway.kill()
