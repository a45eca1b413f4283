"""The job in the manual does what the manual says."""

import json
import re
import sys
from pathlib import Path

import numpy as np

from runtime.core import GangCompleted
from schemas.programs import Program
from tests.workers import bench

JOBS = Path(__file__).parents[2] / "docs" / "jobs.md"


def test_the_job_of_the_manual_loses_no_step_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", JOBS.read_text(), re.DOTALL)
    assert found is not None
    slow = found[1].replace("    say(step=step)\n", "    say(step=step); time.sleep(0.01)\n")
    script = tmp_path / "job.py"
    script.write_text("import time\n" + slow)
    program = Program(argv=[sys.executable, str(script)], env={"OPENBLAS_NUM_THREADS": "1"})
    with bench(tmp_path, run_retention=5) as jig:
        jig.start(program, total_steps=200, job="calm")
        jig.start(program, 1, 2, total_steps=200, job="moved")
        jig.until(lambda: jig.step("moved") >= 5)
        stopped = jig.ends(1, job="moved")
        assert 5 <= stopped.step < 200
        jig.start(program, 1, 2, total_steps=200, job="moved", epoch=2, step=stopped.step)
        jig.hears(GangCompleted, 2)
        lines = (jig.run(2, "moved") / "progress.jsonl").read_text().splitlines()
        weights = []
        for job in ("calm", "moved"):
            checkpoint = jig.store.find(job, 200)
            assert checkpoint is not None
            with np.load(jig.store.fetch(checkpoint, tmp_path / job)) as saved:
                weights.append(saved["weights"])
    assert np.array_equal(*weights)
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps), "one worker speaks"
    assert steps[0] == stopped.step + 1, "and goes on from what was saved"


def test_every_variable_of_the_manual_is_set(tmp_path: Path) -> None:
    rows = re.findall(r"^\| (`[A-Z_`, ]+`) \|", JOBS.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"[A-Z_]{3,}", row)} - {"SIGTERM"}
    program = Program(argv=["bash", "-c", "env > $TIDEGATE_CHECKPOINT_DIR/env; exit 0"])
    with bench(tmp_path, run_retention=5) as jig:
        jig.start(program)
        jig.until(lambda: (jig.run() / "checkpoints" / "env").exists() or jig.all(GangCompleted))
        jig.until(lambda: (jig.run() / "exit.json").exists())
        text = (jig.run() / "checkpoints" / "env").read_text()
    said = {line.split("=", 1)[0] for line in text.splitlines()}
    assert named - said == {"TIDEGATE_RESUME"}
