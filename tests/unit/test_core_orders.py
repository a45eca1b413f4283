"""Failures, refusals, orders that are lost, and plans that cannot be."""

import pytest

from scheduler.core.settings import Settings
from scheduler.policies.interface import Plan, Snapshot
from schemas.commands import Rebirth, StartGang, StopGang
from schemas.events import GangHeld, StopReason, WorkerStarted
from tests.builders import Cell, Planner, node_born, submitted, target, two_jobs


@pytest.fixture
def cell() -> Cell:
    return two_jobs(node_born("e0", pool="far"))


def test_one_failed_worker_ends_the_gang(cell: Cell) -> None:
    job = cell.run("j0", n0=2, n1=2)
    cell.plan({"j0": target(n0=4, n1=4)})  # a change of size is under way
    cell.acks()
    cell.fail_worker("j0", "n0")
    assert job.state == "stopping"
    assert job.target is None
    (stop,) = cell.sent(StopGang)
    assert (stop.epoch, stop.checkpoint) == (job.epoch, False)
    cell.stop_workers("j0", "superseded")
    assert (job.state, job.failures) == ("queued", 1)
    assert job.backoff_until_s == cell.now_s + 60.0


def test_a_failure_with_a_claim_leaves_no_claim(cell: Cell) -> None:
    job = cell.run("j0", n0=2, n1=1)
    cell.run("j1", n1=3)
    cell.plan({"j0": target(n0=2, n1=3), "j1": target(n1=1)})
    assert job.target is not None
    cell.fail_worker("j0", "n0")
    assert job.target is None
    assert not any(cell.state.nodes["n1"].claim)


def test_a_job_that_fails_too_often_is_given_up() -> None:
    cell = Cell(settings=Settings(failures_max=3)).told(node_born("n0"), submitted())
    waits = []
    for _ in range(3):
        cell.run("j0", n0=1)
        cell.fail_worker()
        waits.append((cell.job().backoff_until_s or 0.0) - cell.now_s)
    assert cell.job().state == "failed"
    assert waits[:2] == [60.0, 120.0]


def test_a_job_that_gets_further_between_its_failures_is_not_given_up() -> None:
    cell = Cell(settings=Settings(failures_max=3)).told(node_born("n0"), submitted())
    waits = []
    for step in (0, 10, 20, 20, 30):
        cell.run("j0", n0=1)
        cell.progress("j0", step, saved=step)
        cell.fail_worker()
        waits.append((cell.job().backoff_until_s or 0.0) - cell.now_s)
    assert (cell.job().state, cell.job().step, cell.job().failures) == ("queued", 30, 1)
    assert waits == [60.0, 60.0, 60.0, 120.0, 60.0]  # twice at 20: longer


def test_a_refused_start_frees_its_gpus_and_asks_why(cell: Cell) -> None:
    cell.plan({"j0": target(n0=2, n1=1)})
    cell.acks("refused", kind="StartGang")
    assert (cell.job().state, cell.job().failures, cell.state.gpus_held) == ("queued", 1, 0)
    assert cell.sent(Rebirth)


def test_a_refused_stop_frees_nothing(cell: Cell) -> None:
    """An agent whose clock is ahead refuses the stop as expired; the gang runs on."""
    cell.run("j0", n0=2)
    cell.plan({"j0": None})
    cell.acks("refused", kind="StopGang")
    assert cell.state.nodes["n0"].holder[:2] == ["j0", "j0"]
    cell.wait(300.0)
    assert any(command.kind == "Rebirth" for command in cell.state.commands.values())
    epoch = cell.job().epoch
    cell.feed(node_born("n0", held=[GangHeld(job="j0", epoch=epoch, gpus=[0, 1], step=0)]))
    assert cell.sent(StopGang), "it is told again"


