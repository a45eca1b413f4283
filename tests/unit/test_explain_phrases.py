"""Reasons in words: every rule that the code uses has its sentence, and figures their units."""

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from explain.phrases import PHRASES, SHORT
from explain.standing import NO_NODE
from explain.wording import VERBS, Wording, reason_from
from scheduler.core.turn import reason_to_dict
from scheduler.policies.interface import Figure, Need, Reason
from scheduler.policies.parts.gang import Outcome
from scheduler.policies.parts.victims import RULES
from scheduler.policies.registry import POLICIES
from schemas.requests import VERB_NAMES

SCHEDULER = Path(__file__).resolve().parents[2] / "scheduler"
#: Those of the core and of what policies share, and one for each policy.
FAMILIES = "|".join(
    ["claims|gang|market|plan|sizes|elastic|loans?|victims|node|operator|policy|quota", *POLICIES]
)
RULE = re.compile(rf"({FAMILIES})\.[a-z_0-9]+")
VOICE = Wording(1_767_571_200.0)


def trees() -> Iterator[ast.Module]:
    for path in sorted([*SCHEDULER.glob("core/*.py"), *SCHEDULER.glob("policies/**/*.py")]):
        yield ast.parse(path.read_text(encoding="utf-8"))


def rules_in_code() -> set[str]:
    """Every rule that is written out, or put together from a family and its members."""
    found: set[str] = set()
    families: set[str] = set()
    words: dict[str, set[str]] = {
        "gang": set(),
        "edgeflow": set(),
        "victims": {"free", "mended", *RULES},
    }
    for tree in trees():
        for one in ast.walk(tree):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                if RULE.fullmatch(one.value):
                    found.add(one.value)
                if re.fullmatch(r"rule[0-9]", one.value):
                    words["edgeflow"].add(one.value)
            if isinstance(one, ast.JoinedStr) and isinstance(one.values[0], ast.Constant):
                prefix = str(one.values[0].value)
                if re.fullmatch(r"[a-z]+\.", prefix):
                    families.add(prefix[:-1])
            if isinstance(one, ast.Call) and getattr(one.func, "id", "") == "Outcome":
                rule = one.args[2]
                if isinstance(rule, ast.Constant):
                    words["gang"].add(str(rule.value))
    assert families == words.keys(), "a new family of rules: add its members here"
    # A job that starts is explained by its own rule, so `start` never stands alone.
    words["gang"].discard("start")
    found -= VERB_NAMES.keys()  # what people ask of nodes is written alike
    return found | {f"{family}.{word}" for family in families for word in words[family]}


def test_every_rule_of_the_code_has_a_sentence_and_a_short_form() -> None:
    rules = rules_in_code()
    assert len(rules) > 20, "the search has missed rules"
    assert {"gang.capacity", "edgeflow.rule3", "victims.ratio", "loan.reclaimed"} <= rules
    assert sorted(rules - PHRASES.keys()) == []
    assert sorted(rules - SHORT.keys()) == []
    assert Outcome(0, -1, "capacity").rule == "capacity"


def test_no_sentence_is_left_for_a_rule_that_nobody_uses() -> None:
    known = {key.split(" ")[0] for key in PHRASES}
    explained = {"gang.start", "node.pool_changed", NO_NODE}
    assert sorted(known - rules_in_code() - explained) == []
    assert known == {key.split(" ")[0] for key in SHORT}
    assert {key for key in SHORT if " " in key} <= PHRASES.keys()
    assert {key.split(" ")[1] for key in PHRASES if " " in key} <= VERBS.keys()


@pytest.mark.parametrize("key", sorted(PHRASES))
def test_a_sentence_holds_without_any_figure_and_with_all(key: str) -> None:
    rule, _, verb = key.partition(" ")
    bare = VOICE.sentence(Reason("j", verb or "waits", rule))
    assert bare
    assert not re.search(r"[\[\]{}?]|  | [,;:]|[:,;]$", bare), bare
    slots = set(re.findall(r"\{([a-z_0-9:]+)\}", PHRASES[key])) - {"lost_to"}
    figures = tuple(Figure(name, 7200.0) for name in sorted(slots) if ":" not in name)
    needs = tuple(Need(n.split(":")[1], 3.0, 4.0) for n in sorted(slots) if n.startswith("want:"))
    full = VOICE.sentence(Reason("j", verb or "waits", rule, figures, ("a", "b"), needs))
    assert not re.search(r"[\[\]{}?]|  | [,;:]", full), full
    if "{lost_to}" in PHRASES[key]:
        assert "a and b" in full
    assert len(full) < 250


