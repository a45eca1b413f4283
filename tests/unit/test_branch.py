"""A branch: its control does what the log did; saved, it replays; the rest is refused."""

import pickle
import sys
from pathlib import Path

import orjson
import pytest

from bus.reading import open_log
from scheduler.core import facts
from scheduler.core.canonical import state_to_json
from scheduler.core.restore import state_from_dict
from scheduler.core.stimuli import Cause, Stimulus
from scheduler.core.transitions import JobState, NodeState
from schemas.events import GangHeld, InferenceLoad, NodeDied
from schemas.topics import JOURNAL
from simulator.branch.change import Change
from simulator.branch.deeds import differences, first_difference
from simulator.branch.origin import BranchError, Origin, StartState, read_origin
from simulator.branch.places import Places
from simulator.branch.requests import verb_of
from simulator.branch.run import branch
from tests.golden.alter import Capture, ran

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a simulated night with loans."""
    from console.main import main

    log = tmp_path_factory.mktemp("night") / "night.db"
    given = "simulate --workload generated --jobs 60 --policy tide --nodes 4 --inference-nodes 2"
    assert main([*given.split(), "--edge-nodes", "2", "--log", str(log)]) == 0
    return log


@pytest.mark.parametrize("entry", [2600, 3001])
def test_a_control_does_what_a_simulated_log_did(night: Path, entry: int) -> None:
    with open_log(night) as opened:
        begin = read_origin(opened.records(JOURNAL.name), entry, 3.0)
    control = branch(begin)
    assert len(begin.record.deeds) > 20
    assert first_difference(begin.record.deeds, control.deeds) is None
    assert control.violations == 0


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_branch_that_begins_as_a_job_comes_knows_the_sizes_that_it_can_have(
    night: Path, goes_on: bool
) -> None:
    with open_log(night) as opened:
        records = list(opened.records(JOURNAL.name))
    late = read_origin(records, None, 0.0)
    job = max(late.record.jobs.values(), key=lambda one: one.submit_s)
    assert job.curve is not None
    assert any(rate == 0.0 for _, rate in job.curve["points"])
    named = f'"job":"{job.id}"'.encode()
    entry = next(number for number, one in enumerate(records) if named in (one.value or b""))
    begin = read_origin(records if goes_on else records[: entry + 1], entry, 0.1)
    assert begin.at_s == job.submit_s
    known = branch(begin).state.jobs[job.id].curve
    assert known is not None
    assert known["points"] == job.curve["points"]


@pytest.mark.parametrize(
    ("boots", "lists", "loses"), [(1, False, True), (1, True, False), (0, False, False)]
)
def test_a_node_loses_its_gangs_if_its_agent_began_anew_and_lists_none(
    night: Path, boots: int, lists: bool, loses: bool
) -> None:
    with open_log(night) as opened:
        begin = read_origin(opened.records(JOURNAL.name), 2600, 0.5)
    state = state_from_dict(orjson.loads(begin.state))
    jobs = {job.id: job for job in state.jobs.values() if job.state is JobState.RUNNING}
    job = jobs[min(jobs)]
    node = state.nodes[min(job.allocation)]
    gang = GangHeld(job=job.id, epoch=job.epoch, gpus=job.allocation[node.id], step=job.step)
    held = [gang] if lists else []
    born = Places(state)[node.id].model_copy(update={"held": held})
    said = Cause(f"/agents/{node.agent}", node.bootid + boots, 10**8, begin.at_s + 1.0)
    begin.future = [Stimulus(begin.at_s + 1.0, born, said)]
    ended = [
        fact
        for fact in _facts(begin)
        if isinstance(fact, facts.JobQueued) and fact.job == job.id and fact.reason == "failed"
    ]
    assert bool(ended) is loses


def _facts(begin: Origin) -> list[object]:
    found: list[object] = []
    branch(begin, watch=lambda _state, _stimulus, decision: found.extend(decision.facts))
    return found


def test_a_drain_that_is_asked_for_empties_the_node(night: Path) -> None:
    with open_log(night) as opened:
        begin = read_origin(opened.records(JOURNAL.name), 3001, 1.0)
    state = state_from_dict(orjson.loads(begin.state))
    job = next(job for job in state.jobs.values() if job.state is JobState.RUNNING)
    name = min(job.allocation)
    asked = f'{{"verb": "node.drain", "node": "{name}", "by_s": 3600}}'
    drained = branch(begin, Change(requests=(verb_of(asked),)))
    assert any(branch(begin).state.nodes[name].holder)
    assert not any(drained.state.nodes[name].holder)
    assert drained.violations == 0


@pytest.mark.parametrize(("demand", "seed"), [(1.5, 0), (1.0, 3)])
def test_what_owners_need_more_is_not_more_in_each_slot_after_the_log(
    demand: float, seed: int
) -> None:
    with open_log(GOLDEN / "tide.jsonl.zst") as opened:  # of the day before nothing is known
        begin = read_origin(opened.records(JOURNAL.name), None, 2.0)
    last = state_from_dict(orjson.loads(begin.state)).lenders["serve"].gpus_needed
    needs: list[int] = []

    def watch(_state: object, stimulus: Stimulus, _decision: object) -> None:
        if isinstance(stimulus.data, InferenceLoad):
            needs.append(stimulus.data.gpus_needed)

    branch(begin, Change(demand=demand), seed, watch=watch)
    assert len(needs) > 20
    assert 0.0 < max(needs) <= last * demand + 1.0


def test_nodes_that_are_added_have_names_that_no_other_has(night: Path) -> None:
    with open_log(night) as opened:
        begin = read_origin(opened.records(JOURNAL.name), 2600, 0.01)
    added = branch(begin, Change(add=(("train", 2), ("train", 1))))
    before = state_from_dict(orjson.loads(begin.state)).nodes.keys()
    assert added.state.nodes.keys() - before == {f"train-added-{n}" for n in (1, 2, 3)}
    # A log may be that of a branch which was kept.
    begin.state = state_to_json(added.state)
    more = branch(begin, Change(add=(("train", 1),)))
    assert more.state.nodes.keys() - added.state.nodes.keys() == {"train-added-4"}


def test_jobs_like_one_of_the_log_come_at_the_entry_and_are_as_it_is(night: Path) -> None:
    with open_log(night) as opened:
        begin = read_origin(opened.records(JOURNAL.name), 2600, 1.0)
    state = state_from_dict(orjson.loads(begin.state))
    like = next(job for job in state.jobs.values() if job.state is JobState.RUNNING)
    asked = Change(jobs=((like.id, 2),))
    named: list[facts.JobAccepted] = []
    found = branch(
        begin,
        asked,
        watch=lambda _state, stimulus, decision: named.extend(
            fact
            for fact in decision.facts
            if isinstance(fact, facts.JobAccepted) and stimulus.at_s == begin.at_s
        ),
    )
    assert [one.job for one in named] == [f"{like.id}-like-1", f"{like.id}-like-2"]
    for name in (one.job for one in named):
        job = found.state.jobs[name]
        assert (job.tenant, job.gpus_min, job.gpus_max, job.total_steps, job.rates) == (
            like.tenant, like.gpus_min, like.gpus_max, like.total_steps, like.rates)  # fmt: skip
        if like.deadline_s is not None:
            assert job.deadline_s == begin.at_s + like.deadline_s - like.submit_s
    assert found.violations == 0
    with pytest.raises(BranchError, match="there is no job nobody") as refused:
        branch(begin, Change(jobs=(("nobody", 1),)))
    assert refused.value.part == "jobs"
    with pytest.raises(BranchError, match=r"2,000 are added, and 1,000 may be in all"):
        branch(begin, Change(jobs=((like.id, 1000), (like.id, 1000))))
    with pytest.raises(BranchError) as wrong:
        branch(begin, Change(settings={"cycle_s": -1.0}))
    assert wrong.value.reason == "cycle_s must be above 0, below 1e9, got -1.0", "the part once"
    back = pickle.loads(pickle.dumps(refused.value))  # runs are made by other processes
    assert (back.part, back.reason) == (refused.value.part, refused.value.reason)


def test_a_log_that_is_read_from_its_middle_gives_the_same_branch(night: Path) -> None:
    with open_log(night) as opened:
        records = list(opened.records(JOURNAL.name))
    whole, middle = read_origin(records, 2600, 0.5), read_origin(records, 2500, 0.5)
    at = StartState(middle.state, middle.digest, middle.origin_s)
    for entry, of in ((2600, whole), (2500, middle)):
        later = read_origin(records[2501:], entry, 0.5, start=at)
        assert (later.state, later.digest, later.origin_s) == (of.state, of.digest, of.origin_s)
        assert later.future == of.future
        assert later.record.deeds == of.record.deeds
        assert later.record.tide == of.record.tide
        assert later.record.tide[0].at_s == later.at_s


def test_deeds_that_differ_are_listed_in_order_beginning_with_the_first(night: Path) -> None:
    with open_log(night) as opened:
        begin = read_origin(opened.records(JOURNAL.name), 2600, 1.0)
    control, changed = branch(begin).deeds, branch(begin, Change(policy="fifo")).deeds
    found = differences(control, changed, 10**6)
    assert found[0] == first_difference(control, changed)
    assert [deed.at_s for deed, _ in found] == sorted(deed.at_s for deed, _ in found)
    assert differences(control, changed, 3) == found[:3]
    assert differences(control, control, 10) == []
    # What is left of each side is the same, one by one.
    alone = {id(deed) for deed, _ in found}
    left = [
        sorted((deed.key, deed.at_s) for deed in side if id(deed) not in alone)
        for side in (control, changed)
    ]
    for (key, at_s), (other, other_s) in zip(*left, strict=True):
        assert key == other
        assert abs(at_s - other_s) <= 1.0


def test_runs_draw_what_nobody_measured_and_meet_the_same_failures(
    night: Path, capsys: Capture
) -> None:
    asked = ("branch", night, "--entry", 2600, "--hours", 2, "--lose", "node-002", "--runs", 3)
    code, shown, _ = ran(capsys, *asked, "--json", "-")
    assert code == 0
    found = orjson.loads(shown)
    for side in ("control", "branch"):
        least, most = found["ranges"][side]["used_gpu_h"]
        assert least < most
        assert least <= found[side]["used_gpu_h"] <= most
    assert found["ranges"]["difference"]["used_gpu_h"][0] < 0.0
    with open_log(night) as opened:
        begin = read_origin(opened.records(JOURNAL.name), 2600, 1.0)
    dies = NodeDied(node="node-003", reason="recorded")
    at_s = begin.at_s + 60.0
    begin.future = [Stimulus(at_s, dies, Cause("/agents/train", 1, 10**8, at_s)), *begin.future]
    for seed in range(3):
        for change in (None, Change(demand=2.0)):
            state = branch(begin, change, seed).state
            assert state.nodes["node-003"].state is NodeState.DEAD


def test_a_branch_differs_is_the_same_again_and_replays(
    night: Path, tmp_path: Path, capsys: Capture
) -> None:
    answers = []
    for name in ("one.db", "two.db"):
        asked = ("branch", night, "--entry", 2600, "--policy", "fifo", "--hours", 2)
        code, shown, _ = ran(capsys, *asked, "--save", tmp_path / name, "--json", "-")
        assert code == 0
        answers.append(shown)
    assert answers[0] == answers[1]
    assert orjson.loads(answers[0])["first_difference"] is not None
    entries = []
    for name in ("one.db", "two.db"):
        with open_log(tmp_path / name) as opened:
            entries.append([record.value for record in opened.records(JOURNAL.name)])
    assert entries[0] == entries[1]
    code, shown, _ = ran(capsys, "replay", tmp_path / "one.db", "--json", "-")
    assert code == 0
    assert orjson.loads(shown)["identical"]


@pytest.mark.parametrize("name", ["fifo", "tide", "brokers"])
def test_an_old_log_is_branched(name: str) -> None:
    with open_log(GOLDEN / f"{name}.jsonl.zst") as opened:
        begin = read_origin(opened.records(JOURNAL.name), 200, 1.0)
    lost = min(node for node in orjson.loads(begin.state)["nodes"])
    changed = branch(begin, Change(lose=(lost,), demand=1.2))
    assert branch(begin).violations == changed.violations == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--entry", 10**9), "there is no entry"),
        (("--entry", 26, "--policy", "fofi"), "--policy"),
        (("--entry", 26, "--set", "cycle_s=x"), "--set"),
        (("--entry", 26, "--set", "cycle_s=-1"), "--set"),
        (("--entry", 26, "--set", "=3"), "'=3' is not KEY=VALUE"),
        (("--entry", 26, "--add-nodes", "=3"), "'=3' is not POOL=N"),
        (("--entry", 26, "--set", "nothing=1"), "--set"),
        (("--entry", 26, "--lose", "nobody"), "--lose"),
        (("--entry", 26, "--add-nodes", "moon=2"), "--add-nodes"),
        (("--entry", 26, "--add-nodes", "train=999999999"), "--add-nodes"),
        (("--entry", 26, "--demand", "nan"), "--demand"),
        (("--request", '{"verb": "node.paint", "node": "n"}'), "'node.paint' is no verb"),
        (("--request", '{"verb": "node.drain", "node": "n"}'), "node.drain.by_s: is missing"),
        (("--request", '{"verb": "job.logs", "job": "j"'), "--request"),
        (("--entry", 26, "--request", '{"verb": "node.cordon", "node": "nobody"}'), "--request"),
        (("--entry", 26, "--demand", "-1"), "--demand"),
        (("--entry", 26, "--job", "nobody=1"), "--job"),
        (("--entry", 26, "--job", "nobody"), "--job"),
        (("--entry", 26, "--save", "/nowhere/o.db"), "--save: /nowhere/o.db cannot be written"),
    ],
)
def test_what_cannot_be_is_refused(
    night: Path, capsys: Capture, options: tuple[object, ...], said: str
) -> None:
    code, shown, why = ran(capsys, "branch", night, "--hours", 1, *options)
    assert (code, shown) == (2, "")
    assert said in why


def test_a_policy_that_cannot_decide_is_named_and_not_taken_for_one_that_does_nothing(
    night: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    given = ("branch", night, "--entry", 2600, "--policy", "gavel", "--hours", 1)
    code, shown, why = ran(capsys, *given)
    assert (code, shown) == (2, "")
    assert "--policy: gavel cannot decide: ModuleNotFoundError" in why
