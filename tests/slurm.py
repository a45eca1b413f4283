"""A real Slurm cluster for tests: two nodes with two GPUs each, one cluster for a file of tests."""

import os
import re
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from cloud_agent.options import SlurmOptions
from cloud_agent.slurm.executor import SlurmExecutor
from runtime.checkpoints.store import CheckpointStore
from tests.composed import compose, lacks
from tests.driven import ClusterBench, Watch
from tests.patience import wait_until
from tests.ports import lacking, send

NODES = ("n1", "n2")
_QUICK: dict[str, Any] = {
    "poll_s": 0.1,
    "quiet_start_s": 0.3,
    "grace_s": 30.0,
    "final_upload_timeout_s": 30.0,
}
_HOLDS = re.compile(r"JobState=(RUNNING|COMPLETING|SUSPENDED) ")
_DEVICES = re.compile(r"Nodes=(\S+) .*GRES=gpu(?::\w+)?:\d+\(IDX:([\d,-]+)\)")


class Cluster:
    """A cluster of our own, which a test may do anything to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"

    @classmethod
    def start(cls, folder: Path) -> Self:
        cluster = cls(folder)
        cluster.compose("up")
        return cluster

    def compose(self, *arguments: str) -> str:
        """Run `compose/slurm` for this cluster; give what it says."""
        return compose("slurm", *arguments, TIDEGATE_SLURM_DIR=str(self.folder))

    def ask(self, *command: str) -> str:
        """Give what a Slurm command answers, outside of any executor."""
        done = subprocess.run(
            command,
            env={**os.environ, "SLURM_CONF": str(self.conf)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def signal(self, daemon: str, number: signal.Signals) -> None:
        pid = int((self.folder / f"{daemon}.pid").read_text().split()[0])
        send(pid, number)

    def jobs(self, *states: str) -> list[int]:
        """Give the ids of jobs in these states; of all that are not over, without any."""
        wanted = [f"--states={','.join(states)}"] if states else []
        return [int(word) for word in self.ask("squeue", "-h", "-o", "%A", *wanted).split()]

    def devices(self) -> Counter[tuple[str, int]]:
        """Count by (node, GPU) how many jobs have that device now."""
        held: Counter[tuple[str, int]] = Counter()
        for job in self.ask("scontrol", "show", "job", "-d").split("\n\n"):
            if _HOLDS.search(job):
                for nodes, indices in _DEVICES.findall(job):
                    for node in _spread(nodes):
                        held.update((node, index) for index in _numbers(indices))
        return held

    def empty(self) -> None:
        """Cancel what is left, and wait until nothing is."""
        left = self.jobs()
        if left:
            self.ask("scancel", *map(str, left))
        wait_until(lambda: not self.jobs(), "Slurm's jobs do not end")


class _SlurmWatch(Watch):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        super().__init__()

    def look(self) -> set[str]:
        held = self._cluster.devices().items()
        return {f"{node} gives GPU {index} {n} times" for (node, index), n in held if n > 1}


def _spread(nodes: str) -> list[str]:
    """Give the names in a list of Slurm's, such as `n[1-2]`."""
    name, _, inside = nodes.partition("[")
    return [name + str(number) for number in _numbers(inside.rstrip("]"))] if inside else [name]


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def need_slurm() -> None:
    """Skip where Slurm is not installed, saying so; on CI that is a failure."""
    if found := lacking("munged", "slurmctld", "slurmd", "sbatch"):
        them = " and ".join(found)
        lacks("Slurm", f"{them} not found (sudo compose/slurm fetch installs them)")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster for one file of tests."""
    need_slurm()
    with tempfile.TemporaryDirectory(prefix="tidegate-slurm-") as folder:
        made = Cluster.start(Path(folder))
        try:
            yield made
        finally:
            made.compose("down", "--wipe")


class SlurmBench(ClusterBench):
    """An executor on a cluster, driven by the test, and watched from outside of it."""

    options: SlurmOptions
    daemon = "slurmctld"

    def __init__(self, cluster: Cluster, root: Path, **options: Any) -> None:
        self.cluster = cluster
        terms = SlurmOptions(
            root=root / "shared",
            store=CheckpointStore(f"file://{root}/store"),
            slurm_conf=cluster.conf,
            **{"agent": f"agent-{root.name}", **_QUICK, **options},
        )
        super().__init__(cluster, root, terms)

    def make(self) -> SlurmExecutor:
        return SlurmExecutor(self.options)

    def jobs(self) -> list[str]:
        return [str(number) for number in self.cluster.jobs()]

    def logs(self, epoch: int = 1, job: str = "j") -> str:
        return "".join(path.read_text() for path in sorted(self.run(epoch, job).glob("logs/rank*")))


@pytest.fixture
def bench(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmBench]:
    """Lend a bench; leave nothing in Slurm, and see that no device had two jobs."""
    made = SlurmBench(cluster, tmp_path)
    watch = _SlurmWatch(cluster)
    try:
        yield made
    finally:
        made.executor.close()
        watch.end()
        cluster.empty()
    assert watch.wrong == set()
    assert watch.looks > 0
