"""How far the control of a branch is from what really happened, on nights of several seeds.

    python -m benchmarks.branches --seeds 7,8,9,10,11 --at 8 --hours 6 --json out.json

Each night is a demo's day on a file: the services of a deployment, agents with simulated GPUs,
failures of workers included. `tidegate branch` goes on from the entry at `--at` o'clock for
`--hours` hours with nothing changed; what the control did is held against what the log says of the
same hours. Also measured: how long a control and a branch under `fifo` took together.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import parser_of, write
from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from schemas.topics import JOURNAL

#: What is compared: parts of an outcome.
PARTS = ("done", "deadlines_met", "used_gpu_h", "lent_gpu_h", "short_gpu_h", "preemptions")
_START_S = 1_767_571_200.0  # when every demo's simulated time begins


def _tidegate(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "console.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _entry_at(log: Path, at_s: float) -> int:
    """Find the last entry before a moment, by halves."""

    async def find() -> int:
        bus, last = SqliteBus.open_readonly(log, SystemClock()), -1
        try:
            async for record in bus.read(JOURNAL.name):
                data = json.loads(record.value or b"{}")["data"]
                if data["at_s"] > at_s:
                    return last
                last = int(data["number"])
            return last
        finally:
            await bus.close()

    return asyncio.run(find())


def night(folder: Path, seed: int, at_h: float, hours: float, seconds: float) -> dict[str, Any]:
    """Record a day and go on from an entry of it, with nothing changed and under `fifo`."""
    log = folder / f"{seed}.db"
    demo = ("demo", "--seed", f"{seed}", "--seconds", f"{seconds}", "--no-live")
    _tidegate(*demo, "--log", f"{log}", "--json", "-")
    entry = _entry_at(log, _START_S + at_h * 3600.0)
    where = ("branch", f"{log}", "--entry", f"{entry}", "--hours", f"{hours}", "--json", "-")
    found = _tidegate(*where)
    began_s = time.perf_counter()
    other = _tidegate(*where, "--policy", "fifo")
    took_s = time.perf_counter() - began_s
    pairs = {
        part: [found["recorded"][part], found["control_until_recorded_end"][part]] for part in PARTS
    }
    return {
        "seed": seed,
        "entry": entry,
        "recorded_and_control": pairs,
        "fifo": {part: other["branch"][part] for part in PARTS},
        "branch_s": round(took_s, 1),
        "violations": found["violations"] + other["violations"],
    }


def main() -> int:
    parser = parser_of("branches", __doc__)
    parser.add_argument("--seeds", default="7,8,9,10,11", help="of the nights, with commas")
    parser.add_argument("--at", type=float, default=8.0, help="o'clock; default: 8")
    parser.add_argument("--hours", type=float, default=6.0, help="of each branch; default: 6")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each day; default: 20")
    options = parser.parse_args()
    nights = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, options.seeds.split(",")):
            nights.append(night(Path(folder), seed, options.at, options.hours, options.seconds))
            sys.stderr.write(f"{json.dumps(nights[-1])}\n")
    write(options.json or "-", nights=nights)
    return 0


if __name__ == "__main__":
    sys.exit(main())
