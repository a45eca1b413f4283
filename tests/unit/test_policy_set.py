"""The policy that an administrator chose: it decides, outlives restarts, and strands no loan."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bus.contract import Message, Unreadable
from scheduler.core import facts
from scheduler.core.canonical import state_hash
from scheduler.core.facts import RequestRefused
from scheduler.policies.interface import Kind, LoanPhase
from scheduler.policies.registry import GIVE_BACK, KEEP_QUOTAS, POLICIES, gives_back, make_policy
from scheduler.replay import verify
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, request
from schemas.commands import LendNode
from schemas.events import CommandAcknowledged, InferenceLoad
from schemas.requests import (
    ClearPolicy,
    FreezeLoans,
    Request,
    SetPolicy,
    SetQuota,
    VerbData,
)
from schemas.topics import JOURNAL, REQUESTS
from tests.builders import load, node_born, submitted
from tests.desk import Desk, open_desk
from tests.snapshots import Job, Pool, snapshot


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path) as desk:
        yield desk


def ask(desk: Desk, args: VerbData, **over: Any) -> Message:
    """The message of a request by an administrator, unless told otherwise."""
    count = desk.sequence["asked"] = desk.sequence.get("asked", 0) + 1
    now_s = desk.clock.now_s()
    fields = {
        "id": f"r{count}",
        "subject": "ada",
        "role": "admin",
        "asked_s": now_s,
        "expires_s": now_s + 600.0,
        **over,
    }
    value = encode(request(Request(args=args, **fields), source="/gateways/g"))
    return Message(REQUESTS.name, "default", value, {})


def refusals(desk: Desk) -> list[tuple[str, str]]:
    found = [fact for _, decision in desk.seen for fact in decision.facts]
    return [(fact.field, fact.reason) for fact in found if isinstance(fact, RequestRefused)]


def asked_policies(desk: Desk) -> list[str]:
    """Who was asked in each cycle."""
    found = [fact for _, decision in desk.seen for fact in decision.facts]
    return [fact.policy for fact in found if isinstance(fact, facts.CycleRan)]


async def replays(desk: Desk, service: SchedulerService) -> None:
    """Assert that the journal leads to the service's state, and is decided again alike."""
    await desk.replayed(service)
    found = verify(await desk.records(JOURNAL.name))
    assert found.first_difference is None
    assert found.state_hash == state_hash(service.engine.state)


async def begun(desk: Desk, **config: Any) -> SchedulerService:
    service = desk.start(**config)
    await desk.hears(desk.say(node_born("n0")), desk.say(submitted("j0")))
    return service


async def lent(desk: Desk, **config: Any) -> SchedulerService:
    """A cell of which a node of an inference pool is on loan, under `tide`."""
    service = desk.start(policy="tide", **config)
    agent = "/agents/agent-serve"
    await desk.hears(desk.say(submitted("j0", gpus_min=4, total_steps=10**6)))
    for node in ("s0", "s1"):
        await desk.hears(desk.say(node_born(node, pool="serve", kind="inference"), agent))
    while not service.engine.state.on_loan:
        await needs(desk, 0)
    orders = await desk.commands(LendNode)
    for order in orders:
        ack = CommandAcknowledged(command=order.id, outcome="done", reason="")
        await desk.hears(desk.say(ack, agent))
    assert [n.loan_state for n in service.engine.state.nodes.values() if n.loan] == ["lent"] * len(
        orders
    )
    assert orders
    return service


async def needs(desk: Desk, gpus: int) -> None:
    """The owner says what it needs, and a cycle passes."""
    said: InferenceLoad = load(gpus)
    await desk.hears(desk.say(said, "/agents/agent-serve"), wait_s=61.0)


async def test_the_policy_that_was_set_decides_from_then_on(desk: Desk) -> None:
    service = await begun(desk, policy="fifo")
    await desk.hears(ask(desk, SetPolicy(line="tide:patience_s=7200")), wait_s=61.0)
    assert refusals(desk) == []
    assert service.engine.state.leader.policy == "tide:patience_s=7200"
    assert (asked_policies(desk)[0], asked_policies(desk)[-1]) == ("fifo", "tide")
    chosen = service.engine.state.standing.policy
    assert chosen is not None
    assert (chosen.configured, chosen.by) == ("fifo", "ada")
    await replays(desk, service)


