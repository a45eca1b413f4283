"""Another policy beside the recorded one: what it is shown."""

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

LOG = Path(__file__).parent.parent / "golden" / "tide.jsonl.zst"


class Witness:
    """A policy of some name that decides nothing, and keeps what it saw of notes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.noted: list[bool] = []

    def plan(self, snapshot: Snapshot) -> Plan:
        self.noted.append(bool((~np.isnan(snapshot.jobs.notes)).any()))
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
