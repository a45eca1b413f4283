"""Who yields to whom, and that the plan says so: settled sizes, missed deadlines, backfill."""

from scheduler.policies.interface import Figure, Plan, Reason, Snapshot
from scheduler.policies.registry import make_policy
from scheduler.policies.tide import Tide
from tests.snapshots import Job, Pool, faults, snapshot

NOW_S = 10_000.0


#: Sharing by right even where it could share a pool freely.
BY_RIGHT = Tide(flow=None, timely=None)


def plan(seen: Snapshot, name: str = "tide") -> Plan:
    found = (BY_RIGHT if name == "tide" else make_policy(name)).plan(seen)
    assert faults(seen, found) == []
    return found


def reason(found: Plan, subject: str) -> Reason:
    return next(item for item in found.reasons if item.subject == subject)


def sizes(found: Plan) -> dict[str, int]:
    return {job: target.size if target else 0 for job, target in found.targets.items()}


def test_tide_says_whom_a_backfilled_gang_passes() -> None:
    jobs = [
        Job("run", work_s=4000, sizes=(4,), power=1.0, held={"train-000": 4}),
        Job("head", sizes=(8,), priority=99, submit_s=1, waiting_since_s=NOW_S - 60),
        Job("short", work_s=400, sizes=(4,), submit_s=3),
    ]
    for name in ("tide", "fifo"):
        given = reason(plan(snapshot([Pool("train")], jobs), name), "short")
        assert (given.verb, given.rule, given.lost_to) == ("starts", "gang.backfilled", ())
        told = {figure.name: figure.value for figure in given.figures}
        assert told["head_gpus"] == told["gpus_first_wanted_by:head"] == 8
        assert told["head_waited_s"] == 60


def test_a_share_is_explained_by_the_deadline() -> None:
    due = Job("due", 3500, (1, 2, 4, 6), 0.7, held={"train-000": 2}, deadline_s=NOW_S + 1100)
    best = Job("best", 1000, (1, 2, 4, 6), 0.7, held={"train-000": 6})
    found = plan(snapshot([Pool("train")], [due, best], sizes=(1, 2, 4, 6, 8)))
    given = reason(found, "due")
    assert (given.verb, given.rule) == ("scales_out", "deadline.share")
    told = {figure.name: figure.value for figure in given.figures}
    assert (told["share_gpus"], told["deadline_s"]) == (6, NOW_S + 1100)
    assert NOW_S < told["share_end_s"] <= NOW_S + 1100


def test_a_deadline_that_is_missed_anyway_keeps_no_gang_waiting() -> None:
    """A deadline that can be met keeps its share; one that cannot gives up all above its base."""
    for left_s, starts in ((1100, False), (100, True)):
        due = Job("due", 3500, (2, 4, 6), 0.7, held={"train-000": 6}, deadline_s=NOW_S + left_s)
        found = plan(snapshot([Pool("train")], [due, Job("new", sizes=(4,))], sizes=(2, 4, 6, 8)))
        assert sizes(found) == ({"due": 4, "new": 4} if starts else {})
        if not starts:
            given = reason(found, "new")
            assert given.figures[1:] == (Figure("promised_gpus", 4),)
            assert [(need.have, need.want) for need in given.needs] == [(2, 4)]


def test_a_job_that_grew_a_moment_ago_shrinks_only_for_a_base() -> None:
    """Its GPUs hardly help it and would help the other more, which has to wait five minutes."""
    for ago_s, shrinks in ((299, False), (301, True)):
        grown = Job("grown", 90_000, (1, 7), 0.05, held={"train-000": 7}, changed_s=NOW_S - ago_s)
        other = Job("other", 90_000, (1, 4), 1.0, held={"train-000": 1})
        found = plan(snapshot([Pool("train")], [grown, other], sizes=(1, 4, 7)))
        assert sizes(found) == ({"grown": 1, "other": 4} if shrinks else {})
        base = Job("base", sizes=(1,), submit_s=1.0)
        found = plan(snapshot([Pool("train")], [grown, other, base], sizes=(1, 4, 7)))
        assert sizes(found)["grown"] == 1
