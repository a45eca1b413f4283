"""docs/gateway.md: each command as it stands there, asked of a gateway that is."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.openapi import make
from tests.demo_log import _demo, log
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

__all__ = ["_demo", "log"]
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
BEGIN, ASK = BLOCKS[:2]
#: The page asks for a moment of a whole day; the log here is half an hour.
THERE, HERE = "at=2026-01-06T06:30:00Z", "at=2026-01-05T00:20:00Z"


@pytest.fixture
def token(log: Path, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A gateway on a demo that has ended, where the page says; its address and token."""
    log.rename(tmp_path / "tidegate-demo.db")
    port = free_port()
    environment = os.environ | {
        "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "200", "PYTHONPATH": str(ROOT)
    }  # fmt: skip
    (line,) = [one for one in BEGIN.splitlines() if one.startswith("tidegate serve")]
    words = line.partition("#")[0].split()[1:]
    process = subprocess.Popen(
        [sys.executable, "-m", "console.main", *words, "--port", str(port)],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url, secret = f"http://127.0.0.1:{port}", process.stdout.readline().strip().split("token=")[1]
    client = httpx.Client(headers={"Authorization": f"Bearer {secret}"}, timeout=PATIENCE_S)

    def ready() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return bool(client.get(f"{url}/api/v1/health").json()["status"] == "ok")
        return False

    with client:
        wait_until(ready)
    yield url, secret
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


@pytest.mark.slow
def test_what_the_page_asks_is_answered(token: tuple[str, str]) -> None:
    url, secret = token
    assert THERE in ASK
    script = (
        ASK.replace(THERE, HERE).replace("http://127.0.0.1:8321", url).replace("=...", f"={secret}")
    )
    asked = [line for line in script.splitlines() if line.startswith("ask")]
    begin = "\n".join(line for line in script.splitlines() if not line.startswith("ask"))
    assert len(asked) == 8
    for line in asked:
        done = subprocess.run(
            ["bash", "-c", f"shopt -s expand_aliases\n{begin}\n{line}\n"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        if "stream" in line:
            assert "event: head" in done.stdout
        else:
            document = json.loads(done.stdout)
            assert "status" not in document, (line, document)


def test_the_page_names_every_path() -> None:
    named = set(re.findall(r"`([\w/-]+)(?:\?[^`]*)?`", PAGE))
    for path in make().openapi()["paths"]:
        short = re.sub(r"\{(job|request_id|branch_id)\}", "ID", path.removeprefix("/api/v1/"))
        assert re.sub(r"\{number\}", "N", short) in named, path
