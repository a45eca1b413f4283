"""How long training stands still when a job changes its size: `python -m benchmarks.resize`.

`examples/train_elastic.py` as real processes on one machine, through the process executor, by
restart (save, leave, begin anew, load) and in place (new workers start while the others train; then
they get the state from the first over loopback). Seconds from the last step before the change to
the first after it, as the job's own lines say; what a step takes otherwise is told too. `_until` is
from the order until the executor reports that the gang runs at its new size. The median of the
rounds. The made-up state of the model is as large as the checkpoint; all of it is written and
forced to the disk, and each worker reads it. New processes share the cores with those that train.
"""

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import parser_of, show
from runtime.core import GangStarted
from schemas.programs import Program
from tests.workers import Bench, bench

SIZES: Sequence[tuple[int, int]] = ((1, 2), (2, 4), (4, 2))
_TRAIN = Path(__file__).resolve().parent.parent / "examples" / "train_elastic.py"
_STEPS = 1_000_000
_WORK_S = 0.05
#: Steps before each change, for the gang to be at its pace.
_SETTLED = 20
_PATIENCE_S = 300.0


def run(states_mib: Sequence[int], rounds: int, folder: Path | None = None) -> dict[str, float]:
    """Measure; give seconds by way, size and state."""
    taken: dict[str, list[float]] = {}
    for mib, _, how in itertools.product(states_mib, range(rounds), ("restart", "in_place")):
        with tempfile.TemporaryDirectory(dir=folder) as root:
            for name, value_s in _one_gang(Path(root), mib, how).items():
                taken.setdefault(name, []).append(value_s)
    return {name: statistics.median(values_s) for name, values_s in taken.items()}


def _one_gang(root: Path, mib: int, how: Any) -> dict[str, float]:
    """Take a gang through all sizes."""
    command = [sys.executable, str(_TRAIN), "--steps", str(_STEPS), "--save-every", str(_STEPS)]
    command += ["--work-s", str(_WORK_S), "--state-mib", str(mib)]
    program = Program(argv=command, env={"OPENBLAS_NUM_THREADS": "1"}, resize=how)
    figures: dict[str, float] = {}
    with bench(root, grace_s=60.0, quiet_start_s=60.0) as jig:
        jig.start(program, *range(SIZES[0][0]), total_steps=_STEPS)
        for epoch, (before, after) in enumerate(SIZES, start=2):
            _settle(jig)
            reached, began_s = jig.step(), time.monotonic()
            jig.scale(*range(after), epoch=epoch)
            _until(jig, epoch)
            until_s = time.monotonic() - began_s
            _settle(jig)
            pause_s, step_s = _pause(jig, reached)
            name = f"resize_{how}_{before}_to_{after}_{mib}_mib"
            figures |= {f"{name}_s": pause_s, f"{name}_until_s": until_s}
            figures[f"{name}_step_s"] = step_s
        if jig.executor.fallbacks:
            raise RuntimeError("a change in place became a restart; see the log")
    return figures


def _look(jig: Bench) -> None:
    """Drive the executor as an agent does: when it wants to be asked."""
    due_s = jig.executor.next_due_s()
    time.sleep(0.01)
    if due_s is not None and time.time() >= due_s:
        jig.look()


def _until(jig: Bench, epoch: int) -> None:
    """Drive until the gang runs under this epoch."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not any(started.epoch == epoch for started in jig.all(GangStarted)):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"epoch {epoch} never started; said: {jig.said}")
        _look(jig)


def _settle(jig: Bench) -> None:
    """Drive until the gang has trained on for a while."""
    began, deadline_s = len(_steps(jig)), time.monotonic() + _PATIENCE_S
    while len(_steps(jig)) < began + _SETTLED:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"it trains no more; said: {jig.said}")
        _look(jig)


def _steps(jig: Bench) -> list[tuple[int, float]]:
    """Give all steps and their moments; none is repeated."""
    lines: list[dict[str, Any]] = []
    for path in jig.run().parent.glob("*/progress.jsonl"):
        whole = path.read_bytes().rpartition(b"\n")[0]
        lines += [json.loads(line) for line in whole.splitlines()]
    return sorted((line["step"], line["at_s"]) for line in lines if "at_s" in line)


def _pause(jig: Bench, reached: int) -> tuple[float, float]:
    """Give the longest time between two steps since then, and the usual one."""
    steps = [(step, at_s) for step, at_s in _steps(jig) if step >= reached]
    if [step for step, _ in steps] != list(range(reached, reached + len(steps))):
        raise RuntimeError("steps were lost or repeated")
    gaps_s = [later - sooner for (_, sooner), (_, later) in itertools.pairwise(steps)]
    return max(gaps_s), statistics.median(gaps_s)


def main() -> int:
    """Run the sizes asked for."""
    parser = parser_of("resize", __doc__)
    parser.add_argument("--states", default="1,256", help="sizes of checkpoints, in MiB (1,256)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is shown (3)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (the temporary one)")
    options = parser.parse_args()
    states_mib = [int(size) for size in options.states.split(",")]
    figures = run(states_mib, options.rounds, options.folder)
    show(figures, "{:44} {:8.3f} s", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
