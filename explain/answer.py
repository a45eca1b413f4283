"""What a log says: of a cell (`Reading`), and of one job, its state and its story (`Answer`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from explain.ends import Kept, outputs_of
from explain.history import Line, history
from explain.moments import day_clock, duration, is_demo, is_simulated
from explain.refusals import Refusal, in_words
from explain.standing import NO_NODE, lacks_nodes, standing_of, waits_for_nodes
from explain.story import Event, Given, Reclaim, Story
from explain.work import Work, work_of
from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import JobState
from scheduler.policies.interface import Reason

#: A scheduler says at least once a minute that it leads: `scheduler.heartbeat_s` is 60 at most.
_OLD_S = 180.0
#: What ends a job.
_ENDS = ("JobCompleted", "JobFailed", "JobCancelled")
#: How an order ended of which nothing began; before it the order's kind.
_NEVER_BEGUN = (" refused: ", " was never acknowledged")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says of one cell. Moments in seconds since the Unix epoch."""

    cell: str
    state: ClusterState
    origin_s: float  #: When the log began; day 0 is the day of it.
    newest_s: float  #: Of the newest record; a log of simulated time lives in that time.
    heard_s: float  #: When a scheduler last decided, or said that it leads.

    @property
    def simulated(self) -> bool:
        """Whether the log is a demo's or a simulation's, which live in times of their own."""
        return self.virtual or is_demo(self.origin_s or self.newest_s)

    @property
    def virtual(self) -> bool:
        """Whether it is the record of `tidegate simulate`: nobody goes on with that."""
        return self.state.number > 0 and is_simulated(self.origin_s) and not is_demo(self.origin_s)

    def as_of(self) -> str:
        """Say which moment the state is of."""
        zone = "" if self.simulated else " UTC"
        return f"as of {day_clock(self.state.now_s, self.origin_s)}{zone}"

    def age(self, now_s: float) -> str | None:
        """Say that no scheduler spoke for long, if so; `now_s` is real time."""
        age_s = now_s - self.heard_s
        if self.state.number and not self.simulated and age_s >= _OLD_S:
            return f"The newest entry is {duration(age_s)} old; is a scheduler running?"
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """All that is known of a job."""

    reading: Reading
    story: Story
    job: Job | None  #: None once it is forgotten; the journal still has its story.
    lines: tuple[Line, ...]

    @classmethod
    def of(cls, reading: Reading, story: Story) -> "Answer | None":
        """Put together what a state and the journal before it say; None: neither knows the job."""
        job = reading.state.jobs.get(story.job)
        if job is None and not story.events:
            return None
        return cls(reading, story, job, tuple(history(story)))

    @property
    def now_s(self) -> float:
        """The moment of the answer."""
        return self.reading.state.now_s

    @property
    def state(self) -> str:
        """What it is doing: a `JobState`, or `refused`."""
        if self.job is not None:
            return self.job.state.value
        last = self.story.last(*_ENDS)
        ends = {"JobCompleted": "completed", "JobFailed": "failed", "JobCancelled": "cancelled"}
        return "refused" if last is None else ends[last.kind]

    @property
    def since_s(self) -> float:
        """Since when it is doing that."""
        job = self.job
        if job is not None and job.state is JobState.QUEUED:
            return job.waiting_since_s
        kinds = {
            JobState.STARTING: ("GangStarting",),
            JobState.RUNNING: ("GangRunning",),
            JobState.SCALING: ("GangScaling",),
            JobState.CHECKPOINTING: ("GangCheckpointing",),
            JobState.STOPPING: ("GangStopping", "GangCheckpointing"),
            JobState.MIGRATING: ("JobMigrating",),
        }
        # Of one that is over its end: what is told after it, as of an id that was submitted again,
        # is of others.
        last = self.story.last(*(_ENDS if job is None else kinds.get(job.state, _ENDS)))
        if last is None:
            last = self.story.events[-1] if self.story.events else None
        return self.now_s if last is None else last.at_s

    @property
    def spec(self) -> Mapping[str, Any]:
        """What its tenant asked for."""
        return self.story.spec

    @property
    def work(self) -> Work:
        """How its steps are written."""
        return work_of(self.spec)

    @property
    def given(self) -> Given | None:
        """The reason that explains what it is doing now."""
        job, state = self.job, self.reading.state
        if job is not None and waits_for_nodes(state, job) and lacks_nodes(state):
            return Given(self.now_s, Reason(job.id, "waits", NO_NODE))
        if job is not None and job.state in (JobState.QUEUED, JobState.MIGRATING):
            return self.story.latest
        for given in reversed(self.story.reasons):
            if given.reason.verb not in ("waits", "keeps"):
                return given
        return self.story.latest

    @property
    def loss(self) -> Event | None:
        """What took the GPUs of a job that had some and waits again."""
        if self.job is None or self.job.state is not JobState.QUEUED:
            return None
        for line in reversed(self.lines):
            if line.event.kind in ("JobQueued", "GangStarting"):
                return line.event if line.event.kind == "JobQueued" else None
        return None

    @property
    def disobeyed(self) -> str:
        """Say who did not start or resize a job that has no GPUs since; empty if all obeyed."""
        began = self.story.last("GangStarting", "GangScaling")
        end = self.story.last("GangStopping")
        if began is None or end is None or end.at_s < began.at_s or self.job is None:
            return ""
        said = str(end.fields.get("detail", ""))
        order = next((f"{kind}Gang" for kind in ("Start", "Scale") if said.startswith(kind)), "")
        if not order or not said.removeprefix(order).startswith(_NEVER_BEGUN):
            return ""
        nodes = self.reading.state.nodes
        places = sorted(began.fields["allocation"])
        who = dict.fromkeys(nodes[name].agent if name in nodes else name for name in places)
        reason = said.partition(_NEVER_BEGUN[0])[2]
        one = Refusal(", ".join(who), order, self.story.job, end.at_s, 0, reason)
        return in_words(one, self.reading.origin_s)

    @property
    def asked(self) -> list[str]:
        """What people asked for that decides about it now."""
        if self.job is None:
            return []
        said = standing_of(self.reading.state, self.job, self.reading.origin_s)
        return [*self._drained, *said]

    @property
    def _drained(self) -> list[str]:
        """Say whose drains took the GPUs that a job that goes on had last, or moved it."""
        ended = self.state in ("completed", "failed", "cancelled")
        for event in [] if ended else reversed(self.story.events):
            if event.drains:
                what = "moved" if event.kind == "GangScaling" else "told to leave its GPUs"
                when = day_clock(event.at_s, self.reading.origin_s)
                return [f"{what} at {when}, since {one}" for one in event.drains]
            if event.kind in ("GangStarting", "GangScaling"):
                break
        return []

    @property
    def failure(self) -> str:
        """Why it failed for good; empty if it did not."""
        if self.state != "failed":
            return ""
        return next(line.detail for line in reversed(self.lines) if line.what == "failed for good")

    @property
    def output(self) -> tuple[tuple[str, ...], str] | None:
        """Who has what its newest workers wrote, and where below `agent.workers.folder`.

        Agents, or nodes that are no longer known; None of a job that never ran a program, or whose
        agent did not take the order to.
        """
        program = self.spec.get("program")
        # Workers that are told to become more or fewer stay; others are started anew.
        stays = program is not None and program.get("resize") == "in_place"
        kinds = {"GangStarting": "StartGang", **({} if stays else {"GangScaling": "ScaleGang"})}
        started = self._begun(kinds)
        if started is None or program is None:
            return None
        nodes = self.reading.state.nodes
        allocation = sorted(started.fields["allocation"])
        who = dict.fromkeys(nodes[name].agent if name in nodes else name for name in allocation)
        return tuple(who), f"runs/{self.story.job}/{started.fields['epoch']}/logs"

    def _begun(self, kinds: Mapping[str, str]) -> Event | None:
        """Give the newest start of workers that an agent has taken on and carried out.

        Args:
            kinds: Of events that start workers, each with the kind of its order.
        """
        starts: list[Event] = []
        for event in self.story.events:
            if event.kind in kinds and event.fields.get("epoch") not in self.story.unstarted:
                starts.append(event)
            elif event.kind == "GangStopping" and starts:
                order, said = kinds[starts[-1].kind], str(event.fields.get("detail", ""))
                if said.startswith(tuple(f"{order}{end}" for end in _NEVER_BEGUN)):
                    starts.pop()
        open_ = {
            one.data.get("epoch")
            for one in self.reading.state.commands.values()
            if one.subject == self.story.job and one.kind in kinds.values()
        }
        if starts and starts[-1].fields.get("epoch") in open_:
            starts.pop()  # nobody has answered it yet
        return starts[-1] if starts else None

    @property
    def outputs(self) -> Kept | None:
        """The outputs that were kept of it, if any were."""
        event = self.story.last("OutputsKept")
        return None if event is None else outputs_of(event.fields)

    def reclaims(self, reason: Reason) -> tuple[Reclaim, ...]:
        """Give the reclaims that drove what was done for this reason."""
        for event in self.story.events:
            if event.reason is reason and event.reclaims:
                return event.reclaims
        return ()