def test_an_outbid_job_is_not_said_to_be_worth_more_than_the_price() -> None:
    """Prices are searched in rounds, so the last may be below what a job that is left is worth."""

    def said(worth: float) -> str:
        figures = (Figure("worth_per_gpu", worth), Figure("price_per_gpu", 127.0))
        return VOICE.sentence(Reason("j", "waits", "market.outbid", figures, ("a",)))

    most = "; most are held by a"
    assert said(100.0) == f"others make more of the GPUs: 100 a GPU, where the price is 127{most}"
    assert said(197.0) == f"others make more of the GPUs{most}"


def test_a_job_that_no_edge_server_has_room_for_is_not_said_to_be_worth_its_price() -> None:
    reason = Reason("j", "waits", "market.price", (Figure("worth_per_gpu", 0.1),))
    assert "none of them alone" in VOICE.sentence(reason)
    assert SHORT["market.price waits"] == "no edge server has room"


@pytest.mark.parametrize(
    ("gpus", "says"), [(1.0, "were 1 GPU there"), (21.0, "21 GPUs"), (2.1, "2.1 GPUs")]
)
def test_one_gpu_is_not_several(gpus: float, says: str) -> None:
    reason = Reason("a", "waits", "market.outbid", needs=(Need("gpus", 0.0, gpus),))
    assert says in VOICE.sentence(reason)


def test_a_rule_of_another_release_is_named_not_hidden() -> None:
    assert "(later.rule)" in VOICE.sentence(Reason("j", "waits", "later.rule"))


def test_what_a_plan_could_not_give_names_its_unit_once() -> None:
    gpus = (Figure("gpus", 1.0),)
    said = VOICE.sentence(Reason("j", "waits", "plan.refused", gpus, ("k",)))
    assert said.startswith("what was planned for it, 1 GPU, cannot be had: it stays with k;")
    assert VOICE.sentence(Reason("j", "waits", "plan.refused")).startswith(
        "what was planned for it cannot be had; "
    )


@pytest.mark.parametrize(
    ("figure", "rule", "value", "age"),
    [
        (Figure("waited_s", 4320.0), "gang.capacity", "1 h 12 min", "fresh"),
        (Figure("deadline_s", 1_767_571_200.0 + 90_000), "edgeflow.rule2", "d1 01:00", "fresh"),
        (Figure("edge_end_s", math.inf), "edgeflow.rule2", "never", "fresh"),
        (Figure("due_s", 600.0), "victims.free", "in 10 min", "fresh"),
        (Figure("due_s", 1_767_571_260.0), "loan.reclaimed", "d0 00:01", "fresh"),
        (Figure("gpus_after", 1.0), "market.price", "1 GPU", "fresh"),
        (Figure("forecast_gpus", 36.1, 61.0), "victims.free", "36.1 GPUs", "1 min 1 s old"),
        (Figure("steps_per_s", 0.6661, math.inf), "x", "0.666 steps/s", "declared, never measured"),
        (Figure("lost_gpu_s", 3600.0), "market.promised", "1 GPU h", "fresh"),
        (Figure("gpu_memory_mib", 81_920.0), "gang.no_pool", "80 GiB", "fresh"),
    ],
)
def test_figures_have_their_units_and_their_age(
    figure: Figure, rule: str, value: str, age: str
) -> None:
    assert VOICE.figure(figure, rule)[1:] == (value, age)


def test_a_reason_reads_back_from_both_forms_of_the_journal() -> None:
    reason = Reason(
        "j", "waits", "gang.capacity", (Figure("a_s", 1.0, 2.0),), ("k",), (Need("n", 1.0, 2.0),)
    )
    assert reason_from(orjson.loads(orjson.dumps(reason))) == reason
    assert reason_from(orjson.loads(orjson.dumps(reason_to_dict(reason)))) == reason
    unknown_age = Reason("j", "waits", "r", (Figure("a_s", 1.0, math.inf),))
    assert reason_from(orjson.loads(orjson.dumps(unknown_age))) == unknown_age