@pytest.mark.parametrize(("checkpoint_mib", "limit_s"), [(0, 180.0), (1_000_000, 1180.0)])
def test_whoever_says_again_what_it_holds_may_save_it_until_that_must_be_over(
    checkpoint_mib: int, limit_s: float
) -> None:
    """An agent was restarted while a gang saved: a harder stop would throw its work away."""
    job = submitted("j0").model_copy(update={"checkpoint_mib": checkpoint_mib})
    cell = Cell().told(node_born("n0"), job)
    held = [GangHeld(job="j0", epoch=cell.run("j0", n0=2).epoch, gpus=[0, 1], step=9)]
    cell.plan({"j0": None})
    for wait_s, saves in ((0.0, True), (limit_s - 60.0, True), (60.0, False)):
        cell.wait(wait_s)
        cell.acks()
        cell.feed(node_born("n0", held=held))
        (stop,) = cell.sent(StopGang)
        assert stop.checkpoint == saves


def test_a_gang_that_is_not_to_save_is_told_so_again(cell: Cell) -> None:
    job = cell.run("j0", n0=2, n1=2)
    cell.fail_worker("j0", "n0")
    cell.acks()
    cell.feed(node_born("n1", held=[GangHeld(job="j0", epoch=job.epoch, gpus=[0, 1], step=9)]))
    (stop,) = cell.sent(StopGang)
    assert (job.state, stop.checkpoint) == ("stopping", False)


def test_submitted_twice(cell: Cell) -> None:
    assert cell.feed(submitted("j0")).facts == ()
    cell.feed(submitted("j0", total_steps=5))
    assert cell.state.totals.submissions_refused == 1
    assert cell.job().total_steps == 1000
    assert cell.state.totals.jobs_submitted == 2


def test_forgotten_jobs_may_come_back_with_higher_epochs(cell: Cell) -> None:
    job = cell.run("j0", n0=1)
    last = job.epoch
    cell.stop_workers("j0", "completed", step=1000)
    cell.wait(2 * 86_400.0 + 60.0, step_s=86_400.0)
    assert "j0" not in cell.state.jobs
    cell.feed(submitted("j0"))
    assert cell.run("j0", n0=1).epoch > last, "agents remember the epochs of the name"


def test_a_job_with_the_name_of_a_forgotten_one_is_told_which_epochs_are_its_own() -> None:
    cell = Cell(now_s=1_700_000_000.0).told(node_born("n0"), submitted("j0"))
    last = cell.run("j0", n0=1).epoch
    cell.stop_workers("j0", "completed", step=1000)
    cell.wait(2 * 86_400.0 + 60.0, step_s=86_400.0)
    cell.feed(submitted("j0"))
    first = []
    for _ in range(2):
        cell.wait(600.0)
        cell.plan({"j0": target(n0=1)})
        (start,) = cell.sent(StartGang)
        assert last < start.spec.first_epoch <= start.epoch
        first.append(start.spec.first_epoch)
        cell.acks()
        cell.start_workers("j0")
        cell.fail_worker("j0", "n0")
        cell.stop_workers("j0", "superseded")
    assert first[0] == first[1]


def test_a_start_that_takes_too_long(cell: Cell) -> None:
    cell.plan({"j0": target(n0=2)})
    cell.acks()
    cell.wait(600.0)
    assert cell.job().state == "starting"
    cell.wait(60.0)
    assert (cell.job().state, cell.job().stop_reason) == ("stopping", "start_timeout")
    cell.stop_workers("j0", "superseded")
    assert (cell.job().state, cell.job().failures) == ("queued", 1)


def test_a_start_that_was_never_heard(cell: Cell) -> None:
    """The order expires; the stop finds nothing; the agent says what it holds: nothing."""
    cell.plan({"j0": target(n0=2)})
    (start,) = cell.last.commands
    cell.wait(60.0)
    assert [command.id for command in cell.last.commands] == [start.id]
    cell.wait(300.0)
    assert cell.job().state == "stopping"
    cell.acks()
    cell.wait(300.0)
    assert any(command.kind == "Rebirth" for command in cell.state.commands.values())
    assert start.id not in cell.state.commands
    cell.acks()
    cell.feed(node_born("n0"))
    assert (cell.job().state, cell.state.gpus_held) == ("queued", 0)


