"""`tidegate loans`, `quota` and `policy`: what they put on a log, what they list and refuse."""

from pathlib import Path

import pytest

from schemas.requests import FreezeLoans, SetPolicy, SetQuota
from tests.builders import request_of
from tests.console.conftest import Run
from tests.console.stories import Teller
from tests.console.test_operate import said


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
