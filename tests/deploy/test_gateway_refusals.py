"""docs/gateway.md, "Try it": by curl, beside `make demo ARGS=--serve`, each line as it stands."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx
import orjson
import pytest

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from schemas.topics import JOURNAL, REQUESTS
from tests.deploy.test_gateway_page import ASK, BLOCKS, ROOT
from tests.integration.gateways import until
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

pytestmark = pytest.mark.slow
POST, FIRST, ROBOTS, SECOND = BLOCKS[2], *BLOCKS[4:7]
_LINE = re.compile(r"^(?!\w+\(\) ).*?\s# (\d{3}) .*$", re.MULTILINE)


@contextmanager
def begun(
    command: list[str], cwd: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, which ends with the block."""
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_until(stream: IO[str] | None, sign: str) -> str:
    """Give the first line with this sign."""
    assert stream is not None
    for line in stream:
        if sign in line:
            return line.strip()
    pytest.fail(f"it ended without {sign}")


def answers(url: str) -> bool:
    """Whether a gateway listens there."""
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/api/v1/health").status_code == 401
    return False


def defined(block: str) -> str:
    """Give what a block says before its questions."""
    return "".join(line for line in block.splitlines(True) if not _LINE.match(line))


class Reader:
    """Who types what the page says, beside a demo that runs."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(folder), "COLUMNS": "200",
        }  # fmt: skip
        self.log = folder / "tidegate-demo.db"
        self.ports = {"8321": str(free_port()), "8322": str(free_port())}
        words = f"--serve --hours 72 --seconds 90 --no-live --port {self.ports['8321']}"
        demo = ["make", "-s", "demo", f"ARGS={words} --log {self.log}"]
        self.demo = stack.enter_context(begun(demo, ROOT, self.environment))
        token = read_until(self.demo.stderr, "token=").partition("token=")[2]
        url = f"http://127.0.0.1:{self.ports['8321']}"
        wait_until(lambda: answers(url), "the demo's gateway answers")
        self._before = ASK.partition("\n\n")[0].replace("=...", f"={token}")
        self._before += "\n" + POST.partition("\n")[0] + "\n"

    def types(self, text: str) -> str:
        """Type it where the first commands of the page were typed; give what is shown."""
        script = "shopt -s expand_aliases\n" + self._before + text
        for there, here in self.ports.items():
            script = script.replace(f"127.0.0.1:{there}", f"127.0.0.1:{here}")
            script = script.replace(f"--port {there}", f"--port {here}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (text, done.stderr)
        return done.stdout

    def is_answered(self, block: str, before: str = "") -> list[tuple[str, dict[str, Any]]]:
        """Type each line that says which status it gets; give the lines and the answers."""
        definitions = before + defined(block)
        found = []
        for line in _LINE.finditer(block):
            status = self.types(definitions + line[0]).strip()
            document = json.loads((self.folder / "answer.json").read_text())
            assert status == line[1], (line[0], document)
            found.append((line[0], document))
        return found

    def serves(self, block: str) -> None:
        """Type a block whose last line serves in a terminal of its own."""
        *lines, serve = block.splitlines()
        self.types("\n".join(lines))
        words = serve.partition("#")[0].split()
        words[words.index("8322")] = self.ports["8322"]
        self._stack.enter_context(begun(words, self.folder, self.environment))
        wait_until(lambda: answers(f"http://127.0.0.1:{self.ports['8322']}"), "the second answers")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        yield Reader(tmp_path, stack)


async def written(log: Path) -> tuple[list[dict[str, Any]], int]:
    """Give the requests of the journal, and how many were written."""
    bus = SqliteBus.open_readonly(log, SystemClock())
    entries = [orjson.loads(record.value or b"")["data"] async for record in bus.read(JOURNAL.name)]
    asked = [record async for record in bus.read(REQUESTS.name)]
    await bus.close()
    taken = [one["stimulus"] for one in entries if one["stimulus"]["kind"] == "Requested"]
    return [one["data"]["request"] for one in taken], len(asked)


def test_by_curl_each_question_gets_the_answer_that_the_page_says(reader: Reader) -> None:
    ask = 'ask "$TIDEGATE_GATEWAY/{}"'

    def asked(path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(reader.types(ask.format(path)))
        return found

    until(lambda: (asked("overview").get("entry") or 0) > 500, "the demo comes to its entry 500")
    until(lambda: "job" in asked("jobs/job-0042"), "job-0042 is submitted")
    overview = asked("overview?entry=500")
    assert overview.get("entry") == 500, overview
    entry = asked("overview")["entry"]
    why, then = asked("jobs/job-0042/why"), asked(f"jobs/job-0042/why?entry={entry}")
    assert why.keys() == then.keys() > {"job", "history"}

    first = reader.is_answered(FIRST)
    reader.serves(ROBOTS)
    second = defined(FIRST) + defined(SECOND)
    until(lambda: reader.types(second + 'as eyes "$SECOND/overview"') == "200\n", "it has read all")
    answered = first + reader.is_answered(SECOND, defined(FIRST))
    done, again = [document for line, document in answered if "k1" in line and "# 200" in line]
    assert (done["result"], done["entry"]) == ("done", again["entry"])
    # Of 500 questions the last may have been answered again.
    refused = [one for one in answered if "# 200" not in one[0] and "[1-500]" not in one[0]]
    assert len(refused) == 14
    for line, document in refused:
        assert document["detail"], line
        assert f"# {document['status']}" in line
    # The log has gone on meanwhile; at that moment all is as it was.
    until(lambda: (asked("overview").get("entry") or 0) > entry, "it goes on")
    assert asked(f"jobs/job-0042/why?entry={entry}") == then
    journal, requests = asyncio.run(written(reader.log))
    assert [one["id"] for one in journal] == ["k1"], "what was refused is not in the journal"
    assert requests == 1, "and was not written at all"