def test_commands_are_repeated_under_their_id(cell: Cell) -> None:
    cell.plan({"j0": target(n0=2)})
    (start,) = cell.last.commands
    sent = []
    for _ in range(5):
        cell.wait(60.0)
        sent.append([(command.id, command.data) for command in cell.last.commands])
    assert sent == [[(start.id, start.data)], [], [(start.id, start.data)], [], []]


def test_plans_that_cannot_be_are_refused_without_harm(cell: Cell) -> None:
    cell.feed(submitted("j2", gpus_min=2, gpus_max=4))
    cell.run("j0", n0=2)
    before = cell.job("j0").epoch
    impossible = {"j1": target(n0=4, n1=1), "j2": target(n1=1)}
    cell.plan(impossible, lend=["n0"], reclaim={"n1": 0.0})
    assert [cell.job(name).state for name in ("j0", "j1", "j2")] == ["running", "queued", "queued"]
    assert not cell.sent()
    cell.plan({"j2": target(n1=4, n0=2)})
    assert (cell.job("j2").state, cell.job("j2").target) == ("queued", None)
    assert cell.state.totals.policy_failures == 0, "none of this is malformed"
    cell.plan({"j0": target(n0=2)})
    assert cell.job("j0").epoch == before, "what is so already is no change"


def test_reports_for_gpus_that_are_not_there(cell: Cell) -> None:
    cell.run("j0", n0=2)
    epoch = cell.job().epoch
    for job, node, gpu in (("j0", "n0", 9), ("j0", "zz", 0), ("j1", "n0", 0)):
        cell.leave(job, node, [gpu], epoch, "preempted")
    cell.feed(WorkerStarted(job="j0", epoch=epoch, node="zz", gpus=[0], step=0))
    assert (cell.job().state, cell.job().size) == ("running", 2)


@pytest.mark.parametrize("reason", ["scaled_in", "preempted", "lease_ended"])
def test_gpus_that_a_running_gang_leaves_unasked(cell: Cell, reason: StopReason) -> None:
    job = cell.run("j0", n0=2)
    cell.leave("j0", "n0", [0, 1], job.epoch, reason)
    assert (job.state, cell.state.gpus_held) == ("queued", 0)


def broken(_: Snapshot) -> Plan:
    raise ZeroDivisionError("a policy of somebody's")


@pytest.mark.parametrize("planner", [broken, lambda _: None])
def test_a_policy_that_gives_no_plan_changes_nothing_and_is_counted(
    cell: Cell, planner: Planner
) -> None:
    cell.run("j0", n0=1)
    cell.policy.planner = planner
    held = list(cell.state.nodes["n0"].holder)
    cell.wait(120.0)
    assert cell.state.nodes["n0"].holder == held
    assert cell.state.totals.policy_failures >= 1


def test_a_running_gang_that_nobody_speaks_of_is_asked_about(cell: Cell) -> None:
    """Its worker's last word was lost: the agent's birth shows that nothing is there."""
    cell.run("j0", n0=2)
    for _ in range(40):
        cell.wait(60.0)
        if cell.sent(Rebirth):
            break
    else:
        raise AssertionError("nobody was asked")
    cell.reborn(node_born("n0"))
    assert cell.job().state == "queued"
    assert cell.state.gpus_held == 0


def test_a_stray_that_does_not_go_is_asked_about(cell: Cell) -> None:
    ghost = GangHeld(job="ghost", epoch=7, gpus=[3], step=0)
    cell.feed(node_born("n0", held=[ghost]))
    assert cell.state.stray_nodes == ["n0"]
    cell.acks("done", kind="StopGang")
    cell.wait(60.0)
    assert cell.sent(Rebirth), "it was told to go, and never said that it went"
    cell.acks("done", kind="Rebirth")
    cell.reborn(node_born("n0"))
    assert (cell.state.stray_nodes, cell.state.nodes["n0"].holder[3]) == ([], None)


def test_births_in_any_order_leave_the_nodes_of_pools_sorted(cell: Cell) -> None:
    cell.told(*map(node_born, ("n9", "n5", "n7", "n6", "z0", "a0", "n7")))
    assert cell.state.pools["train"].nodes == sorted(cell.state.pools["train"].nodes)
