"""Policies with options, as one line of text."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter

from scheduler.policies import spec
from scheduler.policies.literature.capacity_queues import CapacityQueues
from scheduler.policies.literature.fifo import Fifo
from scheduler.policies.literature.tiresias import Tiresias
from scheduler.policies.parts.queue_tree import Queue
from scheduler.policies.registry import POLICIES, make_policy, name_of
from scheduler.policies.spec import line_of, split
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


def test_what_options_there_are_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes far longer than to make a policy, and storms make one for each leader and replay."""
    spec._adapter.cache_clear()
    made: list[Any] = []

    def counted(kind: Any, **given: Any) -> TypeAdapter[Any]:
        made.append(kind)
        return TypeAdapter(kind, **given)

    monkeypatch.setattr(spec, "TypeAdapter", counted)
    first, second = make_policy("tide:patience_s=60"), make_policy("tide:patience_s=90")
    assert (first, second) == (Tide(patience_s=60.0), Tide(patience_s=90.0))
    assert len(made) == 1


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
        ("tide:loans.stale_s=nan", "loans.stale_s: input should be a finite number"),
        ("tide:loans.stale_s=inf", "loans.stale_s: input should be a finite number"),
        ("tide:pledge_s=nan", "pledge_s: input should be a finite number"),
        (" tide", "must be one line"),
        ("tide:pledge_s=1\n", "must be one line"),
        ("tide:" + "x" * 5000, "at most 4096 characters"),
        ("tide:pledge_s=none", "pledge_s: input should be a valid number, got none"),
        ("tide:pledge_s=1:pledge_s=2", "pledge_s: is given twice"),
        ("tide:loans.drain_s=1:loans.warm_up_s=2", "loans.drain_s: is no option"),
        ("tide:loans=none:loans.lead_s=2", "loans.lead_s: loans is given as a whole, too"),
        ("tide:loans.lead_s=2:loans={}", "loans: is given twice"),
        (
            "tide:loans.cool_down_s=-5",
            "cool_down_s: input should be greater than or equal",
        ),
        ("tide:loans.lend_horizon_s=1e6", "lend_horizon_s: input should be less than or equal"),
        ("fifo:gone=none", "gone: is no option"),
        ("tide:pledge_s=0", "pledge_s: input should be greater than or equal to 0.000000001"),
        ("tide:loans.forecast.burst_quantile=1.5", "burst_quantile: input should be less than"),
        (
            "tide:loans.forecast.level_range=[-1,2]",
            "level_range.0: input should be greater",
        ),
        ("sia:power=-9", "power: input should be greater than or equal to -8"),
        ('drf:weights={"a":0}', "weights.a: input should be greater than or equal to 0.000000001"),
        (
            "afs:quantum_gpu_s=0",
            "quantum_gpu_s: input should be greater than or equal to 0.000000001",
        ),
        ("elasticflow:slot_s=1e-308", "slot_s: input should be 0, or 1e-09 from it at least"),
        ("pollux:power=-1e-12", "power: input should be 0, or 1e-09 from it at least"),
        (
            "sia:idle=0",
            "idle: is 0, and a job that has one speed would not start; say more than 1 + change, "
            "which is 1.01",
        ),
        (
            "sia:change=5",
            "idle: is 2, and a job that has one speed would not start; say more than 1 + change, "
            "which is 6",
        ),
        ("gittins:samples=[1,-1]", "samples.1: input should be greater than or equal to 0"),
        ("gittins:settle=1e10", "settle: input should be less than or equal to 1000000000"),
        ("aryl:rules=[]", "rules: tuple should have at least 1 item"),
        ("fifo:backfill=maybe", "backfill: input should be 'strict'"),
        ("capacity:queues=[", "queues: unexpected end"),
        ('capacity:queues=[{"x":1}]', "queues.0.path: field required"),
        ('capacity:queues=[{"path":"a","guaranteed":2}]', "guaranteed more than all"),
    ],
)
def test_what_cannot_be_is_refused_by_name(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        make_policy(line)


@pytest.mark.parametrize("name", POLICIES)
def test_every_option_that_is_a_number_has_a_range(name: str) -> None:
    unlimited = [path for path, value in numbers(make_policy(name)) if takes(name, path, value)]
    assert not unlimited, "give its type a range of scheduler/policies/ranges.py"


def numbers(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each option that holds numbers, with a value for it that is far too large."""
    for one in fields(part):
        present = getattr(part, one.name)
        if is_dataclass(present):
            yield from numbers(present, f"{path}{one.name}.")
        elif isinstance(present, int | float) and not isinstance(present, bool):
            yield f"{path}{one.name}", "1e10"
        elif isinstance(present, tuple) and present and isinstance(present[0], float):
            yield f"{path}{one.name}", orjson.dumps([1e10] * len(present)).decode()


def takes(name: str, path: str, value: str) -> bool:
    try:
        return bool(make_policy(f"{name}:{path}={value}"))
    except ValueError:
        return False


def test_a_table_says_what_a_line_says() -> None:
    table = tomllib.loads("""
        name = "tide"
        patience_s = 7200
        quotas = { vision = "16..32", "my.team" = "..8" }
        [loans]
        cool_down_s = 300
        forecast.season = "none"
        forecast.level_range = [0.5, 3]
    """)
    line = line_of(table)
    assert line == (
        'tide:patience_s=7200:quotas={"vision":"16..32","my.team":"..8"}:loans.cool_down_s=300'
        ":loans.forecast.season=none:loans.forecast.level_range=[0.5,3]"
    )
    quotas = {"vision": "16..32", "my.team": "..8"}
    policy = make_policy(line)
    assert isinstance(policy, Tide)
    assert (policy.patience_s, policy.quotas, policy.loans.cool_down_s) == (7200.0, quotas, 300.0)
    assert (policy.loans.forecast.season, policy.loans.forecast.level_range) == (None, (0.5, 3.0))
    plain = {"name": "tide", "quotas": {"vision": "16.."}}
    assert line_of(plain) == "tide:quotas.vision=16.."
    assert line_of({"name": "pollux", "doubling": False}) == "pollux:doubling=false"
    assert line_of({"name": "fifo"}) == "fifo"
    with pytest.raises(ValueError, match="name: is missing"):
        line_of({"patience_s": 7200})


@pytest.mark.parametrize(
    "options",
    [
        "loans.forecast.season.days=3:loans.forecast.season.error_days=4",
        'loans.forecast.season={"days":3,"error_days":4}',
    ],
)
def test_an_option_that_is_gone_is_read_from_an_older_log_and_ignored(options: str) -> None:
    assert make_policy(f"tide:{options}") == Tide()
    with pytest.raises(ValueError, match=r"season\.nope: is no option; there are growth_range, "):
        make_policy("tide:loans.forecast.season.nope=1")


def test_an_option_of_an_earlier_release_is_read() -> None:
    assert make_policy("tide:loans.drain_s=45") == make_policy("tide:loans.warm_up_s=45")


@pytest.mark.parametrize("line", ["sia:gap=1e-7", "pollux:power=1e-7", "tide:pledge_s=1e-7"])
def test_what_worked_in_earlier_releases_is_taken(line: str) -> None:
    """Or their logs that name it would not replay, and whoever configured it would not start."""
    make_policy(line)