async def test_it_outlives_restarts_from_snapshot_and_journal(desk: Desk) -> None:
    service = await begun(desk, policy="fifo")
    await desk.hears(
        ask(desk, SetPolicy(line="srtf")),
        ask(desk, SetQuota(tenant="t", gpus=2, jobs=1)),
        ask(desk, FreezeLoans()),
    )
    await service.snapshot()
    await desk.crash()
    service = desk.start(policy="edf")
    await desk.wait(120.0)
    state = service.engine.state
    assert (state.leader.policy, asked_policies(desk)[-1]) == ("srtf", "srtf")
    assert state.standing.policy is not None
    assert state.standing.policy.configured == "edf"
    assert (state.standing.quotas["t"].gpus, state.standing.freezes[""].by) == (2, "ada")
    await desk.hears(ask(desk, ClearPolicy()), wait_s=61.0)
    assert (state.leader.policy, asked_policies(desk)[-1]) == ("edf", "edf")
    await desk.crash()
    service = desk.start(policy="fifo")
    await desk.wait(61.0)
    assert service.engine.state.leader.policy == "fifo", "nobody's word but the configuration's"
    await replays(desk, service)


async def test_a_crash_right_after_it_was_set_loses_nothing(desk: Desk) -> None:
    await begun(desk, policy="fifo")
    await desk.hears(ask(desk, SetPolicy(line="srtf")), wait_s=0.1)
    await desk.crash()
    service = desk.start(policy="fifo")
    await desk.wait(61.0)
    assert (service.engine.state.leader.policy, asked_policies(desk)[-1]) == ("srtf", "srtf")
    await replays(desk, service)


