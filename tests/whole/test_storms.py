"""Storms break no law."""

import os
from dataclasses import replace
from unittest.mock import patch

import pytest

from scheduler.intake import Intake
from tests.whole.planted import PLANTED
from tests.whole.shrink import shrink
from tests.whole.storm import Blow, Job, Storm, draw
from tests.whole.world import run

#: As many storms as a test holds; together more on a machine that integrates, and there as many
#: again in `test_more_storms`, which another worker runs.
CHUNK = 10
SEEDS = 150 if os.environ.get("CI") else 30


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_storms_break_no_law(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert run(draw(seed)).broken == [], f"make simulate-faults SEEDS=1 SEED={seed} VERBOSE=1"


def test_who_stands_still_at_the_end_of_a_storm_is_in_the_way_until_it_goes_on() -> None:
    pause = Blow(890.0, "bridge_pause", 0, 1.0)
    assert run(Storm(1, 0.25, (pause,), (), places=(0, 3), bridges=1)).broken == []


def test_who_was_out_of_contact_when_the_log_was_restored_may_say_what_nobody_knows() -> None:
    """Until it is asked what it is: what it said meanwhile comes first, however long that was."""
    cut, restored = Blow(60.0, "mqtt_cut", 0, 1.0), Blow(120.0, "log_restored", 0, 1.0)
    assert run(Storm(1, 0.6, (cut, restored), (), places=(0, 3), bridges=1)).broken == []


def test_who_is_heard_and_cannot_be_asked_may_go_on_saying_what_nobody_knows() -> None:
    """What a bridge says to devices is lost for half an hour; what they say comes through."""
    cut = Blow(752.8, "mqtt_cut", 52214, 0.7018)
    restored = Blow(911.2, "log_restored", 57218, 0.857)
    storm = Storm(621360, 0.7175, (cut, restored), (), places=(0, 1, 2, 3, 4), bridges=2)
    assert run(replace(storm, tide_s=1351.0, lease_s=645.3, rest_s=574.7)).broken == []


def test_a_forged_birth_takes_no_node_that_a_restored_log_does_not_know() -> None:
    """The operator's list says whose it is, though the log is from before its agent joined."""
    cut, restored = Blow(60.0, "agent_cut", 1, 0.5), Blow(120.0, "log_restored", 0, 1.0)
    forged = Blow(300.0, "forged", 1, 0.0)
    assert run(Storm(1, 0.6, (cut, restored, forged), (), places=(0, 3), bridges=1)).broken == []


def test_a_birth_that_is_held_until_another_leads_ends_no_gang() -> None:
    """The gang began after it was said; who does not know what others have heard believes it."""
    held = Blow(590.0, "mqtt_held", 2, 0.0, "LoanRequested")
    jobs = (Job(60.0, "j0", 4, 4, 20_000, "t0"), Job(600.0, "j1", 2, 2, 5_000, "t1"))
    storm = Storm(1, 1.0, (held,), jobs, places=(0, 3))
    ran = run(storm)
    assert (ran.broken, ran.facts["StrayFound"]) == ([], 0)
    with patch.object(Intake, "heard_before", lambda self, newest: None):
        assert run(storm).facts["StrayFound"] == 1


def test_one_storm_is_one_run() -> None:
    storm = draw(7)
    first, second = run(storm), run(storm)
    assert first.journal == second.journal
    assert first.facts == second.facts


def test_a_storm_is_shrunk_to_what_breaks_the_law() -> None:
    cut = Blow(600.0, "agent_cut", 0, 1.0)
    others = tuple(Blow(100.0 * n, "agent_pause", n, 0.3) for n in range(1, 6))
    jobs = (Job(60.0, "j0", 1, 4, 15_000, "t0"), Job(90.0, "j1", 1, 4, 500, "t1"))
    storm = Storm(1, 2.0, (*others, cut), jobs)

    def breaks(tried: Storm) -> bool:
        with PLANTED["lease_ignored"].take_away():
            return any(law.startswith("jobs at two places") for law in run(tried).broken)

    assert breaks(storm)
    least = shrink(storm, breaks)
    assert least.blows == (cut,)
    assert [job.name for job in least.jobs] == ["j0"]


def test_what_is_left_out_does_not_change_the_rest() -> None:
    storm = draw(3)
    fewer = replace(storm, blows=storm.blows[::2])
    assert fewer.jobs == draw(3).jobs
    assert run(fewer).jobs == len(storm.jobs)
