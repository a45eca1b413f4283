"""Another policy beside the recorded one: what it is shown, and what if it cannot decide."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bus.contract import Record
from bus.reading import open_log
from scheduler.compare import Comparison
from scheduler.policies.interface import Plan, Policy, Snapshot
from scheduler.policies.registry import make_policy
from scheduler.replay import verify
from schemas.topics import JOURNAL
from tests.golden.alter import Capture, ran

LOG = Path(__file__).parent.parent / "golden" / "tide.jsonl.zst"


class Witness:
    """A policy of some name that decides nothing, and keeps what it saw of notes."""

    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name, self._fails = name, fails
        self.noted: list[bool] = []

    def plan(self, snapshot: Snapshot) -> Plan:
        self.noted.append(bool((~np.isnan(snapshot.jobs.notes)).any()))
        if self._fails:
            raise ZeroDivisionError("it divides")
        return Plan()


@pytest.fixture(scope="module")
def journal() -> Iterator[list[Record]]:
    with open_log(LOG) as log:
        yield list(log.records(JOURNAL.name))


def beside(journal: list[Record], other: Witness) -> tuple[Comparison, bool]:
    """Replay a log with another policy beside the recorded one; say if it is identical."""

    def make(line: str) -> Policy:
        return other if line == "other" else make_policy(line)

    comparison = Comparison(make, "other")
    return comparison, verify(journal, policies=comparison.policy, length_s=7200.0).identical


def test_notes_are_shown_to_the_policy_that_wrote_them_and_to_no_other(
    journal: list[Record],
) -> None:
    own, foreign = Witness("tide"), Witness("themis")
    assert beside(journal, own)[1]
    assert beside(journal, foreign)[1]
    assert any(own.noted)
    assert foreign.noted
    assert not any(foreign.noted)


def test_a_log_is_identical_though_the_other_policy_cannot_decide(journal: list[Record]) -> None:
    other = Witness("other", fails=True)
    comparison, identical = beside(journal, other)
    assert identical
    assert isinstance(comparison.error, ZeroDivisionError)
    assert (len(other.noted), comparison.cycles) == (1, 0)


def test_a_policy_whose_package_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    code, _, said = ran(capsys, "replay", LOG, "--policy", "gavel", "--diff", "--until", "2h")
    assert code == 2
    assert "--policy: gavel needs scipy.optimize; install `tidegate[sim]`." in said
