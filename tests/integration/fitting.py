"""A small job that really trains, one step after the other, and waits half-way until it may go on.

It fits a slope, as that of docs/tutorial.md does. Each step that it takes is a line of its
`--taken` file, `STEP NODE`, so that one sees which step was taken where, none lost and none twice.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from schemas.events import JobSubmitted
from schemas.programs import Program
from tests.builders import submitted
from tests.patience import whole_lines

STEPS = 80
#: Where it waits.
GATE = 40
_CODE = """
import json, os, pathlib, random, signal, sys, time
env, steps, gate = os.environ, int(sys.argv[1]), int(sys.argv[2])
go_on, taken = map(pathlib.Path, sys.argv[3:])
folder, resume = pathlib.Path(env["TIDEGATE_CHECKPOINT_DIR"]), env.get("TIDEGATE_RESUME")
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append("leave"))
def say(**line):
    with open(env["TIDEGATE_PROGRESS"], "a") as file:
        file.write(json.dumps(line) + chr(10))
def save():
    name = f"step-{step}.json"
    (folder / name).write_text(json.dumps([step, slope]))
    say(step=step, checkpoint=name)
step, slope = json.loads(pathlib.Path(resume).read_text()) if resume else (0, 0.0)
while step < steps and not asked:
    if step >= gate and not go_on.exists():
        time.sleep(0.02)
        continue
    step += 1
    x = random.Random(step).uniform(-1, 1)
    slope += 0.1 * (3 * x - slope * x) * x
    time.sleep(0.02)
    with taken.open("a") as file:
        file.write(f"{step} {env['TIDEGATE_NODE']}" + chr(10))
    say(step=step)
save()
"""


class Fit:
    """The job of this name, and what it did.

    Args:
        folder: Where its files are.
        name: Its name.
    """

    def __init__(self, folder: Path, name: str = "fit") -> None:
        self.name = name
        self._gate, self._taken = folder / f"{name}.go-on", folder / f"{name}.taken"

    def submitted(self, gpus: int = 1) -> JobSubmitted:
        """Describe it."""
        argv = [
            *(sys.executable, "-c", _CODE, str(STEPS), str(GATE)),
            *(str(self._gate), str(self._taken)),
        ]
        made = submitted(self.name, gpus_min=gpus, gpus_max=gpus, total_steps=STEPS)
        told: dict[str, Any] = {
            "samples_per_step": 1.0,
            "start_cost_s": 1.0,
            "checkpoint_cost_s": 0.1,
            "program": Program(argv=argv, workers="per_node"),
        }
        return made.model_copy(update=told)

    def go_on(self) -> None:
        """Let it take the rest of its steps."""
        self._gate.touch()

    def steps(self) -> list[tuple[int, str]]:
        """Give each step that was taken, in order, with the node where it was."""
        lines = (line.split() for line in whole_lines(self._taken))
        return [(int(step), node) for step, node in lines]

    def waits(self) -> bool:
        """Whether it is half-way."""
        return len(self.steps()) >= GATE

    def account(self) -> None:
        """Hold that it took each step once, the first half on one node and the rest on one."""
        steps, nodes = zip(*self.steps(), strict=True)
        assert steps == tuple(range(1, STEPS + 1))
        assert [len(set(half)) for half in (nodes[:GATE], nodes[GATE:])] == [1, 1]

    def result_in(self, store: Path) -> None:
        """Hold that its last checkpoint is what it comes to without any disturbance."""
        slope = 0.0
        for step in range(1, STEPS + 1):
            x = random.Random(step).uniform(-1, 1)
            slope += 0.1 * (3 * x - slope * x) * x
        (folder,) = (store / self.name).glob(f"*-{STEPS}")
        (file,) = (one for one in folder.iterdir() if one.name[0] in "0123456789abcdef")
        assert json.loads(file.read_text()) == [STEPS, slope]