async def test_a_pinned_policy_decides_from_the_next_start_on(desk: Desk) -> None:
    await begun(desk, policy="fifo")
    await desk.hears(ask(desk, SetPolicy(line="srtf")))
    await desk.crash()
    service = desk.start(policy="edf", policy_pinned=True)
    await desk.wait(61.0)
    assert service.engine.state.leader.policy == "edf"
    assert service.engine.state.standing.policy is None
    await replays(desk, service)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A policy `gone`, until it is called: from then on no release knows it."""
    monkeypatch.setitem(POLICIES, "gone", POLICIES["fifo"])
    return lambda: monkeypatch.delitem(POLICIES, "gone")


async def test_a_leader_need_not_know_the_policy_of_the_one_before(
    desk: Desk, gone: Callable[[], None]
) -> None:
    await begun(desk, policy="gone")
    await desk.crash()
    gone()
    service = desk.start(policy="edf")
    await desk.wait(61.0)
    assert (service.engine.state.leader.policy, asked_policies(desk)[-1]) == ("edf", "edf")


async def test_who_does_not_know_the_policy_that_was_chosen_leaves_the_cell_to_others(
    desk: Desk, gone: Callable[[], None]
) -> None:
    await begun(desk, policy="fifo")
    await desk.hears(ask(desk, SetPolicy(line="gone")))
    await desk.crash()
    gone()
    service = SchedulerService(desk.bus, desk.clock, ServiceConfig(policy="fifo"))
    with pytest.raises(Unreadable, match=r"ada chose .* 'gone' is not known.*policy_pinned"):
        await service.open()
    service = desk.start(policy="fifo", policy_pinned=True)
    await desk.wait(61.0)
    assert (service.leads, service.engine.state.leader.policy) == (True, "fifo")


REFUSED: list[tuple[VerbData, dict[str, Any], str, str]] = [
    (SetPolicy(line="nope"), {}, "args.line", "policy 'nope' is not known; choose one of"),
    (SetPolicy(line="tide:nope=1"), {}, "args.line", "nope: is no option"),
    (SetPolicy(line="tide:patience_s=soon"), {}, "args.line", "patience_s"),
    (SetPolicy(line="fifo "), {}, "args.line", "without blanks at its ends"),
    (SetPolicy(line="edf"), {"role": "operator"}, "role", "policy.set is for admin"),
    (ClearPolicy(), {}, "args.verb", "no policy was chosen"),
    (ClearPolicy(), {"role": "tenant", "tenant": "t"}, "role", "policy.clear is for admin"),
]


@pytest.mark.parametrize(("args", "how", "field", "part"), REFUSED)
async def test_what_may_not_be_is_refused(
    desk: Desk, args: VerbData, how: dict[str, Any], field: str, part: str
) -> None:
    service = await begun(desk, policy="fifo")
    await desk.hears(ask(desk, args, **how), wait_s=61.0)
    ((said, why),) = refusals(desk)
    assert said == field
    assert part in why
    assert service.engine.state.leader.policy == "fifo"
    assert service.engine.state.standing.policy is None
    await replays(desk, service)


async def test_a_policy_that_never_gives_back_is_refused_while_loans_are_out(desk: Desk) -> None:
    service = await lent(desk)
    state = service.engine.state
    names = list(state.on_loan)
    await desk.hears(ask(desk, SetPolicy(line="srtf")))
    ((field, why),) = refusals(desk)
    assert field == "args.line"
    assert "srtf never gives nodes back" in why
    assert all(name in why for name in names)
    assert state.leader.policy == "tide"
    assert [state.nodes[name].loan_state for name in names] == ["lent"] * len(names)
    await desk.hears(ask(desk, SetPolicy(line="srtf", recall=True)), wait_s=0.5)
    assert state.leader.policy == "srtf"
    assert state.standing.recalls.keys() >= set(names)
    assert all(state.nodes[name].loan_state != "lent" for name in names)
    assert state.standing.recalls[names[0]].by == "ada"
    await replays(desk, service)


async def test_one_that_gives_back_takes_over_with_loans_out(desk: Desk) -> None:
    service = await lent(desk)
    state = service.engine.state
    await desk.hears(ask(desk, SetPolicy(line="fifo")))
    assert (refusals(desk), state.leader.policy) == ([], "fifo")
    assert state.on_loan
    for _ in range(5):
        await needs(desk, 8)
    assert all(state.nodes[name].loan_state != "lent" for name in state.on_loan)


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {*GIVE_BACK}))
async def test_a_switch_by_configuration_leaves_no_node_on_loan(
    policy: str, tmp_path: Path
) -> None:
    async with open_desk("memory", tmp_path) as desk:
        service = await lent(desk)
        names = list(service.engine.state.on_loan)
        await desk.crash()
        service = desk.start(policy=policy)
        await desk.wait(200.0)
        state = service.engine.state
        assert state.leader.policy == policy
        assert all(state.nodes[name].loan_state != "lent" for name in names)
        assert {"", "ada"} >= {one.by for one in state.standing.recalls.values()}
        await replays(desk, service)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_who_gives_back_is_who_plans_it_when_an_owner_needs_its_node(policy: str) -> None:
    """The list of those that do is the truth about them."""
    seen = snapshot(
        [
            Pool("train", nodes=1),
            Pool(
                "serve",
                Kind.INFERENCE,
                nodes=4,
                loan=[LoanPhase.LENT, LoanPhase.LENT, LoanPhase.OWNED, LoanPhase.OWNED],
                lent_since_s=0.0,
                history=[4.0] * 20 + [32.0],
            ),
        ],
        [Job("a", held={"serve-000": 8}, sizes=(8,)), Job("b", held={"train-000": 8}, sizes=(8,))],
        now_s=1_000_000.0,
    )
    assert bool(make_policy(policy).plan(seen).reclaim) == gives_back(policy)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_who_keeps_quotas_is_who_reads_them(policy: str) -> None:
    """A tenant may have nothing: who keeps quotas starts none of its jobs."""
    seen = snapshot([Pool("train", nodes=2)], [Job("a", sizes=(1, 2, 4)), Job("b", sizes=(1,))])
    bounded = type(seen)(
        **{name: getattr(seen, name) for name in seen.__slots__ if name != "quotas"},
        quotas={"tenant": (0, 0)},
    )
    assert make_policy(policy).plan(seen).targets
    targets = make_policy(policy).plan(bounded).targets
    assert (not any(targets.values())) == (policy in KEEP_QUOTAS)
    assert np.array_equal(seen.jobs.rate, bounded.jobs.rate)
