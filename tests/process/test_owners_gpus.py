"""A gang and its lender's replicas never share a GPU, however confused both are."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from runtime.core import GangFailed, NodeSpec, Report, StartWorkers
from runtime.executor import Machine
from runtime.executors.locks import Locked, take
from runtime.executors.options import ProcessOptions
from runtime.owners import ReplicaLender, ReplicaOptions, ReplicaSpec
from runtime.owners.processes import recorded
from services.config import load
from services.machines import RealMachine
from tests.driven import spec
from tests.lending import lines, outcome, swept
from tests.patience import wait_until
from tests.ports import alive
from tests.workers import Bench, bench, shell

CONFIG = """
[agent]
name = "{agent}"
runs = "processes"
[agent.workers]
isolation = "none"
folder = "{root}/own"
locks = "{root}/locks"
checkpoints = "file://{root}/store"
{gpu_ids}
[agent.meter]
source = "host"
[agent.load]
server = []
demand = {{ latency_target_s = 2 }}
[[agent.owner.replica]]
name = "llm"
node = "box"
argv = ["sh", "-c", "echo up >> {root}/ups; exec sleep 600"]
"""


@pytest.fixture
def jig(tmp_path: Path) -> Iterator[Bench]:
    with (
        swept(tmp_path / "agent" / "owner"),
        bench(tmp_path, locks=tmp_path / "locks", lock_wait_s=0.2) as made,
    ):
        yield made


def lender(jig: Bench, *names: str) -> ReplicaLender:
    """Give a lender whose replicas share the bench's one GPU."""
    script = f"echo {{replica}} $$ >> {jig.root}/ups; exec sleep 600"
    specs = [ReplicaSpec(name, "box", ("sh", "-c", script)) for name in names]
    folder, locks = jig.root / "agent" / "owner", {"box": [jig.root / "locks" / "gpu-0.lock"]}
    options = ReplicaOptions(restart_s=0.05, restart_max_s=0.2, tend_every_s=0.1)
    return ReplicaLender(specs, ["box"], folder, options, locks)


def test_a_replica_waits_for_the_gang_to_leave_and_says_for_whom(jig: Bench) -> None:
    jig.begins(shell("sleep 600"))
    owner = lender(jig, "llm")
    owner.begin("box", "hand_back", time.time())
    told = "gpu-0.lock is held by job j, epoch 1"
    wait_until(lambda: owner.poll(time.time()) or told in str(owner.problems()), "it says nothing")
    assert lines(jig.root / "ups") == []
    jig.ends(1, saves=False)
    assert outcome(owner).error == ""
    wait_until(lambda: lines(jig.root / "ups"), "it is not up")
    wait_until(lambda: owner.poll(time.time()) or not owner.problems(), "it still complains")


def test_replicas_share_a_gpu_and_a_gang_is_refused_it(jig: Bench) -> None:
    owner = lender(jig, "one", "two")
    owner.begin("box", "hand_back", time.time())
    assert outcome(owner).error == ""
    wait_until(lambda: len(lines(jig.root / "ups")) == 2, "not both are up")
    jig.start(shell("sleep 600"))
    assert "gpu-0.lock is held by the owner's" in jig.hears(GangFailed).error
    jig.look()
    owner.begin("box", "drain", time.time())
    assert outcome(owner).error == ""
    jig.begins(shell("sleep 600"), epoch=2)
    assert jig.pids()


def test_what_a_dead_replica_left_behind_keeps_the_gpu(jig: Bench) -> None:
    owner = lender(jig, "llm")
    owner.begin("box", "hand_back", time.time())
    assert outcome(owner).error == ""
    who = recorded(jig.root / "agent" / "owner" / "llm.json")
    assert who is not None
    del owner  # the agent is gone; its replica is not
    jig.start(shell("sleep 600"))
    jig.hears(GangFailed)
    assert alive(who.pid)


@pytest.mark.parametrize(
    ("gpu_type", "gpu_ids", "files"),
    [
        ("cpu", "", ["gpu-box-0.lock", "gpu-box-1.lock"]),
        ("L4", 'gpu_ids = ["GPU-a", "MIG-b"]', ["gpu-GPU-a.lock", "gpu-MIG-b.lock"]),
    ],
)
def test_a_machine_from_the_configuration_has_the_same_locks_for_both(
    jig: Bench, monkeypatch: pytest.MonkeyPatch, gpu_type: str, gpu_ids: str, files: list[str]
) -> None:
    # No operator sets it: who holds the lock lives as long as the test.
    patient = partial(ProcessOptions, lock_wait_s=0.2)
    monkeypatch.setattr("services.machines.ProcessOptions", patient)
    file = jig.root / "tidegate.toml"
    file.write_text(CONFIG.format(agent=jig.agent, root=jig.root, gpu_ids=gpu_ids))
    machine = _machine(file, gpu_type)
    owner = machine.owner
    assert owner is not None
    wait_until(lambda: [owner.advance(time.time()), lines(jig.root / "ups")][1], "it is not up")
    for name in files:
        with pytest.raises(Locked, match="the owner's llm"):
            take(jig.root / "locks" / name, {})
    order = StartWorkers("j", 1, {"box": (1,)}, spec(shell("sleep 600")), 0, 0.0)
    machine.executor.start(order, time.time())
    said: list[Report] = []

    def heard() -> object:
        said.extend(machine.executor.advance(time.time()))
        return said

    wait_until(heard, "the gang is not refused")
    (failed,) = said
    assert isinstance(failed, GangFailed)
    assert f"{files[1]} is held by the owner's llm" in failed.error


def _machine(file: Path, gpu_type: str) -> Machine:
    specs = (NodeSpec("box", "serve", "inference", 2, gpu_type, 1000),)
    return RealMachine(load(file), lambda _specs, _now_s: None).maker()(specs, time.time())
