"""A folder of runs that is not there proves nothing: what runs on the cluster is left alone."""

import errno
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from cloud_agent.clusters.attempt import Attempt, Work
from cloud_agent.clusters.executor import ClusterExecutor
from cloud_agent.clusters.folder import MARK, SharedFolder
from cloud_agent.clusters.gang_record import write
from cloud_agent.options import ClusterOptions
from runtime.checkpoints.store import CheckpointStore
from runtime.core import GangFailed, Report, StartWorkers, StopWorkers
from runtime.executors.gang_record import GangRecord, StartedRun
from tests.driven import spec
from tests.patience import wait_until
from tests.workers import shell


class Still(Attempt):
    """A run that nothing happens to."""

    def save(self) -> None:
        """Nobody asks for it."""

    def advance(self, now_s: float, leave_by_s: float | None) -> None:
        """It runs on."""


class Shut(Still):
    """A run whose job has closed its folder, on a cluster where it is the agent's user."""

    def advance(self, now_s: float, leave_by_s: float | None) -> None:
        raise PermissionError(13, "Permission denied", str(self.folder))


class Looked:
    """A cluster that notes whom it is told to keep: all others are ended."""

    away: str | None = None

    def __init__(self) -> None:
        self.kept: list[set[tuple[str, int]]] = []

    def begin(self, wake: Callable[[], None]) -> None:
        """Nothing has to be got ready."""

    def keep_lease(self, until_s: float | None, grace_s: float) -> None:
        """Nothing runs here that could end."""

    def look(self, folder_id: str) -> None:
        """Nothing is to be seen."""

    def attempt(self, work: Work) -> Attempt:
        kind = Shut if work.job.startswith("shut") else Still
        return kind(work, [])

    def delete_orphans(self, held: Collection[tuple[str, int]]) -> None:
        self.kept.append(set(held))

    def close(self) -> None:
        """Nothing blocks."""


