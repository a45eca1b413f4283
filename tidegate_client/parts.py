"""What the API's answers are made of. Written by `python -m gateway.client_models`; do not edit.

Moments are in seconds since the Unix epoch, in the log's own time.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Answered(BaseModel):
    """Of gateways of later releases, what is not known here is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Accepted(Answered):
    """What may join besides what the operator's list has: this and nothing else."""

    agent: str
    by: str
    gpu_count: int
    node: str | None = None
    pool: str
    pool_kind: str
    reason: str
    request: str
    since_s: float
    speed_factor: float


class Cordon(Answered):
    """A node that takes no new work, since somebody asked for it."""

    by: str
    reason: str
    request: str
    since_s: float


class Deadlines(Answered):
    """Deadlines of jobs that have ended."""

    met: int
    total: int


class Drain(Answered):
    """A cordoned node that what runs there is leaving."""

    by: str
    by_s: float
    force: bool
    request: str
    since_number: int


class FigureDocument(Answered):
    """A figure that a decision used, in the unit that ends its name; `text`: as people read it."""

    age_s: float
    label: str
    name: str
    text: str
    value: float


class Freeze(Answered):
    """Nodes of which nothing is newly borrowed."""

    by: str
    reason: str
    request: str
    since_s: float
    until_s: float | None = None


class Gpus(Answered):
    """GPUs of nodes in contact."""

    alive: int
    held: int
    loaned: int
    serving: float


class Hold(Answered):
    """A job that is not started, since somebody asked for it."""

    by: str
    reason: str
    request: str
    role: str
    since_s: float


class JobRow(Answered):
    """A job as the state has it, with what can be said of its end."""

    allocation: dict[str, list[int]]
    deadline_s: float | None = None
    end_s: float | None = None
    ends_s: float | None = None
    failures: int
    first_start_s: float | None = None
    gpus: int
    gpus_max: int
    gpus_min: int
    hold: Hold | None = None
    job: str
    left_s: float | None = None
    length: Length
    metrics: dict[str, float] | None = None
    migrations: int
    model: str
    needs_s: float | None = None
    outputs: Kept | None = None
    pool: str | None = None
    position: int | None = None
    preemptions: int
    priority: int
    progress: float
    samples_per_s: float
    set_size: SetSize | None = None
    slack_s: float | None = None
    start_epoch: int = 0
    state: str
    step: int
    submit_s: float
    tenant: str
    total_steps: int | None = None
    waited_s: float | None = None
    why: dict[str, Any] | None = None
    why_in_short: str
    why_in_words: str | None = None


class Kept(Answered):
    """The outputs of a job, and where they are."""

    files: int
    left_out: str
    size_mib: int
    uri: str


class Length(Answered):
    """How many steps a job has in all, and what that is known from."""

    kin_ended: int
    kin_running: int
    kin_took: list[float]
    known_from: str
    steps: float


class LineDocument(Answered):
    """A line of the history; the reason behind it, where one was given."""

    at_s: float
    because: str | None = None
    detail: str
    rule: str | None = None
    what: str


class LoanRow(Answered):
    """A node on loan."""

    due_s: float | None = None
    gpus: int
    gpus_used: int
    loan: str | None = None
    node: str
    pool: str
    recall: Recall | None = None
    since_s: float
    state: str | None = None


class LoanTotals(Answered):
    """How lending went so far."""

    inference_shortfall_gpu_s: float
    loaned_gpu_s: float
    loans_granted: int
    loans_reclaimed: int
    reclaims_late: int


class LogChunk(Answered):
    """A piece of what one worker wrote, as it wrote it."""

    agent: str
    content: str = ""
    end: str | None = None
    epoch: int
    job: str
    note: str = ""
    offset: int
    rank: int
    reader: str
    skipped: int = 0


class NeedDocument(Answered):
    """What there was of something, and what there would have to be; `text`: in words."""

    have: float
    name: str
    text: str
    want: float


class OutputDocument(Answered):
    """Where the output of the newest workers is: below `agent.workers.folder` of these agents."""

    agents: list[str]
    folder: str


class PastLoan(Answered):
    """A loan of a node; moments in seconds since the Unix epoch, None where it did not come."""

    called_entry: int | None = None
    called_s: float | None = None
    due_s: float | None = None
    end_entry: int | None = None
    end_s: float | None = None
    late_s: float = 0.0
    node: str
    pool: str | None = None
    since_s: float | None = None
    state: str = "lent"


class Pause(Answered):
    """A part of what the cell does that it does not do for a time."""

    by: str
    reason: str
    request: str
    since_s: float
    until_s: float | None = None


class Point(Answered):
    """How fast a job is on so many GPUs; steps are those of the declared batch."""

    age_s: float | None = None
    gpus: int
    measured: bool
    samples_per_s: float
    steps_per_s: float


class PolicyInForce(Answered):
    """Which policy decides, and whose word that is."""

    configured: str
    now_s: float
    policy: str
    reason: str
    set_by: str | None = None
    since_s: float | None = None


class PoolRow(Answered):
    """A pool."""

    gpus: int = 0
    held: int = 0
    kind: str
    loaned: int = 0
    nodes: int = 0
    pool: str


class QuotaRow(Answered):
    """What a tenant may have, and has."""

    configured: str | None = None
    gpus: int | None = None
    gpus_held: int
    guaranteed: int
    jobs: int | None = None
    jobs_holding: int
    reason: str
    set_by: str | None = None
    since_s: float | None = None
    tenant: str


class ReasonDocument(Answered):
    """A reason, when it was given, and its sentence."""

    at_s: float
    figures: list[FigureDocument]
    lost_to: list[str]
    needs: list[NeedDocument]
    rule: str
    sentence: str
    subject: str
    verb: str


class Recall(Answered):
    """A node on loan that is to be with its owner by then."""

    by: str
    due_s: float
    request: str
    since_number: int


class ReclaimDocument(Answered):
    """A node that was called back, and why."""

    at_s: float
    because: ReasonDocument | None = None
    due_s: float
    node: str


class RefusedCommand(Answered):
    """A command that an agent did not obey."""

    agent: str
    at_s: float
    is_open: bool
    kind: str
    reason: str
    subject: str
    text: str
    tries: int


class SetSize(Answered):
    """The one number of GPUs that a job may run on."""

    by: str
    gpus: int
    reason: str
    request: str
    since_s: float


class Speeds(Answered):
    """How fast a job is at each size, as far as that was learned of it."""

    affinity: dict[str, float]
    learned_s: float | None = None
    points: list[Point]
    pool: str | None = None


class Stay(Answered):
    """A stretch of time on the same GPUs. Moments in seconds since the Unix epoch."""

    gpus: int
    how: str
    nodes: list[str]
    pool: str
    since_s: float
    step: int | None = None
    until_s: float | None = None


class Stored(Answered):
    """A checkpoint of a job that the store has; `uri` is the folder that it is in."""

    epoch: int
    size_mib: int
    step: int
    uri: str


class WaitDocument(Answered):
    """A time without GPUs, and the reason that held longest."""

    begin_s: float
    end_s: float
    lost_to: list[str]
    rule: str | None = None
    sentence: str | None = None


class WaitEndDocument(Answered):
    """When a wait may end, by the progress of the jobs that would have ended; `text`: in words."""

    at_s: float
    guessed: bool
    jobs: list[str]
    text: str
