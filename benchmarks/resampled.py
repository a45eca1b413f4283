"""Fresh workloads from the public Pollux ones: nobody has looked at them before.

A workload of seed S has the arrivals of one of the sixteen, drawn with S, and as many jobs, drawn
with replacement from all jobs of all sixteen: application, GPUs and batch go together as they were.
"""

import csv
from pathlib import Path

import numpy as np


def resampled(sources: list[Path], seed: int, folder: Path) -> Path:
    """Write the workload of a seed to a folder.

    Args:
        sources: Pollux workloads, in an order that never changes.
        seed: Of all that is drawn.
        folder: Where it goes.
    """
    tables = [list(csv.DictReader(source.read_text().splitlines())) for source in sources]
    rng = np.random.default_rng(seed)
    arrivals = [row["time"] for row in tables[int(rng.integers(len(tables)))]]
    pool = [row for table in tables for row in table]
    drawn = [pool[at] for at in rng.integers(len(pool), size=len(arrivals)).tolist()]
    path = folder / f"resampled-{seed}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(pool[0]))
        writer.writeheader()
        for number, (time, row) in enumerate(zip(arrivals, drawn, strict=True)):
            name = f"{row['application']}-{number}"
            writer.writerow({**row, "name": name, "time": time})
    return path


def seeds_of(text: str) -> list[int]:
    """Read seeds: `1-5`, `7`, or several of these by commas.

    Raises:
        ValueError: It is neither.
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