class Agent:
    """Executors on one folder, one after the other."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root / "shared", list[ClusterExecutor]()
        self.store = CheckpointStore(f"file://{root}/store")
        self.said: list[Report] = []

    def begin(self, **remembered: int) -> tuple[ClusterExecutor, Looked]:
        """Start one that remembers these jobs and epochs."""
        options = ClusterOptions(root=self.root, store=self.store, agent="a", poll_s=0.02)
        cluster = Looked()
        executor = ClusterExecutor(options, cluster, remembered)
        self.made.append(executor)
        return executor, cluster

    def until(self, executor: ClusterExecutor, condition: Callable[[], object]) -> None:
        """Ask for reports until something holds."""

        def asked() -> object:
            self.said += executor.advance(time.time())
            return condition()

        wait_until(asked)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    for executor in made.made:
        executor.close()


def holds(agent: Agent) -> None:
    """Let an earlier agent have held a gang in the folder."""
    executor, _ = agent.begin()
    executor.close()
    started = StartedRun(3, {"n1": (0,)}, 0, None)
    held = GangRecord("j", 3, {"n1": (0,)}, spec(shell("true")), 0, started)
    write(held, agent.root / "held")


def test_the_first_use_marks_the_folder_and_a_later_agent_goes_on(agent: Agent) -> None:
    holds(agent)
    assert (agent.root / MARK).exists()
    executor, cluster = agent.begin(j=3)
    assert executor.running() == ("j",)
    agent.until(executor, lambda: cluster.kept)
    assert cluster.kept[0] == {("j", 3)}
    assert executor.away is None


def test_a_folder_that_is_not_mounted_ends_nothing_and_is_taken_up_when_it_is_back(
    agent: Agent,
) -> None:
    holds(agent)
    away = agent.root.rename(agent.root.with_name("away"))
    agent.root.mkdir()
    executor, cluster = agent.begin(j=3)
    assert executor.running() == ("j",), "as far as anybody knows"
    looks = iter(range(20))
    agent.until(executor, lambda: next(looks, None) is None)
    assert executor.away is not None
    assert f"{agent.root} has no file {MARK}" in executor.away
    assert (cluster.kept, agent.said, list(agent.root.iterdir())) == ([], [], [])
    agent.root.rmdir()
    away.rename(agent.root)
    agent.until(executor, lambda: cluster.kept)
    assert cluster.kept[0] == {("j", 3)}
    assert executor.away is None


def test_a_folder_of_before_there_were_marks_is_known_by_what_is_held(agent: Agent) -> None:
    holds(agent)
    (agent.root / MARK).unlink()
    executor, cluster = agent.begin(j=3)
    agent.until(executor, lambda: cluster.kept)
    assert cluster.kept[0] == {("j", 3)}
    assert (agent.root / MARK).exists()


def test_a_mark_made_before_the_folder_was_first_mounted_proves_nothing(agent: Agent) -> None:
    bare, _ = agent.begin()
    bare.close()
    executor, cluster = agent.begin(j=3)
    looks = iter(range(20))
    agent.until(executor, lambda: next(looks, None) is None)
    assert executor.away is not None
    assert f"{agent.root} has no folder held" in executor.away
    assert (cluster.kept, agent.said, executor.running()) == ([], [], ("j",))


def test_a_folder_that_goes_away_while_gangs_run_is_waited_for(agent: Agent) -> None:
    executor, cluster = agent.begin()
    agent.until(executor, lambda: cluster.kept)
    away = agent.root.rename(agent.root.with_name("away"))
    order = StartWorkers("j", 1, {"n1": (0,)}, spec(shell("true")), 0, 0.0)
    executor.start(order, time.time())
    agent.until(executor, lambda: executor.away)
    looks = iter(range(20))
    agent.until(executor, lambda: next(looks, None) is None)
    assert not agent.root.exists(), "nothing was written where nothing is mounted"
    away.rename(agent.root)
    agent.until(executor, lambda: (agent.root / "held" / "j.json").exists())
    assert agent.said == []


def test_a_job_that_closes_its_own_folder_holds_up_no_other(agent: Agent) -> None:
    executor, cluster = agent.begin()
    for job in ("shut", "trains"):
        order = StartWorkers(job, 1, {"n1": (0,)}, spec(shell("true")), 0, 0.0)
        executor.start(order, time.time())
    both = {("shut", 1), ("trains", 1)}
    agent.until(executor, lambda: both in cluster.kept)
    executor.stop(StopWorkers("trains", 2, False, 0.0), time.time())
    agent.until(executor, lambda: cluster.kept.count(both) > 5)
    assert executor.away is None


def test_what_is_remembered_and_not_in_the_folder_when_it_is_back_has_failed(agent: Agent) -> None:
    executor, _ = agent.begin(j=3)
    agent.until(executor, lambda: executor.away)
    agent.root.mkdir()
    (agent.root / MARK).touch()  # as the complaint says, of a folder that is the right one
    agent.until(executor, lambda: "has no folder held" in (executor.away or ""))
    (agent.root / "held").mkdir()
    agent.until(executor, lambda: agent.said)
    (failed,) = agent.said
    assert isinstance(failed, GangFailed)
    assert (failed.job, failed.epoch, failed.retriable) == ("j", 3, True)


def test_a_folder_keeps_its_id_and_one_of_an_earlier_release_gets_one(agent: Agent) -> None:
    agent.root.mkdir()
    (agent.root / MARK).write_text("Tidegate knows by this file that its folder is here.\n")
    ids = []
    for _ in range(2):
        folder = SharedFolder(agent.root, {})
        assert folder.look()
        ids.append(folder.id)
    assert ids[0] == ids[1] != ""
    other = SharedFolder(agent.root.with_name("other"), {})
    assert other.look()
    assert other.id not in ("", ids[0])


def test_of_two_agents_in_one_folder_the_one_that_started_last_uses_it(agent: Agent) -> None:
    """Else each takes what the other runs for its own orphans."""
    first, at_first = agent.begin()
    agent.until(first, lambda: at_first.kept)
    second, cluster = agent.begin()
    agent.until(second, lambda: cluster.kept)
    first.start(StartWorkers("j", 1, {"n1": (0,)}, spec(shell("true")), 0, 0.0), time.time())
    agent.until(first, lambda: first.away)
    assert "an agent that began after this one" in str(first.away)
    count = len(at_first.kept)
    looks = iter(range(20))
    agent.until(first, lambda: next(looks, None) is None)
    assert (len(at_first.kept), second.away) == (count, None)


def test_an_agent_that_started_before_its_folder_was_mounted_uses_it(agent: Agent) -> None:
    """As at a boot; an agent before it has used the folder."""
    holds(agent)
    away = agent.root.rename(agent.root.with_name("away"))
    executor, cluster = agent.begin()
    agent.until(executor, lambda: cluster.kept)
    agent.root.rename(agent.root.with_name("bare"))
    away.rename(agent.root)
    order = StartWorkers("k", 1, {"n1": (0,)}, spec(shell("true")), 0, 0.0)
    executor.start(order, time.time())
    agent.until(executor, lambda: executor.away or {("k", 1)} in cluster.kept)
    assert executor.away is None


def test_an_agent_that_is_made_and_never_begins_takes_no_folder_over(agent: Agent) -> None:
    """As one beside another of its name that finds its own state of another cell, and ends."""
    first, cluster = agent.begin()
    agent.until(first, lambda: cluster.kept)
    second, _ = agent.begin()
    second.close()
    count = len(cluster.kept)
    order = StartWorkers("j", 1, {"n1": (0,)}, spec(shell("true")), 0, 0.0)
    first.start(order, time.time())
    agent.until(first, lambda: first.away or len(cluster.kept) > count + 2)
    assert first.away is None


def test_an_agent_of_a_new_release_begins_on_a_full_disk(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot write an id into the mark of an earlier release; the gangs there are its own."""
    holds(agent)
    (agent.root / MARK).write_text("Tidegate knows by this file that its folder is here.\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("cloud_agent.clusters.folder.write_file", full)
        executor, cluster = agent.begin(j=3)
        agent.until(executor, lambda: cluster.kept)
        assert (cluster.kept[0], executor.away) == ({("j", 3)}, None)
    agent.until(executor, lambda: executor._folder.id)
    assert executor._folder.id in (agent.root / MARK).read_text()
