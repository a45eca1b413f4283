"""`tidegate loans`, `quota` and `policy`: what they put on a log, what they list and refuse."""

from pathlib import Path

import pytest

from schemas.requests import FreezeLoans, SetPolicy, SetQuota
from tests.builders import request_of
from tests.console.conftest import Run
from tests.console.stories import Teller, tell
from tests.console.test_operate import said

GOLDEN = Path(__file__).parents[1] / "golden"


def test_loans_lists_and_freezes(tidegate: Run, log: Path) -> None:
    assert "1 loan so far" in tidegate.does("loans", "--log", log).out
    ran = tidegate.does("loans", "freeze", "--for", "2h", "--reason", "launch", "--log", log)
    assert ran.out == "every lender: nothing is newly borrowed for 2h.\n"
    (asked,) = said(log)
    assert isinstance(asked.args, FreezeLoans)
    assert (asked.args.lender, asked.role, asked.reason) == (None, "operator", "launch")
    assert asked.args.until_s is not None
    assert abs(asked.args.until_s - asked.asked_s - 7200.0) < 1.0
    assert "no such node or pool" in tidegate.refuses("loans", "recall", "nowhere", "--log", log)
    assert "--by: " in tidegate.refuses("loans", "recall", "nowhere", "--by", "x", "--log", log)
    assert "nothing to lift" in tidegate.needs_nothing("loans", "unfreeze", "--log", log)


def test_administrators_set_quotas_and_the_policy(tidegate: Run, log: Path) -> None:
    ran = tidegate.does("quota", "set", "acme", "--gpus", "4..8", "--max-jobs", "2", "--log", log)
    assert "acme: at most 8 GPUs, 4 of them guaranteed, of at most 2 jobs." in ran.out
    assert f"No job of acme is in {log} yet." in ran.out
    tidegate.does("policy", "set", "tide:patience_s=7200", "--recall", "--log", log)
    quota, policy = said(log)
    assert quota.args == SetQuota(tenant="acme", gpus=8, guaranteed=4, jobs=2)
    assert policy.args == SetPolicy(line="tide:patience_s=7200", recall=True)
    assert {quota.role, policy.role} == {"admin"}
    for wrong in ("9..8", "many", "16.."):
        assert "--gpus: " in tidegate.refuses("quota", "set", "a", "--gpus", wrong, "--log", log)
    assert "no quota was set" in tidegate.needs_nothing("quota", "clear", "acme", "--log", log)
    assert "is not known" in tidegate.refuses("policy", "set", "nope", "--log", log)
    assert "No policy was set" in tidegate.needs_nothing("policy", "clear", "--log", log)
    found = tidegate.tells("policy", "--log", log)
    assert (found["set_by"], found["policy"]) == (None, found["configured"])
    assert tidegate.tells("quota", "--log", log)["quotas"] == []


def test_more_guaranteed_than_there_is_is_said(tidegate: Run, log: Path, tmp_path: Path) -> None:
    there = sum(node["gpu_count"] for node in tidegate.tells("nodes", "--log", log)["nodes"])
    most = there + 1

    def warning(*names: str, gpus: int = most) -> str:
        return (
            f"More is guaranteed than there is: {gpus} GPUs to {', '.join(names)}, "
            f"and the cell has {there} GPUs."
        )

    gpus = "quota", "set", "acme", "--log", log, "--gpus"
    assert warning("acme") in tidegate.does(*gpus, f"{most}..{most}").err
    assert "guaranteed than" not in tidegate.does(*gpus, f"{there}..{most}").err
    assert "guaranteed than" not in tidegate.does(*gpus, str(most)).err, "at most, and no more"
    policy = "policy", "set", "--log", log
    assert warning("a", "b") in tidegate.does(*policy, f"tide:quotas.a={there}..:quotas.b=1..").err
    assert "guaranteed than" not in tidegate.does(*policy, f"tide:quotas.a={there}..").err

    told, path = tell(), tmp_path / "set.db"
    args = SetQuota(tenant="acme", gpus=99, guaranteed=99)
    told.feed(request_of(told.now_s, args, "r0", role="admin"))
    told.write(path)
    assert "More is guaranteed than there is: 99 GPUs to acme, and" in tidegate.does(
        "quota", "--log", path
    ).out.replace("\n", " ")
    together = tidegate.does("quota", "set", "else", "--gpus", "1..1", "--log", path).err
    assert "100 GPUs to acme, else" in together


def test_a_guarantee_that_nobody_heeds_is_said(tidegate: Run, tmp_path: Path) -> None:
    log = tmp_path / "fifo.db"
    tidegate.does("journal", "import", GOLDEN / "fifo.jsonl.zst", "--log", log)
    gpus = "quota", "set", "acme", "--log", log, "--gpus"
    ran = tidegate.does(*gpus, "1..2")
    assert "fifo decides, which knows no guarantees; tide does." in ran.err
    assert "guarantees" not in tidegate.does(*gpus, "2").err


@pytest.mark.parametrize("reason", ["closed [/launch]", "see [red] team"])
def test_brackets_in_the_reason_of_a_quota_stand_as_they_were_written(
    tidegate: Run, tmp_path: Path, reason: str
) -> None:
    told, path = Teller(), tmp_path / "run.db"
    args = SetQuota(tenant="acme", gpus=8)
    told.feed(request_of(told.now_s, args, "r0", role="admin", reason=reason))
    told.write(path)
    assert reason in tidegate.does("quota", "--log", path).out


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("quota", "set", "two words", "--gpus", "8"), "tenant"),
        (("node", "accept", "edge 9", "--pool", "edge", "--kind", "edge", "--gpus", "2"), "agent"),
    ],
)
def test_a_name_that_none_can_have_is_refused_in_a_sentence(
    tidegate: Run, log: Path, words: tuple[str, ...], field: str
) -> None:
    said = tidegate.refuses(*words, "--log", log)
    assert said.startswith(f"{field}: takes A to Z, a to z, digits"), said
    assert "pydantic" not in said
    assert said.count("\n") == 1
