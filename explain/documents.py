"""The answer of `why` as plain data, with the sentences that people read.

Moments in seconds since the Unix epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from explain.answer import Answer
from explain.ends import Kept
from explain.history import Line
from explain.moments import day_clock
from explain.progress import Length, Speeds, length_of, outlook, speeds_of
from explain.spans import Wait, ended, missed, missed_because, waits
from explain.story import Given, Reclaim, Stored
from explain.wait_end import wait_end_of
from explain.wording import Wording
from scheduler.policies.interface import Figure

#: So many of the newest reasons are given.
_REASONS = 10


@dataclass(frozen=True, slots=True)
class FigureDocument:
    """A figure that a decision used, in the unit that ends its name; `text`: as people read it."""

    name: str
    label: str
    value: float
    age_s: float
    text: str


@dataclass(frozen=True, slots=True)
class NeedDocument:
    """What there was of something, and what there would have to be; `text`: in words."""

    name: str
    have: float
    want: float
    text: str


@dataclass(frozen=True, slots=True)
class ReasonDocument:
    """A reason, when it was given, and its sentence."""

    at_s: float
    subject: str
    verb: str
    rule: str
    sentence: str
    lost_to: Sequence[str]
    figures: Sequence[FigureDocument]
    needs: Sequence[NeedDocument]


@dataclass(frozen=True, slots=True)
class ReclaimDocument:
    """A node that was called back, and why."""

    node: str
    at_s: float
    due_s: float
    because: ReasonDocument | None


@dataclass(frozen=True, slots=True)
class WaitDocument:
    """A time without GPUs, and the reason that held longest."""

    begin_s: float
    end_s: float
    rule: str | None
    sentence: str | None
    lost_to: Sequence[str]


@dataclass(frozen=True, slots=True)
class LineDocument:
    """A line of the history; the reason behind it, where one was given."""

    at_s: float
    what: str
    detail: str
    rule: str | None
    because: str | None


@dataclass(frozen=True, slots=True)
class OutputDocument:
    """Where the output of the newest workers is: below `agent.workers.folder` of these agents."""

    agents: Sequence[str]
    folder: str


@dataclass(frozen=True, slots=True)
class WaitEndDocument:
    """When a wait may end, by the progress of the jobs that would have ended; `text`: in words."""

    at_s: float
    jobs: Sequence[str]
    guessed: bool  #: One of them declared no total of steps.
    text: str


@dataclass(frozen=True, slots=True)
class WhyDocument:
    """All that is known of a job; of one that the state has forgotten, what the journal has."""

    job: str
    state: str  #: A `JobState`, or `refused`.
    since_s: float
    now_s: float
    origin_s: float  #: When the log began.
    pool: str | None
    gpus: int
    allocation: Mapping[str, Sequence[int]]  #: By node: its GPUs.
    claims: Mapping[str, Sequence[int]] | None  #: By node: GPUs that are held for it.
    step: int | None
    length: Length | None
    left_s: float | None
    needs_s: float | None
    ends_s: float | None
    slack_s: float | None
    curve: Speeds | None
    spec: Mapping[str, Any]
    failure: str | None
    output: OutputDocument | None
    outputs: Kept | None  #: What was kept of what it leaves behind, and where.
    #: What people asked for that decides about it now, by whom, since when, and how it is ended.
    asked: Sequence[str]
    because: ReasonDocument | None
    reclaims: Sequence[ReclaimDocument]
    waits: Sequence[WaitDocument]
    reasons: Sequence[ReasonDocument]
    history: Sequence[LineDocument]
    # What a gateway of an earlier release does not say:
    #: The newest values of what it reports of itself, such as its loss; None: it reports nothing.
    metrics: Mapping[str, float] | None = None
    #: Of one that is over: when, how long it took, whether in time; and if it was late, why.
    ended: Sequence[str] | None = None
    #: Of one that waits: an estimate of when it need not; None: that cannot be said truly.
    wait_end: WaitEndDocument | None = None
    #: The newest checkpoint that the store has, and where; None: none, or workers are simulated.
    checkpoint: Stored | None = None


def why_document(answer: Answer) -> WhyDocument:
    """Give the answer as plain data."""
    wording = Wording(answer.reading.origin_s, answer.work)
    job, now_s = answer.job, answer.now_s
    given, loss = answer.given, answer.loss
    behind = None if given is None else given.reason
    if loss is not None:
        behind = loss.reason
    ahead = None if job is None else outlook(job, now_s)
    return WhyDocument(
        job=answer.story.job,
        state=answer.state,
        since_s=answer.since_s,
        now_s=now_s,
        origin_s=answer.reading.origin_s,
        pool=None if job is None else job.pool,
        gpus=0 if job is None else job.size,
        allocation={} if job is None else job.allocation,
        claims=None if job is None else job.target,
        step=None if job is None else job.step,
        length=None if job is None else length_of(job),
        left_s=None if ahead is None else ahead.left_s,
        needs_s=None if ahead is None else ahead.needs_s,
        ends_s=None if ahead is None else ahead.ends_s,
        slack_s=None if ahead is None else ahead.slack_s,
        curve=None if job is None else speeds_of(job, answer.reading.state.nodes, now_s),
        spec=answer.spec,
        failure=answer.failure or None,
        output=None if answer.output is None else OutputDocument(*answer.output),
        outputs=answer.outputs,
        asked=answer.asked,
        because=None if given is None else reason_document(given, wording),
        reclaims=[
            _reclaim(one, wording) for one in ([] if behind is None else answer.reclaims(behind))
        ],
        waits=[_wait(one, wording) for one in waits(answer.story)],
        reasons=[reason_document(one, wording) for one in answer.story.reasons[-_REASONS:]],
        history=[_line(one, wording) for one in answer.lines],
        metrics=None if job is None else job.metrics,
        ended=_ended(answer),
        wait_end=_wait_end(answer),
        checkpoint=answer.story.checkpoint,
    )


def _wait_end(answer: Answer) -> WaitEndDocument | None:
    found = wait_end_of(answer)
    if found is None:
        return None
    text = found.words(day_clock(found.at_s, answer.reading.origin_s))
    return WaitEndDocument(found.at_s, found.jobs, found.guessed, text)


def _ended(answer: Answer) -> list[str] | None:
    over = ended(answer)
    if over is None:
        return None
    because = missed_because(answer) if missed(answer) else None
    return [f"{answer.state.capitalize()} {over}.", *([] if because is None else [because])]


def reason_document(given: Given, wording: Wording) -> ReasonDocument:
    """Give a reason as plain data, with its sentence."""
    reason = given.reason
    return ReasonDocument(
        given.at_s,
        reason.subject,
        reason.verb,
        reason.rule,
        wording.sentence(reason),
        reason.lost_to,
        [_figure(figure, reason.rule, wording) for figure in reason.figures],
        [NeedDocument(n.name, n.have, n.want, wording.need(n)) for n in reason.needs],
    )


def _figure(figure: Figure, rule: str, wording: Wording) -> FigureDocument:
    name, text, _ = wording.figure(figure, rule)
    return FigureDocument(figure.name, name, figure.value, figure.age_s, text)


def _reclaim(reclaim: Reclaim, wording: Wording) -> ReclaimDocument:
    reason = reclaim.reason
    because = None if reason is None else reason_document(Given(reclaim.at_s, reason), wording)
    return ReclaimDocument(reclaim.node, reclaim.at_s, reclaim.due_s, because)


def _wait(wait: Wait, wording: Wording) -> WaitDocument:
    reason = wait.reason
    if reason is None:
        return WaitDocument(wait.begin_s, wait.end_s, None, None, ())
    said = wording.sentence(reason)
    return WaitDocument(wait.begin_s, wait.end_s, reason.rule, said, reason.lost_to)


def _line(line: Line, wording: Wording) -> LineDocument:
    reason = line.event.reason
    rule, because = (None, None) if reason is None else (reason.rule, wording.sentence(reason))
    return LineDocument(line.at_s, line.what, line.detail, rule, because)
