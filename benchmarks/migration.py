"""How long a job stands still when it is moved: `python -m benchmarks.migration`.

From the order to stop at one process executor to the first step at another, through a `file://`
store, by the size of the checkpoint, in four parts that follow each other:

    save     from the order until the job says that its checkpoint is complete on disk
    upload   until the store holds it, every part read back, and the agent has said so
    fetch    from the order to start at the other until it is there, every part verified
    start    until the job has read it and taken a step

`hashing` is what sha256 of as many bytes as were hashed on the way takes, at the rate measured
here: a part of upload and fetch, of which a third goes on beside the rest where a file is cut.
Executors are looked at every 2 ms; an agent does so every 0.2 s. Disks are what they are: reads may
come from memory. Medians of the rounds. `thin` is a store with `rate_mib_per_s`.
"""

import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import parser_of, show
from runtime.checkpoints.store import CheckpointStore
from runtime.core import CheckpointDone, GangStarted, GangStopped
from tests.workers import Bench, python

_MIB = 2**20
PARTS = ("save", "upload", "fetch", "start")
#: Holds bytes that no other round has, and of which no two MiB are alike: parts are stored once.
_JOB = """
import json, os, signal, time
env, size = os.environ, {size_mib}
wishes = []
signal.signal(signal.SIGTERM, lambda *_: wishes.append(1))
if "TIDEGATE_RESUME" in env:
    with open(env["TIDEGATE_RESUME"], "rb") as file:
        held = file.read()
else:
    held = bytearray(os.urandom(2**20) * size)
    for n in range(size):
        held[n * 2**20 : n * 2**20 + 8] = n.to_bytes(8, "big")
step = 0
while True:
    step += 1
    said = {{"step": step, "samples_per_s": 1.0}}
    if wishes:
        name = f"step-{{step}}"
        with open(os.path.join(env["TIDEGATE_CHECKPOINT_DIR"], name), "wb") as file:
            file.write(held)
        said["checkpoint"], said["saved_s"] = name, time.time()
    with open(env["TIDEGATE_PROGRESS"], "a") as file:
        file.write(json.dumps(said) + chr(10))
    if wishes:
        raise SystemExit(0)
    time.sleep(0.01)
"""


def run(seconds: float) -> dict[str, float]:
    """Measure small checkpoints, for some seconds."""
    return measure((1, 64), 3 if seconds >= 3 else 1, thin_mib_per_s=16.0, folder=None)


def measure(
    sizes_mib: Sequence[int], rounds: int, *, thin_mib_per_s: float, folder: Path | None
) -> dict[str, float]:
    """Measure these sizes, and 64 MiB through a thin link."""
    figures: dict[str, float] = {"sha256_mib_per_s": _hash_mib_per_s()}
    totals: dict[int, float] = {}
    runs = [(size, None) for size in sizes_mib] + [(64, thin_mib_per_s)]
    for size_mib, rate in runs:
        taken: list[dict[str, float]] = []
        for _ in range(rounds if rate is None else 1):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                taken.append(_moved(Path(place), size_mib, rate))
        name = f"{'thin_' if rate is not None else ''}{size_mib}_mib"
        total_s = statistics.median(sum(one[part] for part in PARTS) for one in taken)
        figures[f"migration_{name}_s"] = total_s
        for part in PARTS:
            figures[f"migration_{name}_{part}_s"] = statistics.median(one[part] for one in taken)
        hashed_mib = statistics.median(one["hashed_mib"] for one in taken)
        share = hashed_mib / figures["sha256_mib_per_s"] / total_s
        figures[f"migration_{name}_hashing_percent"] = 100 * share
        if rate is None:
            totals[size_mib] = total_s
    least, most = min(totals), max(totals)
    if most > least:
        growth = (totals[most] - totals[least]) / (most - least) * 1024
        figures["migration_s_per_gib"] = growth
    return figures


def _moved(folder: Path, size_mib: int, rate: float | None) -> dict[str, float]:
    """Move a job once; give the seconds of each part."""
    store = CheckpointStore(f"file://{folder}/store", rate_mib_per_s=rate)
    options: dict[str, Any] = {"quiet_start_s": 60.0, "grace_s": 600.0}
    options |= {"final_upload_timeout_s": 600.0, "every_s": 0.002, "patience_s": 600.0}
    here = Bench(folder / "here", f"bench-here-{os.getpid()}", store, **options)
    there = Bench(folder / "there", f"bench-there-{os.getpid()}", store, **options)
    job = python(_JOB.format(size_mib=size_mib))
    try:
        here.start(job)
        here.hears(GangStarted)
        ordered_s = time.time()
        here.stop(grace_s=600.0)
        here.hears(CheckpointDone)
        durable_s = time.time()
        here.hears(GangStopped)
        last = json.loads((here.run() / "progress.jsonl").read_text().splitlines()[-1])
        began_s = time.time()
        there.start(job, epoch=2, step=last["step"])
        there.until(lambda: (there.run(2) / "shim.json").exists())
        fetched_s = time.time()
        there.hears(GangStarted)
        started_s = time.time()
    finally:
        here.end()
        there.end()
    # By part and as a whole on the way there, by part on the way back.
    passes = 3 if size_mib * _MIB > store.part_bytes else 2
    return {
        "save": last["saved_s"] - ordered_s,
        "upload": durable_s - last["saved_s"],
        "fetch": fetched_s - began_s,
        "start": started_s - fetched_s,
        "hashed_mib": float(passes * size_mib),
    }


def _hash_mib_per_s() -> float:
    data = os.urandom(16 * _MIB)
    rates = []
    for _ in range(5):
        began_s = time.perf_counter()
        hashlib.sha256(data).digest()
        rates.append(16 / (time.perf_counter() - began_s))
    return statistics.median(rates)


def main() -> int:
    """Measure the sizes asked for."""
    parser = parser_of("migration", __doc__)
    parser.add_argument("--sizes", default="1,64,512", help="in MiB, by commas (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each size (%(default)s)")
    parser.add_argument("--thin", type=float, default=16.0, help="MiB/s of the thin link (16)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (the temporary one)")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    figures = measure(sizes, given.rounds, thin_mib_per_s=given.thin, folder=given.folder)
    show(figures, "{:44} {:10.3f}", given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
