"""When a wait may end because other jobs end: said as an estimate, and only where it is known."""

from dataclasses import replace

import orjson
import pytest

from console.panel import plain_panel
from explain.answer import Answer
from explain.documents import why_document
from explain.wait_end import WaitEnd, end_of, wait_end
from explain.why_text import plain_why
from scheduler.core.state import Job
from scheduler.policies.interface import Need, Reason, Target
from tests.builders import progressed
from tests.console.stories import Teller, job, node, sized
from tests.unit.test_explain import reading_of, story_of

WAITS = Reason(
    "waiter", "waits", "gang.capacity", (), ("first", "second"), (Need("free_gpus", 0.0, 3.0),)
)


def told() -> Teller:
    """Two jobs have two GPUs each of the only node; 900 and 600 of 1,000 steps are left of them."""
    t = Teller()
    t.feed(node("n0", "training", "training"))
    for name in ("first", "second", "waiter"):
        t.feed(job(name))
    places = {name: Target("training", (("n0", 2),)) for name in ("first", "second")}
    t.decides(*(sized(name, "starts", "fifo.order", 0, 2) for name in places), targets=places)
    for name in places:
        t.up(name)
    for name, step in (("first", 100), ("second", 400)):
        t.feed(progressed(step, name, t.state.jobs[name].epoch, 10.0))
    t.decides(WAITS)
    return t


def found(t: Teller, **over: object) -> WaitEnd | None:
    reason = replace(WAITS, **over)  # type: ignore[arg-type]
    return wait_end(t.state.jobs["waiter"], reason, t.state.jobs, t.state.now_s)


def test_it_ends_when_enough_of_those_who_have_the_gpus_have_ended() -> None:
    t = told()
    now_s = t.state.jobs["first"].step_at_s
    both, one = found(t), found(t, needs=(Need("free_gpus", 1.0, 3.0),))
    assert both == WaitEnd(now_s + 900.0, ("second", "first"), guessed=False)
    assert one == WaitEnd(now_s + 600.0, ("second",), guessed=False)
    answer = Answer.of(reading_of(t), story_of(t, "waiter"))
    assert answer is not None
    text = plain_panel(answer, 300)
    assert "second  running now, 2 GPUs of training (smallest size 1), ends about d0 06:10" in text
    said = "Estimate: there is enough about d0 06:15, when second and first have ended, as they run"
    assert said in text
    assert "if nobody else has it first" in text
    document = why_document(answer)
    assert document.wait_end is not None
    assert (document.wait_end.at_s, document.wait_end.jobs) == (now_s + 900.0, ("second", "first"))
    assert document.wait_end.text.startswith(said)
    assert said in plain_why(orjson.loads(orjson.dumps(document)), 300)


def _late(jobs: dict[str, Job]) -> None:
    jobs["first"].step_at_s -= 7200.0


def _silent(jobs: dict[str, Job]) -> None:
    jobs["first"].samples_per_s = 0.0


def _elsewhere(jobs: dict[str, Job]) -> None:
    jobs["first"].pool = "serving"


def _promised(jobs: dict[str, Job]) -> None:
    jobs["waiter"].target = {"n0": [0]}


@pytest.mark.parametrize("spoil", [_late, _silent, _elsewhere, _promised])
def test_where_it_is_not_known_nothing_is_said(spoil: object) -> None:
    t = told()
    spoil(t.state.jobs)  # type: ignore[operator]
    assert found(t) is None
    if spoil in (_late, _silent):
        assert end_of(t.state.jobs["first"], t.state.now_s) is None


def test_what_no_end_of_others_mends_has_no_estimate() -> None:
    t = told()
    for needs in (
        (),
        (Need("free_gpus", 0.0, 9.0),),
        (Need("backoff_s", 30.0, 0.0),),
        (Need("gpus", 0.0, 1.0),),
        (Need("free_gpus", 0.0, 1.0), Need("quota_gpus", 0.0, 1.0)),
    ):
        assert found(t, needs=needs) is None
    assert found(t, lost_to=("nobody",)) is None


def test_a_guessed_length_is_said_to_be_guessed() -> None:
    t = told()
    t.state.jobs["second"].total_steps = None
    end = found(t)
    assert end is not None
    assert "by a guess of how long that is" in end.words("d0 06:15")
