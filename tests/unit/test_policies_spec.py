"""Policies with options, as one line of text."""

import re
from dataclasses import replace

import pytest

from scheduler.policies.literature.capacity_queues import CapacityQueues
from scheduler.policies.literature.fifo import Fifo
from scheduler.policies.literature.tiresias import Tiresias
from scheduler.policies.parts.queue_tree import Queue
from scheduler.policies.registry import POLICIES, make_policy, name_of
from scheduler.policies.spec import split
from scheduler.policies.tide.tide import Tide

QUEUES = 'capacity:queues=[{"path":"a","guaranteed":0.5,"gpus":false}]:leaf_of={"t":"a"}'


def test_options_change_fields_and_fields_of_parts_and_leave_the_others() -> None:
    usual = Tide()
    assert make_policy("tide:loans.cool_down_s=30:patience_s=60") == replace(
        usual, loans=replace(usual.loans, cool_down_s=30.0), patience_s=60.0
    )
    seen = usual.loans.forecast
    assert make_policy("tide:loans.forecast.season=none") == replace(
        usual, loans=replace(usual.loans, forecast=replace(seen, season=None))
    )
    assert make_policy("fifo:backfill=strict:sizes=requested") == Fifo(
        backfill="strict", sizes="requested"
    )


def test_lists_and_tables_are_json() -> None:
    assert make_policy(QUEUES) == CapacityQueues(
        queues=(Queue("a", 0.5),), leaf_of={"t": "a"}
    )  # colons, commas and equals signs within are part of the value
    assert split(f"tide,{QUEUES},fifo", ",") == ["tide", QUEUES, "fifo"]


def test_a_range_does_not_refuse_what_a_bare_name_selects() -> None:
    assert make_policy("tiresias:style=pack") == Tiresias(style="pack")


@pytest.mark.parametrize("name", POLICIES)
def test_a_bare_name_selects_the_defaults(name: str) -> None:
    assert make_policy(name) == POLICIES[name]()
    assert name_of(f"{name}:a=b") == name_of(name) == name


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nobody:a=1", "policy 'nobody' is not known"),
        ("tide:nope=1", "policy tide: nope: is no option; there are loans,"),
        ("tide:loans.nope=1", "loans.nope: is no option; there are lend_horizon_s,"),
        ("tide:name=x", "name: is no option"),
        ("tide:loans", "'loans' is no option; write OPTION=VALUE"),
        ("tide:", "'' is no option"),
        ("tide:loans.lead_s=soon", "loans.lead_s: input should be a valid number"),
        ("tide:loans.stale_s=nan", "stale_s: must be a finite number"),
        ("tide:loans.stale_s=inf", "loans.stale_s: must be a finite number"),
        ("tide:pledge_s=nan", "pledge_s: input should be less than or equal to"),
        (" tide", "must be one line"),
        ("tide:pledge_s=1\n", "must be one line"),
        ("tide:" + "x" * 5000, "at most 4096 characters"),
        ("tide:pledge_s=none", "pledge_s: input should be a valid number"),
        ("tide:pledge_s=1:pledge_s=2", "pledge_s: is given twice"),
        ("tide:loans.drain_s=1:loans.warm_up_s=2", "drain_s: is now called warm_up_s"),
        ("tide:loans=none:loans.lead_s=2", "loans.lead_s: loans is given as a whole, too"),
        ("tide:loans.lead_s=2:loans={}", "loans: is given twice"),
        ("tide:loans.cool_down_s=-5", "cool_down_s: must be from 0 to 1e+09, got '-5'"),
        ("tide:loans.lend_horizon_s=1e6", "lend_horizon_s: input should be less than or equal"),
        ("fifo:gone=none", "gone: is no option"),
        ("tide:pledge_s=0", "pledge_s: input should be greater than 0"),
        ("tide:loans.forecast.burst_quantile=1.5", "burst_quantile: input should be less than"),
        ("tide:loans.forecast.level_range=[-1,2]", "level_range: must be from 0"),
        ("sia:power=-9", "power: input should be greater than or equal to -8"),
        ('drf:weights={"a":0}', "weights: input should be greater than 0"),
        ("afs:quantum_gpu_s=0", "quantum_gpu_s: input should be greater than 0"),
        ("gittins:samples=[1,-1]", "samples: must be from 0"),
        ("gittins:settle=1e10", "settle: must be from 0 to 1e+09"),
        ("aryl:rules=[]", "rules: tuple should have at least 1 item"),
        ("fifo:backfill=maybe", "backfill: input should be 'strict'"),
        ("capacity:queues=[", "queues: unexpected end"),
        ('capacity:queues=[{"x":1}]', "queues: field required"),
        ('capacity:queues=[{"path":"a","guaranteed":2}]', "guaranteed more than all"),
    ],
)
def test_what_cannot_be_is_refused_by_name(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        make_policy(line)


def test_an_option_of_an_earlier_release_is_read() -> None:
    assert make_policy("tide:loans.drain_s=45") == make_policy("tide:loans.warm_up_s=45")
