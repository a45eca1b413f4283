"""Gangs on a real Slurm cluster: begun, finished, sent away, resized, broken by others."""

import re
from pathlib import Path

import pytest

from runtime.core import (
    CheckpointDone,
    GangCompleted,
    GangFailed,
    GangStarted,
    GangStopped,
    WorkersLeft,
)
from tests.slurm import SlurmBench
from tests.workers import TRAINER, python, shell

pytestmark = pytest.mark.slow

EVEN = {"n1": (0, 1), "n2": (0, 1)}


def test_gang_runs_with_torchruns_environment_and_completes(bench: SlurmBench) -> None:
    shown = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE '
    shown += '$TIDEGATE_NODE $CUDA_VISIBLE_DEVICES $MASTER_ADDR"; printenv'
    # Names of Tidegate's are not a job's to set; names of the keeper's own change nothing.
    own = {"MINE": "a 'b'", "TIDEGATE_JOB": "x", "RANK": "9", "run": "/nowhere", "IFS": "1"}
    bench.start(shell(shown, env=own), EVEN, total_steps=7)
    assert bench.hears(GangCompleted) == GangCompleted("j", 1, 7)
    assert [type(one) for one in bench.said] == [GangStarted, GangCompleted]
    said = bench.logs()
    lines = sorted(re.findall(r"^\d \d 4 2 \d 2 n\d 0,1 127.0.0.1$", said, re.MULTILINE))
    assert [line.split()[:2] for line in lines] == [["0", "0"], ["1", "1"], ["2", "0"], ["3", "1"]]
    assert [line.split()[6] for line in lines] == ["n1", "n1", "n2", "n2"]
    assert said.count("MINE=a 'b'\n") == said.count("TIDEGATE_JOB=j\n") == 4
    assert said.count("\nrun=/nowhere\n") == 4
    assert "/nowhere/" not in said


def test_uneven_gang_gets_as_many_gpus_of_each_node_as_were_chosen(bench: SlurmBench) -> None:
    code = 'echo "$RANK $TIDEGATE_NODE $LOCAL_WORLD_SIZE"; sleep 3600'
    bench.start(shell(code), {"n1": (1,), "n2": (0, 1)})
    bench.hears(GangStarted)
    bench.until(lambda: len(bench.logs().splitlines()) == 3)
    assert sorted(bench.logs().splitlines()) == ["0 n2 2", "1 n2 2", "2 n1 1"]
    assert sorted(node for node, _ in bench.cluster.devices()) == ["n1", "n2", "n2"]
    bench.stop(saves=False)
    bench.hears(GangStopped)
    assert bench.cluster.jobs() == []


def test_sent_away_without_saving_it_is_gone_at_once(bench: SlurmBench) -> None:
    bench.start(python("import signal, time\nsignal.signal(15, print)\ntime.sleep(3600)"), EVEN)
    bench.hears(GangStarted)
    bench.stop(saves=False, grace_s=3600.0)
    assert bench.hears(GangStopped).step == 0


def test_command_that_does_not_exist_is_not_tried_again(bench: SlurmBench) -> None:
    bench.start(shell("exit 127"), {"n1": (0,)})
    bench.fails("bash: cannot be run there", retriable=False)


def test_what_slurm_refuses_fails_with_its_words(bench: SlurmBench) -> None:
    bench.start(shell("true"), {"n7": (0,)})
    bench.fails("Invalid node name")
    assert bench.cluster.jobs() == []


def test_what_waits_too_long_fails_with_slurms_reason(bench: SlurmBench, tmp_path: Path) -> None:
    bench.cluster.ask("sbatch", "--gres=gpu:2", "-wn1", "-o/dev/null", "--wrap=sleep 3600")
    other = SlurmBench(bench.cluster, tmp_path / "other", pending_timeout_s=5.0)
    try:
        other.start(shell("true"), {"n1": (0,)})
        assert re.search("it says (Resources|Priority);", other.hears(GangFailed).error)
        assert not other.run().joinpath("exit").exists()
    finally:
        other.executor.close()


@pytest.mark.parametrize("end_stuck", [False, True])
def test_gang_that_stands_still_is_noticed(
    bench: SlurmBench, tmp_path: Path, end_stuck: bool
) -> None:
    root = tmp_path / f"stuck-{end_stuck}"  # names the agent
    other = SlurmBench(bench.cluster, root, stuck_after_s=0.5, end_stuck=end_stuck)
    # It leaves in good order when it is asked to, which does not make it complete.
    # Short sleeps: one that lasts would outlive the gang, and the test.
    wait = "while :; do sleep 0.2; done"
    say = """trap 'exit 0' TERM; echo '{"step": 4}' >> $TIDEGATE_PROGRESS; """ + wait
    try:
        other.start(shell(say), {"n1": (0, 1)})
        if end_stuck:
            assert other.hears(GangFailed).error == "stuck: alive, but no step after 4"
            assert other.executor.stuck(0.0) == ()
            return
        other.until(lambda: other.executor.stuck(0.0))
        ((job, since_s),) = other.executor.stuck(0.0)
        assert (job, other.all(GangFailed)) == ("j", [])
        other.stop()
        other.hears(GangStopped)
        assert other.executor.stuck(since_s + 1e6) == ()
    finally:
        other.executor.close()


def test_sent_away_while_it_waits_it_never_begins(bench: SlurmBench) -> None:
    other = bench.cluster.ask(
        "sbatch", "--parsable", "--gres=gpu:2", "-wn1", "-o/dev/null", "--wrap=sleep 3600"
    )
    bench.start(python(TRAINER), EVEN)
    bench.until(lambda: len(bench.cluster.jobs()) == 2)
    bench.scale({"n1": (0,)}, epoch=2)
    assert bench.hears(WorkersLeft).epoch == 1
    bench.until(lambda: (bench.run(2) / "batch.sh").exists())
    bench.stop(epoch=2)
    assert bench.hears(GangStopped) == GangStopped("j", 2, 0)
    assert bench.cluster.jobs() == [int(other)]
    assert bench.logs(1) == bench.logs(2) == ""


def test_asked_to_leave_by_slurm_it_saves_and_fails_retriably(bench: SlurmBench) -> None:
    bench.start(python(TRAINER), EVEN)
    bench.until(lambda: bench.step() >= 5)
    (job,) = bench.cluster.jobs()
    bench.cluster.ask("scancel", "--signal=TERM", str(job))
    bench.fails("Slurm asked the workers to leave")
    assert bench.hears(CheckpointDone).step >= 5


def test_two_agents_of_one_name_leave_each_others_gangs_alone(
    bench: SlurmBench, tmp_path: Path
) -> None:
    """As of two cells, by one user; each has a folder of its own, which may be behind a link."""
    other_root = tmp_path / "other"
    (other_root / "elsewhere").mkdir(parents=True)
    (other_root / "shared").symlink_to(other_root / "elsewhere")
    other = SlurmBench(bench.cluster, other_root, agent=bench.options.agent)
    try:
        bench.start(shell("sleep 3600"), {"n1": (0,)})
        other.start(shell("sleep 3600"), {"n2": (0,)})
        bench.hears(GangStarted)
        other.hears(GangStarted)
        other.stop(saves=False)
        other.hears(GangStopped)
        assert len(bench.cluster.jobs()) == 1
        assert [type(one) for one in bench.said] == [GangStarted]
    finally:
        other.executor.close()
