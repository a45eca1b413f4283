"""A gateway beside a demo: `tidegate serve` as a process, so that neither waits for the other."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bus.sqlite_file import create
from console.output import fail, say

#: An interrupt reaches both; so long the gateway may take to end.
_END_S = 10.0


@contextlib.contextmanager
def served(log: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Serve a log meanwhile, and say where. Whoever waits for the process lets it go on."""
    if not log.exists():
        create(log)
    command = [sys.executable, "-m", "console.main", "serve", str(log), "--no-browser"]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        process.wait()
        fail("--serve: the gateway could not begin, as it says above; leave --serve out.")
    say(f"Served at {address}")
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        process.kill()
        process.stdout.close()
