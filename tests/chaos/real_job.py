"""The job of `real_work`: `examples/train_numpy.py`, whose checkpoints take time and room.

Tidegate learns how fast it is, so it must gain by GPUs what its tenant declares.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import train_numpy  # type: ignore[import-not-found]

_parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
_parser.add_argument("--work-s", type=float, default=0.0, help="of a step, of one worker")
_parser.add_argument("--gain", type=float, default=1.0, help="N workers: N**GAIN times as fast")
_parser.add_argument("--save-s", type=float, default=0.0, help="a checkpoint is written so long")
_parser.add_argument("--ballast-mib", type=float, default=0.0, help="and is larger by this")


class SlowJob(train_numpy.Job):  # type: ignore[misc]
    """Is in the middle of a checkpoint for a while."""

    save_s, ballast_mib = 0.0, 0.0

    def write(self, step: int, weights: Any) -> None:
        """Write a draft, rest, and name it a checkpoint."""
        name = f"step-{step}.npz"
        draft = self.folder / f".{name}"
        ballast = np.frombuffer(os.urandom(int(self.ballast_mib * 2**20)), dtype=np.uint8)
        with draft.open("wb") as file:
            np.savez(file, *weights, step=np.int64(step), ballast=ballast)
            time.sleep(self.save_s)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.folder / name)
        self.say(step=step, checkpoint=name)

    def read(self, path: str) -> tuple[int, Any]:
        """Read all but what only takes room."""
        with np.load(path) as file:
            count = sum(name.startswith("arr_") for name in file.files)
            return int(file["step"]), [file[f"arr_{number}"] for number in range(count)]


if __name__ == "__main__":
    _own, sys.argv[1:] = _parser.parse_known_args()
    _shared = int(os.environ.get("WORLD_SIZE", 1)) ** (1.0 - _own.gain)
    sys.argv += ["--work-s", str(_own.work_s * _shared)]
    SlowJob.save_s, SlowJob.ballast_mib = _own.save_s, _own.ballast_mib
    train_numpy.Job = SlowJob
    train_numpy.main()
