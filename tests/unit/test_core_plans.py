"""Plans are checked before they are believed, and what one turn decides is bounded."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from scheduler.core import reconcile
from scheduler.core.engine import Engine
from scheduler.core.facts import CommandIssued, PolicyFailed
from scheduler.core.record import decision_bytes, decision_to_dict
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import LeaderStarted, Stimulus, TimePassed
from scheduler.core.transitions import InvalidTransition
from scheduler.policies.checked import MalformedPlan, Names, check_reasons, checked
from scheduler.policies.interface import Figure, Need, Plan, Reason, Target
from schemas.commands import StartGang
from schemas.events import JobSubmitted
from schemas.programs import Program
from tests.builders import START_S, Cell, Scripted, node_born, submitted, target
from tests.snapshots import Job, Pool, snapshot

SEEN = Names(snapshot([Pool("far", nodes=1), Pool("train", nodes=2, gpus=4)], [Job("j"), Job("k")]))
ONE = ("train-000", 1)


def said(*figures: Any, **fields: Any) -> Plan:
    return Plan(reasons=(replace(Reason("j", "waits", "x.y", figures), **fields),))


def given(*placement: Any, pool: Any = "train") -> Plan:
    return Plan(targets={"j": Target(pool, tuple(placement))})


MALFORMED: dict[str, Any] = {
    "plan() gave a dict": {},
    "targets: is a list, not a Mapping": Plan(targets=["j"]),  # type: ignore[arg-type]
    "targets: there is no 'x'": Plan(targets={"x": None}),
    "targets: there is no 3": Plan(targets={3: None}),  # type: ignore[dict-item]
    "targets['j']: 'n0' is no Target": Plan(targets={"j": "n0"}),  # type: ignore[dict-item]
    "targets['j']: 7 is no (node, GPUs)": given(7),
    "targets['j']: 1.5 of train-000 is no number": given(("train-000", 1.5)),
    "targets['j']: True of train-000 is no number": given(("train-000", True)),
    "targets['j']: 0 GPUs of": given(("train-000", 0)),
    "targets['j']: 1 GPUs of 'train-009'": given(("train-009", 1)),
    "targets['j']: 2 GPUs of 'train-000' in": given(ONE, ("train-000", 2)),
    "in 'far'": given(ONE, pool="far"),
    "in None": given(ONE, pool=None),
    "targets['j']: names no node": given(),
    "targets: 5 GPUs of train-000, which has 4": Plan(
        {"j": Target("train", (("train-000", 3),)), "k": Target("train", (("train-000", 2),))}
    ),
    "lend: is a str, not a tuple": Plan(lend="far-000"),  # type: ignore[arg-type]
    "lend: there is no 'far-001'": Plan(lend=("far-001",)),
    "reclaim: there is no 'x'": Plan(reclaim={"x": 1.0}),
    "reclaim['far-000']: 'soon' 'soon' is no number": Plan(
        reclaim={"far-000": "soon"}  # type: ignore[dict-item]
    ),
    "reclaim['far-000']: inf is not finite": Plan(reclaim={"far-000": np.inf}),
    "decline: there is no 'x'": Plan(decline=("x",)),
    "reasons: is a list": Plan(reasons=[]),  # type: ignore[arg-type]
    "reasons: 'because' is no Reason": Plan(reasons=("because",)),  # type: ignore[arg-type]
    "reasons: of 'j': None is no number": said(Figure("gpus", None)),  # type: ignore[arg-type]
    "reasons: of 'j': is NaN": said(Figure("gpus", 1.0, np.nan)),
    "reasons: of 'j': is NaN, or too large": said(Figure("gpus", 2**64)),
    "reasons: of 'j': 3 is no Figure": said(3),
    "reasons: of 'j': True is no number": said(needs=(Need("gpus", 1.0, True),)),
    "reasons: of 'j': sequence item 3": said(lost_to=({"a"},)),
    "reasons: of 'j': {'k'} is no tuple": said(lost_to={"k"}),
    "reasons: of 'j': dict_keys(['k']) is no tuple": said(lost_to={"k": 1}.keys()),
    "reasons: of 'j': 'utf-8' codec": said(rule="\ud800"),
    "notes: there is no 'x'": Plan(notes={"x": (1.0,)}),
    "notes['j']: (1, 2, 3, 4, 5) is no tuple of": Plan(notes={"j": (1, 2, 3, 4, 5)}),
    "notes['j']: nan is NaN": Plan(notes={"j": (np.nan,)}),
}


def test_names_of_an_earlier_snapshot_are_kept_only_while_its_nodes_are_the_same() -> None:
    pools = [Pool("far", nodes=1), Pool("train", nodes=2, gpus=4)]
    same = Names(snapshot(pools, [Job("later")]), before=SEEN)
    assert same.gpus is SEEN.gpus
    assert same.site is SEEN.site
    assert same.jobs == {"later"}
    for others in (
        [Pool("far", nodes=2), Pool("train", nodes=2, gpus=4)],
        [Pool("far", nodes=1), Pool("train", nodes=2, gpus=3)],
        [Pool("near", nodes=3)],
    ):
        seen = snapshot(others, [])
        found, anew = Names(seen, before=SEEN), Names(seen)
        assert (found.gpus, found.site) == (anew.gpus, anew.site) != (SEEN.gpus, SEEN.site)


@pytest.mark.parametrize("wrong", MALFORMED)
def test_a_malformed_plan_is_told_from_a_good_one(wrong: str) -> None:
    with pytest.raises(MalformedPlan) as caught:
        check_reasons(checked(MALFORMED[wrong], SEEN).reasons)
    assert wrong in str(caught.value)


def test_numbers_of_numpy_become_plain_ones() -> None:
    plan = Plan(
        targets={"j": Target("train", (("train-000", np.int64(2)),)), "k": None},  # type: ignore[arg-type]
        reclaim={"far-000": np.float64(9.0)},
        reasons=said(Figure("x", np.float32(0.5), np.int32(2))).reasons,  # type: ignore[arg-type]
        notes={"j": (np.float64(1.0), 2)},
    )
    made = checked(plan, SEEN)
    check_reasons(made.reasons)
    assert orjson.dumps([made.targets, made.reclaim, made.reasons, made.notes])
    assert made == plan
    endless = said(Figure("x", np.inf, np.inf))
    check_reasons(endless.reasons)
    assert checked(endless, SEEN) == endless


# --- through the engine ------------------------------------------------------------------------


@pytest.fixture
def cell() -> Cell:
    return Cell().told(node_born("n0"), submitted("j0"), submitted("j1"))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(reclaim={"n0": "soon"}),  # type: ignore[dict-item]
        said(lost_to=({"a"},)),
        said(subject=["j0"]),
    ],
)
def test_nothing_of_a_malformed_plan_is_done_and_the_cell_goes_on(cell: Cell, plan: Plan) -> None:
    good = {"j1": target(n0=1)}
    cell.policy.planner = lambda _: replace(plan, targets={**good, **plan.targets})
    cell.wait(60.0)
    (failed,) = [fact for fact in cell.last.facts if isinstance(fact, PolicyFailed)]
    assert failed.error.startswith("MalformedPlan: ")
    assert (cell.job("j1").target, cell.job("j1").allocation) == (None, {})
    cell.plan(good)
    assert cell.job("j1").state == "starting"
    assert cell.state.totals.policy_failures == 1


def test_numbers_of_numpy_in_reasons_are_recorded_as_numbers(cell: Cell) -> None:
    needs = (Need("gpus", np.float64(0.0), np.float64(2.0)),)
    decision = cell.adopt(said(Figure("worth", np.float64(1.5)), subject="j0", needs=needs))
    written = orjson.loads(orjson.dumps(decision_to_dict(decision)))
    (reason,) = [one for one in written["reasons"] if one["subject"] == "j0"]
    assert reason["figures"] == [{"name": "worth", "value": 1.5, "age_s": 0.0}]
    assert reason["needs"] == [{"name": "gpus", "have": 0.0, "want": 2.0}]


@pytest.mark.parametrize("strict", [True, False])
def test_a_bug_while_a_plan_is_adopted_is_raised_in_tests_alone(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    def broken(*_: Any) -> None:
        raise InvalidTransition("n0", "here", "LoanRequested")

    monkeypatch.setattr(reconcile, "lend", broken)
    monkeypatch.setattr(Engine, "strict", strict)
    if strict:
        with pytest.raises(InvalidTransition):
            cell.plan({"j0": target(n0=1)}, lend=["n0"])
        return
    cell.plan({"j0": target(n0=1)}, lend=["n0"])
    assert cell.state.totals.policy_failures == 1
    assert cell.job("j0").target is not None, "what was decided until then stands"
    cell.wait(60.0)
    assert cell.job("j0").state == "starting"


# --- what one entry holds ----------------------------------------------------------------------


def crowd(jobs: int, settings: Settings, program: Program | None = None) -> tuple[Engine, Scripted]:
    """Give an engine with a node of one GPU for each waiting job."""
    policy = Scripted()
    engine = Engine(ClusterState(), lambda _: policy)
    job = submitted(gpus_max=1).model_dump()
    made = JobSubmitted.model_construct(**{**job, "rates": submitted().rates, "program": program})
    sent: list[Any] = [LeaderStarted("t", 1, "scripted", settings.to_dict())]
    sent += [node_born(f"n{number}", gpus=1) for number in range(jobs)]
    sent += [made.model_copy(update={"job": f"j{number}"}) for number in range(jobs)]
    for data in sent:
        engine.handle(Stimulus(START_S, data))
    policy.planner = lambda _: Plan(
        {f"j{n}": Target("train", ((f"n{n}", 1),)) for n in range(jobs)}
    )
    return engine, policy


def turns(engine: Engine) -> Iterator[Any]:
    """Let time pass until nothing more is due at once."""
    at_s = START_S + 60.0
    while (engine.wake_s or 0.0) <= at_s:
        yield engine.handle(Stimulus(at_s, TimePassed()))


def test_starts_beyond_the_bound_go_out_in_the_turns_that_follow_at_once() -> None:
    engine, _ = crowd(7, Settings(starts_per_cycle=3))
    decisions = list(turns(engine))
    assert [len(decision.commands) for decision in decisions] == [3, 3, 1]
    assert [decision.wake_s for decision in decisions][:2] == [START_S + 60.0] * 2
    assert not engine.state.starts_deferred
    assert not engine.state.claimants


def test_an_entry_is_small_however_long_programs_are_and_however_many_start() -> None:
    program = Program.model_construct(argv=["train"], env={"A": "x" * 2**20})
    engine, _ = crowd(2000, Settings(tenant_jobs_mib=None), program)
    decisions = list(turns(engine))
    assert sum(len(decision.commands) for decision in decisions) == 2000
    sizes = [len(decision_bytes(decision_to_dict(decision))) for decision in decisions]
    assert max(sizes) < 2 * 2**20
    start = decisions[-1].commands[-1].data
    assert isinstance(start, StartGang)
    assert start.spec.program == program


def test_an_order_is_sent_again_whole(cell: Cell) -> None:
    program = Program(argv=["train"], env={"A": "x"}, resize="in_place")
    cell.feed(submitted("p").model_copy(update={"program": program}))
    cell.plan({"p": target(n0=2)})
    (first,) = cell.last.commands
    assert first.data.spec.program == program  # type: ignore[union-attr]
    (issued,) = [fact for fact in cell.last.facts if isinstance(fact, CommandIssued)]
    assert "spec" not in issued.data
    cell.wait(60.0)
    assert cell.last.commands == (first,)


def test_an_order_as_earlier_releases_recorded_it_is_sent_again_too(cell: Cell) -> None:
    cell.plan({"j0": target(n0=2)})
    (first,) = cell.last.commands
    cell.state.commands[first.id].data["spec"] = first.data.spec.model_dump()  # type: ignore[union-attr]
    cell.wait(60.0)
    assert cell.last.commands == (first,)


def test_no_order_is_repeated_that_starts_what_the_job_no_longer_is(cell: Cell) -> None:
    cell.plan({"j0": target(n0=2)})
    (first,) = cell.last.commands
    cell.acks(kind="StopGang")
    cell.state.jobs["j0"].start_epoch += 1
    cell.wait(60.0)
    assert first.id not in cell.state.commands
    assert not cell.sent(StartGang)
