"""The checkers find what is planted, and nothing where nothing is wrong."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.codec import command, encode, event
from schemas.commands import StopGang
from schemas.events import JobCancelled
from schemas.journal import NO_DIGEST, chain, encode_entry
from tests.chaos.ledger import (
    ACKNOWLEDGED,
    BORN,
    SUBMITTED,
    Entry,
    Said,
    acks_untold,
    delivery,
    gaps,
    jobs,
    read_entry,
    read_said,
)
from tests.chaos.owners import (
    Effect,
    double_owners,
    double_places,
    read_effects,
    read_orders,
    repeated_effects,
    tenures,
)


def said(
    number: int, type_: str = SUBMITTED, *, at_s: float = 0.0, boot: int = 1, **data: Any
) -> Said:
    return Said(("/tenants/t", boot, number), type_, at_s, data)


def told(*numbers: int, boot: int = 1) -> list[Entry]:
    return [
        Entry(place, 0.0, "JobSubmitted", ("/tenants/t", boot, number), {}, [])
        for place, number in enumerate(numbers)
    ]


def fact(name: str, **fields: Any) -> Entry:
    return Entry(0, 0.0, "TimePassed", None, {}, [(name, fields)])


# --- delivery -----------------------------------------------------------------------------------


def test_copies_in_kafka_are_no_loss_and_are_counted() -> None:
    events = [said(0), said(1), said(1), said(2)]
    found = delivery(events, told(0, 1, 2), confirmed={event.cause for event in events})
    assert (found.accepted, found.journalled, found.duplicates_removed) == (3, 3, 1)
    assert found.lost == 0
    assert not found.retold
    assert not found.invented


def test_an_event_that_was_confirmed_and_is_not_in_kafka_is_lost() -> None:
    found = delivery([said(0)], told(0), confirmed={said(0).cause, said(1).cause})
    assert found.vanished == ["/tenants/t boot 1 number 1"]
    assert found.lost == 1


def test_an_event_in_kafka_that_the_engine_was_never_told_of_is_lost() -> None:
    found = delivery([said(0), said(1, job="j-1")], told(0))
    assert found.lost == 1
    assert "number 1" in found.untold[0]
    assert "job=j-1" in found.untold[0]


def test_an_event_told_twice_is_found_and_so_is_one_that_nobody_said() -> None:
    found = delivery([said(0)], told(0, 0, 7))
    assert found.retold == ["/tenants/t boot 1 number 0: 2 times"]
    assert found.invented == ["/tenants/t boot 1 number 7"]


def test_dead_letters_and_expected_telemetry_are_not_losses() -> None:
    events = [said(0), said(1, "tidegate.node.measured.v1")]
    assert delivery(events, [], buried={said(0).cause}).lost == 0


def test_a_birth_that_was_overtaken_need_not_be_told_but_one_in_order_must() -> None:
    late = [said(5, "tidegate.worker.stopped.v1"), said(4, BORN)]
    assert delivery(late, told(5)).births_overtaken == 1
    in_order = list(reversed(late))
    assert delivery(in_order, told(5)).lost == 1


@pytest.mark.parametrize("closing", ["CommandDone", "CommandRefused", "CommandExpired"])
def test_an_ack_of_a_command_that_stays_open_is_found(closing: str) -> None:
    ack = said(0, ACKNOWLEDGED, command="c-1", outcome="done")
    issued = fact("CommandIssued", command="c-1")
    assert acks_untold([ack], [issued]) == ["c-1"]
    assert acks_untold([ack], [issued, fact(closing, command="c-1")]) == []
    assert acks_untold([], [issued]) == []


def test_gaps_are_found_in_each_boot_and_dropped_telemetry_excuses_as_many() -> None:
    events = [said(number) for number in (0, 1, 4)] + [said(1, boot=2)]
    assert [gap.split(":")[0] for gap in gaps(events)] == [
        "/tenants/t boot 1",
        "/tenants/t boot 2",
    ]
    assert gaps(events, {"/tenants/t": 3}) == []
    assert len(gaps(events, {"/tenants/t": 2})) == 1
    assert gaps([said(1), said(0), said(0)]) == []


def test_bytes_are_read_as_they_were_written() -> None:
    envelope = event(
        JobCancelled(job="j"), source="/tenants/t", sequence=3, bootid=2, time_s=1_800_000_000.5
    )
    read = read_said(encode(envelope))
    assert read.cause == ("/tenants/t", 2, 3)
    assert read.at_s == 1_800_000_000.5
    assert read.data["job"] == "j"
    stimulus = {"kind": "TimePassed", "at_s": 1.0, "cause": ["", -1, -1, 0.0], "data": {}}
    decision = {"facts": [["JobCompleted", {"job": "j"}]]}
    entry = read_entry(encode_entry(chain(NO_DIGEST, 0, 1.0, stimulus, decision, policy="fifo")))
    assert entry.cause is None
    assert entry.facts == [("JobCompleted", {"job": "j"})]


# --- jobs ---------------------------------------------------------------------------------------


def test_each_job_is_completed_ended_unfinished_or_lost() -> None:
    journal = [
        *(fact("JobAccepted", job=name) for name in ("done", "broken", "open")),
        fact("JobCompleted", job="done"),
        fact("JobFailed", job="broken", reason="failed 20 times"),
    ]
    found = jobs(["done", "broken", "open", "gone"], journal)
    assert found.completed == ["done"]
    assert found.ended == {"broken": "JobFailed: failed 20 times"}
    assert found.unfinished == ["open"]
    assert found.lost == ["gone"]
    assert jobs(["done"], [*journal, fact("JobCompleted", job="done")]).twice == ["done"]


# --- effects and owners -------------------------------------------------------------------------


def effect(what: str, job: str, epoch: int, at_s: float, *gpus: int, agent: str = "a") -> Effect:
    return Effect(agent, what, at_s, job, epoch, f"node-{agent}", gpus)


def test_a_start_carried_out_twice_is_found() -> None:
    orders = Counter({("start", "j", 1): 1, ("stop", "j", 1): 2})
    once = [effect("start", "j", 1, 1.0, 0)]
    stops = [effect("stop", "j", 1, at_s) for at_s in (2.0, 3.0)]
    assert repeated_effects(once + stops, orders) == []
    assert repeated_effects(once * 2, orders) == [
        "a: start j epoch 1 on node-a: 2 times, ordered 1"
    ]
    assert len(repeated_effects([*once, *stops, *stops], orders)) == 1


def test_an_effect_that_nobody_ordered_is_found_but_an_end_of_lease_is_none() -> None:
    assert repeated_effects([effect("start", "j", 1, 1.0, 0)], {})
    assert repeated_effects([effect("stop", "j", 1, 1.0)], {}) == []
    assert repeated_effects([effect("stop", "j", 1, 1.0)] * 2, {})


def test_a_stop_counts_for_the_gang_that_is_held_whose_epoch_may_be_older() -> None:
    """The second one hurries a gang that leaves since its lease ended; epoch 7 was refused."""
    stops = [effect("stop", "j", 4, at_s) for at_s in (1.0, 3.0)]
    orders = {("scale", "j", 7): 1, ("stop", "j", 7): 1}
    assert repeated_effects(stops, orders) == []
    assert repeated_effects([*stops, effect("stop", "j", 4, 4.0)], orders)
    assert repeated_effects([*stops, effect("scale", "j", 7, 2.0)], orders), "that one was held"


def test_copies_of_a_command_are_one_order() -> None:
    data = StopGang(job="j", epoch=1, reason="preempted", checkpoint=True, grace_s=1.0)
    value = encode(
        command(data, id="c-1", source="/schedulers/x", sequence=0, bootid=0, time_s=0.0)
    )
    assert read_orders([value, value]) == {("stop", "j", 1): 1}


def test_a_gpu_with_two_owners_is_found() -> None:
    taken = [effect("start", "j", 1, 1.0, 0, 1), effect("start", "k", 1, 5.0, 1)]
    assert len(double_owners(tenures(taken, {}))) == 1
    freed = [taken[0], effect("ended", "j", 1, 5.0, 0, 1), taken[1]]
    assert double_owners(tenures(freed, {})) == []
    late = [*taken, effect("ended", "j", 1, 5.1, 0, 1)]
    assert len(double_owners(tenures(late, {}))) == 1


def test_the_death_of_an_agent_frees_what_its_workers_held() -> None:
    held = [effect("start", "j", 1, 1.0, 0), effect("start", "k", 1, 5.0, 0)]
    assert double_owners(tenures(held, {"a": [4.0]})) == []
    assert double_owners(tenures(held, {"a": [0.5], "b": [4.0]}))
    reborn = [held[0], Effect("a", "began", 4.5), held[1]]
    assert double_owners(tenures(reborn, {})) == []


def test_a_gang_that_changes_size_keeps_its_gpus_and_frees_those_it_left() -> None:
    effects = [
        effect("start", "j", 1, 1.0, 0, 1),
        effect("scale", "j", 2, 3.0, 1, 2),
        effect("left", "j", 1, 3.5, 0),
        effect("start", "k", 1, 4.0, 0),
        effect("ended", "j", 2, 9.0, 1, 2),
    ]
    held = tenures(effects, {})
    assert double_owners(held) == []
    assert {(part.gpu, part.from_s, part.to_s) for part in held if part.job == "j"} == {
        (0, 1.0, 3.5),
        (1, 1.0, 9.0),
        (2, 3.0, 9.0),
    }
    del effects[2]
    assert double_owners(tenures(effects, {})), "GPU 0 was never given up"


def test_a_job_at_two_agents_at_once_is_found() -> None:
    first, second = effect("start", "j", 1, 1.0, 0), effect("start", "j", 2, 5.0, 0, agent="b")
    ended = effect("ended", "j", 1, 4.0, 0)
    assert double_places(tenures([first, ended, second], {})) == []
    assert len(double_places(tenures([first, second], {}))) == 1
    assert double_owners(tenures([first, second], {})) == []


def test_an_effects_file_is_read_but_for_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        """{"n":0,"at_s":0.5,"agent":"a","effect":"began","running":[]}
{"n":1,"at_s":1.0,"agent":"a","effect":"start","job":"j","epoch":3,"node":"n","gpus":[0,1]}
{"n":2,"at_s":1.5,"agent":"a","effect":"lent","node":"n","gpus":[0,1]}
{"n":3,"at_s":"""
    )
    assert read_effects("a", path) == [
        Effect("a", "began", 0.5),
        Effect("a", "start", 1.0, "j", 3, "n", (0, 1)),
    ]
    assert read_effects("b", tmp_path / "none.jsonl") == []
