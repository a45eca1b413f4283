"""How fast checkpoints go into a store and back: `python -m benchmarks.checkpoints`.

MiB/s of one file of random bytes, by its size, against `cp` of the same bytes on the same disk: as
it is, and with the copy forced to the disk, which commit and fetch always do. `commit` reads every
byte back, `commit_by_size` trusts the sizes; `again` commits what is there already. All reads may
come from memory, `cp`'s too. The median of the rounds; the ways take turns, since others may use
the machine.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import parser_of, show
from runtime.checkpoints.store import CheckpointStore

_MIB = 2**20


def run(folder: Path, sizes_mib: Sequence[int], rounds: int) -> dict[str, float]:
    """Measure in a folder; give MiB/s by way and size."""
    figures: dict[str, float] = {}
    for size_mib in sizes_mib:
        source = folder / "source"
        with source.open("wb") as stream:
            for _ in range(size_mib):
                stream.write(os.urandom(_MIB))
        taken: dict[str, list[float]] = {}
        for turn in range(rounds):
            place = folder / f"turn-{turn}"
            place.mkdir()
            for name, call in _ways(source, place).items():
                begin_s = time.perf_counter()
                call()
                taken.setdefault(name, []).append(time.perf_counter() - begin_s)
            shutil.rmtree(place)
        for name, times_s in taken.items():
            figures[f"{name}_{size_mib}_mib_per_s"] = size_mib / statistics.median(times_s)
    return figures


def _ways(source: Path, place: Path) -> dict[str, Callable[[], object]]:
    """What is compared; they run in this order."""
    full = CheckpointStore(f"file://{place}/full")
    by_size = CheckpointStore(f"file://{place}/by-size", verify="size")

    def copied(name: str) -> Path:
        subprocess.run(["cp", source, place / name], check=True)
        return place / name

    def synced() -> None:
        with copied("synced").open("rb") as stream:
            os.fsync(stream.fileno())

    def fetched() -> None:
        found = full.find("job", 1)
        if found is None:
            raise RuntimeError("what was committed is not there")
        full.fetch(found, place / "into")

    return {
        "cp": lambda: copied("copy"),
        "cp_synced": synced,
        "commit": lambda: full.commit("job", 1, 1, source, 0.0),
        "commit_by_size": lambda: by_size.commit("job", 1, 1, source, 0.0),
        "again": lambda: by_size.commit("job", 1, 1, source, 0.0),
        "fetch": fetched,
    }


def main() -> int:
    """Run the sizes asked for."""
    parser = parser_of("checkpoints", __doc__)
    parser.add_argument("--sizes", default="1,64,512", help="of checkpoints, in MiB (1,64,512)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median is shown (5)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (the temporary one)")
    options = parser.parse_args()
    sizes_mib = [int(size) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = run(Path(folder), sizes_mib, options.rounds)
    show(figures, "{:32} {:10,.1f} MiB/s", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
