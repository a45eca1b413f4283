"""Make the pictures of the console, each view of a recorded demo.

`python docs/make_screenshots.py RUN.db`, after `make console`; it needs Debian's chromium.
"""

import io
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright

_FOLDER = Path(__file__).parent / "pictures"
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
_NIGHT, _MORNING = "2026-01-06T00:40:00Z", "2026-01-06T08:10:00Z"
#: So long a view has to show all of it, in milliseconds.
_SETTLED_MS = 4000


@contextmanager
def _served(log: str) -> Iterator[str]:
    """Serve a log; give the address with the token."""
    command = [
        sys.executable,
        "-u",
        "-m",
        "console.main",
        "serve",
        log,
        "--port",
        "0",
        "--no-browser",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if line.startswith("http"))
        finally:
            process.terminate()


def _views(api: httpx.Client) -> dict[str, str]:
    """Give by picture the address of a view, at a moment that has something to show."""
    while any(cell["index"]["building"] for cell in api.get("/health").json()["cells"]):
        time.sleep(1)
    night, morning = (
        api.get("/overview", params={"at": at}).json()["entry"] for at in (_NIGHT, _MORNING)
    )
    asked = {"entry": night, "state": "running", "limit": 1000}
    jobs = api.get("/jobs", params=asked).json()["jobs"]
    moved = max(jobs, key=lambda one: (one["migrations"] + one["preemptions"], one["job"]))
    branch = {"entry": night, "hours": 6, "runs": 1, "change": {"policy": "fifo"}}
    begun = api.post("/branches", json=branch).json()["branch"]
    while api.get(f"/branches/{begun}").json()["state"] in ("waiting", "running"):
        time.sleep(1)
    return {
        "tide": f"/?entry={morning}",
        "fleet": f"/fleet?entry={night}",
        "jobs": f"/jobs?entry={night}",
        "job": f"/jobs/{moved['job']}?entry={night}",
        "submit": "/submit",
        "loans": f"/loans?entry={morning}",
        "decisions": f"/decisions?entry={morning}",
        "what-if": f"/what-if/{begun}?entry={night}",
        "compare": f"/compare?entry={night}&vs={morning}",
        "tenants": f"/tenants?entry={night}",
        "health": f"/health?entry={morning}",
        "audit": f"/audit?entry={morning}",
        "dead-letters": f"/dead-letters?entry={morning}",
    }


def _drawn(page: Page, name: str) -> None:
    page.wait_for_timeout(_SETTLED_MS)
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        few = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        few.save(_FOLDER / f"console-{name}.png", optimize=True)


def main(log: str) -> None:
    """Draw every view in light colours, and the tide in dark ones."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("Install Debian's package chromium first.")
    with _served(log) as opened, sync_playwright() as playwright:
        parts = urlsplit(opened)
        base = f"{parts.scheme}://{parts.netloc}"
        token = parts.query.removeprefix("token=")
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"{base}/api/v1", headers=headers, timeout=120) as api:
            views = _views(api)
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        for scheme, names in (("light", list(views)), ("dark", ["tide"])):
            context = browser.new_context(
                viewport={"width": 1280, "height": 800},
                color_scheme="dark" if scheme == "dark" else "light",
                reduced_motion="reduce",
            )
            page = context.new_page()
            page.goto(opened)
            for name in names:
                page.goto(base + views[name])
                _drawn(page, name if scheme == "light" else f"{name}-dark")
            context.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
