"""Jobs as they really are, and ideal agents that run them: commands in, a physics, events out.

An ideal agent never fails, forgets or refuses. With an *instant* physics, that of a published
simulator, a command takes effect in the moment in which it comes: GPUs that a gang leaves are free
at once, and a gang that changes runs on, for the scheduler, and only makes no progress for as long
as the physics says. Otherwise the agents are as real ones: a gang that leaves first saves, GPUs
are free when it has or its grace is over, and a gang that starts or changes is not up before its
pause is over.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from scheduler.core.job_work import LEAST_S
from scheduler.core.stimuli import Curve, CurvesLearned, Length, LengthsLearned
from scheduler.estimator.lengths import Lengths
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import GangHeld, JobProgressed, StopReason, WorkerStarted, WorkerStopped
from schemas.values import NodeGpus
from simulator.driver import START_S, Say
from simulator.gang import Allocation, Gang, Ground, Witness, steps_of, submission
from simulator.options import Options, ladder
from simulator.physics.base import Entry, Placement

TENANT, ESTIMATOR = "/tenants/simulated", "/estimators/simulated"


class Gangs:
    """All jobs of a run, and what is about to happen to them."""

    def __init__(
        self,
        entries: Sequence[Entry],
        layout: Ground,
        account: Witness,
        options: Options,
    ) -> None:
        """Begin with all jobs to come, by submission.

        Where policies decide at events, a segment's rounded end counts, and not its exact end.
        """
        self.gangs = [Gang(one, number, steps_of(one)) for number, one in enumerate(entries)]
        #: By id; where an id is given again, whose it is.
        self.at = {gang.entry.id: gang for gang in reversed(self.gangs)}
        self._layout, self._account = layout, account
        self._sizes = options.sizes or ladder(options.cluster, [one.requested for one in entries])
        self._instant, self._eager = options.instant, options.on_events
        self._tick_s, self._every_s = options.tick_s, options.checkpoint_every_s
        self._heap: list[tuple[float, int, int, int, Callable[[Gang, float], None]]] = []
        self._pushed = 0
        self._came = 0
        self._stale: dict[int, None] = {}  # jobs of whose speed something is to be told
        self._moved: dict[int, None] = {}  # gangs whose progress is to be told
        self._stamped: dict[int, None] = {}
        #: Of jobs that declare no total, by kin: how far they came, and who is not over.
        self._lengths: dict[str, tuple[Lengths, dict[int, None]]] = {}
        self._say: Say

    # --- time ---------------------------------------------------------------------------------

    def begin(self, say: Say) -> None:
        """Say nothing yet: all jobs are to come."""
        self._say = say

    @property
    def next_s(self) -> float:
        """When something happens next; inf if nothing does."""
        while self._heap and self._heap[0][3] != self.gangs[self._heap[0][2]].age:
            heapq.heappop(self._heap)  # void
        came_s = math.inf
        if self._came < len(self.gangs):
            came_s = START_S + self.gangs[self._came].entry.submit_s
        return min(came_s, self._heap[0][0]) if self._heap else came_s

    def happen(self, now_s: float) -> None:
        """Let everything happen that is due: segments end first, then jobs come."""
        while self._heap and self._heap[0][0] <= now_s:
            _, _, number, age, act = heapq.heappop(self._heap)
            gang = self.gangs[number]
            if age == gang.age:
                act(gang, now_s)
        while self._came < len(self.gangs):
            gang = self.gangs[self._came]
            if START_S + gang.entry.submit_s > now_s:
                break
            self._came += 1
            self._submit(gang)

    def _then(self, gang: Gang, at_s: float, act: Callable[[Gang, float], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._pushed, gang.number, gang.age, act))

    # --- what is said of jobs -----------------------------------------------------------------

    def _submit(self, gang: Gang) -> None:
        self._say(submission(gang.entry, self._sizes), TENANT)
        gang.stamp = gang.entry.model.stamp
        if gang.stamp is not None:
            self._stamped[gang.number] = None
        self._stale[gang.number] = None
        if gang.entry.kin:
            self._lengths.setdefault(gang.entry.kin, (Lengths(), {}))[1][gang.number] = None

    def report(self, now_s: float) -> None:
        """Say how far gangs are that changed, and what is known of their speed."""
        for number in self._stamped:
            gang = self.gangs[number]
            if (stamp := gang.entry.model.stamp) != gang.stamp:
                gang.stamp = stamp
                # What is left is told as of the step that was told last.
                self._stale[number] = self._moved[number] = None
        for lengths, kin in self._lengths.values():  # all of them hear of it when one is further
            for number in kin:
                lengths.came(self.gangs[number].entry.id, self.gangs[number].step(now_s))
            if lengths.news():
                self._stale |= kin
                self._moved |= kin
        for number in sorted(self._moved):
            gang = self.gangs[number]
            if gang.is_up and now_s < gang.ready_s:
                continue  # it stands still, as it did when it was last spoken of
            if gang.is_up:
                self.tell(gang, now_s)
            del self._moved[number]
        named = [self.gangs[number] for number in sorted(self._stale)]
        curves = {gang.entry.id: self._curve(gang, now_s) for gang in named if not gang.is_over}
        self._stale.clear()
        if curves:
            self._say(CurvesLearned(curves), ESTIMATOR)
        found = {
            gang.entry.id: self._length(gang, curves[gang.entry.id], now_s)
            for gang in named
            if gang.entry.kin and not gang.is_over
        }
        if found:
            self._say(LengthsLearned(found), ESTIMATOR)

    def _length(self, gang: Gang, curve: Curve, now_s: float) -> Length:
        """Estimate what is left of a job, as the service does (`scheduler.estimator.lengths`)."""
        # At the smallest size that it may have.
        rate = next((rate for _, rate in curve["points"] if rate > 0.0), 1.0)
        least = LEAST_S * rate / curve["per_step"]
        lengths, _ = self._lengths[gang.entry.kin]
        return lengths.left(gang.entry.id, gang.step(now_s), least)

    def _curve(self, gang: Gang, now_s: float) -> Curve:
        entry = gang.entry
        observed = entry.model.observed(gang.progress(now_s), self._sizes)
        rates: list[float] = observed.rates.tolist()
        return Curve(
            points=[[size, rate] for size, rate in zip(self._sizes, rates, strict=True)],
            per_step=observed.per_progress / gang.steps,
            left=None if entry.kin else observed.remaining,
            measured=[],
            affinity=dict(entry.affinity),
        )

    def tell(self, gang: Gang, now_s: float) -> None:
        """Say how far a gang is, how fast, and what it has saved."""
        gang.said = step, saved = self._steps(gang, now_s)
        self._say(
            JobProgressed.model_construct(
                job=gang.entry.id,
                epoch=gang.epoch,
                step=step,
                samples_per_s=gang.speed * gang.samples if now_s >= gang.ready_s else 0.0,
                checkpoint_step=saved,
                checkpoint_cost_s=gang.entry.checkpoint_cost_s,
            ),
            gang.agent,
        )

    def _tell_stop(self, gang: Gang, now_s: float) -> None:
        """Say how far a gang is that stands still from now on, if that is news."""
        if gang.said != self._steps(gang, now_s):
            self.tell(gang, now_s)

    def _steps(self, gang: Gang, now_s: float) -> tuple[int, int]:
        step = gang.step(now_s)
        return step, min(step, int(self._checkpoint(gang, now_s)[0] * gang.steps))

    def _workers(
        self, gang: Gang, on: Allocation, epoch: int, reason: StopReason, step: int
    ) -> None:
        for node, gpus in on.items():
            self._say(
                WorkerStopped.model_construct(
                    job=gang.entry.id, epoch=epoch, node=node, gpus=gpus, reason=reason, step=step
                ),
                gang.agent,
            )

    def held_on(self, node: str) -> list[GangHeld]:
        """List what runs on a node."""
        return [
            GangHeld(
                job=gang.entry.id, epoch=epoch, gpus=on[node], step=int(gang.done * gang.steps)
            )
            for gang in self.gangs[: self._came]
            for epoch, on in ((gang.epoch, gang.allocation), *gang.leaving)
            if node in on
        ]

    # --- commands -----------------------------------------------------------------------------

    def start(self, order: StartGang, now_s: float) -> None:
        """Run a job from its newest checkpoint."""
        gang = self.at[order.job]
        before, gang.before = gang.before, ()
        gang.allocation, gang.leaving = _allocation(order.placement), []
        gang.epoch, gang.said = order.epoch, (order.step, order.step)
        after = self._layout.placement(gang.allocation)
        # An agent that takes time has taken it to save when the gang left.
        pause_s = gang.entry.model.pause_s(before if self._instant else (), after)
        site = self._layout.site(after)
        if gang.site not in (-1, site):
            pause_s += self._layout.travel_s(gang.entry.checkpoint_mib, gang.site, site)
        gang.site, gang.agent = site, f"/agents/{self._layout.agent_of(after[0][0])}"
        self._change(gang, before, after, now_s, pause_s)

    def scale(self, order: ScaleGang, now_s: float) -> None:
        """Run a job on other GPUs; those it gives up are free when it has saved."""
        gang = self.at[order.job]
        old, old_epoch, gang.done = gang.allocation, gang.epoch, gang.progress(now_s)
        before = self._layout.placement(old)
        gang.allocation, gang.epoch = _allocation(order.placement), order.epoch
        kept = {(node, gpu) for node, gpus in gang.allocation.items() for gpu in gpus}
        left = {
            node: rest
            for node, gpus in old.items()
            if (rest := [gpu for gpu in gpus if (node, gpu) not in kept])
        }
        after = self._layout.placement(gang.allocation)
        self._change(gang, before, after, now_s, gang.entry.model.pause_s(before, after))
        self._tell_stop(gang, now_s)
        if left:
            gang.leaving.append((old_epoch, left))
            self._later(gang, now_s, self._leave_s(gang), self._left)

    def stop(self, order: StopGang, now_s: float) -> None:
        """Leave all GPUs, with a checkpoint or without."""
        gang = self.at[order.job]
        if order.epoch != gang.epoch or not (gang.allocation or gang.leaving):
            return
        if gang.saves and order.checkpoint:
            return
        gang.before = self._layout.placement(gang.allocation) if order.reason == "migrated" else ()
        saves = order.checkpoint and gang.runs
        if saves:
            gang.saved, gang.saved_s = self._checkpoint(gang, now_s)
        else:
            self._lose(gang, now_s)
        self._halt(gang, now_s, gang.progress(now_s))
        gang.saves = saves
        reason: StopReason = "migrated" if order.reason == "migrated" else "preempted"
        leave_s = self._leave_s(gang) if saves else 0.0
        if leave_s > 0.0:
            self._tell_stop(gang, now_s)
        end = self._cut_off if leave_s > order.grace_s else self._gone
        self._later(gang, now_s, min(leave_s, order.grace_s), partial(end, reason=reason))

    def kill(self, node: str, now_s: float) -> None:
        """Let all gangs on a node lose what they did since their newest checkpoint."""
        for gang in self.gangs[: self._came]:
            for _, left in gang.leaving:
                left.pop(node, None)
            if node not in gang.allocation:
                continue
            if gang.is_up:
                self.tell(gang, now_s)
            saving = gang.saves
            self._lose(gang, now_s)
            self._halt(gang, now_s, gang.done)
            del gang.allocation[node]
            if saving:  # what is left of it has nothing to wait for
                self._gone(gang, now_s, reason="preempted")

    # --- what follows -------------------------------------------------------------------------

    def _change(
        self, gang: Gang, before: Placement, after: Placement, now_s: float, pause_s: float
    ) -> None:
        gang.age += 1
        gang.gpus = tuple(sorted((count for _, count in after), reverse=True))
        gang.pace = self._layout.speed(gang.site, gang.entry.affinity)
        gang.runs, gang.saves = True, False
        gang.ready_s = now_s + pause_s
        gang.saved, gang.saved_s = gang.done, gang.ready_s
        self._account.changed(gang.number, gang.site, before, after, now_s, gang.ready_s)
        gang.is_up = self._instant
        if self._instant:
            self._up(gang, now_s)
        else:
            self._then(gang, gang.ready_s, self._up)
        self._leg(gang, gang.done, gang.ready_s)

    def _up(self, gang: Gang, now_s: float) -> None:
        gang.is_up = True
        self._moved[gang.number] = None
        step = int(gang.done * gang.steps)
        for node, gpus in gang.allocation.items():
            self._say(
                WorkerStarted.model_construct(
                    job=gang.entry.id, epoch=gang.epoch, node=node, gpus=gpus, step=step
                ),
                gang.agent,
            )

    def _leg(self, gang: Gang, done: float, from_s: float) -> None:
        """Begin a segment."""
        segment = gang.entry.model.segment(done, gang.gpus)
        gang.done, gang.from_s, gang.until = done, from_s, segment.until
        gang.speed = segment.speed * gang.pace
        self._stale[gang.number] = self._moved[gang.number] = None
        if gang.speed <= 0.0:
            gang.mark_s = math.inf
            return
        takes_s = (segment.until - done) / gang.speed
        tick_s = self._tick_s
        gang.mark_s = from_s + (round(takes_s / tick_s) * tick_s if tick_s else takes_s)
        self._then(gang, gang.mark_s if self._eager else from_s + takes_s, self._turn)

    def _turn(self, gang: Gang, now_s: float) -> None:
        """End a segment, and begin the next or end the job."""
        if gang.until < gang.entry.model.total:
            gang.saved, gang.saved_s = self._checkpoint(gang, gang.mark_s)
            self._leg(gang, gang.until, gang.mark_s)
            return
        gang.is_over = True
        self._stamped.pop(gang.number, None)
        self._account.ended(gang.number, gang.mark_s)
        self._halt(gang, now_s, gang.until)
        step = int(gang.entry.model.total * gang.steps)
        if gang.entry.kin:
            lengths, kin = self._lengths[gang.entry.kin]
            lengths.ended(gang.entry.id, step)
            del kin[gang.number]
        allocation, gang.allocation = gang.allocation, {}
        self._left(gang, now_s)
        self._workers(gang, allocation, gang.epoch, "completed", max(1, step))

    def _halt(self, gang: Gang, now_s: float, done: float) -> None:
        gang.age += 1
        gang.done = gang.until = done
        gang.from_s, gang.speed, gang.mark_s = now_s, 0.0, math.inf
        gang.is_up = gang.runs = gang.saves = False
        self._stale[gang.number] = None

    def _lose(self, gang: Gang, now_s: float) -> None:
        worked_s, saved, saved_s = now_s, gang.saved, gang.saved_s
        if gang.saves:
            worked_s = gang.from_s
        else:
            saved, saved_s = self._checkpoint(gang, now_s)
        if gang.runs or gang.saves:
            self._account.killed(gang.number, max(worked_s - saved_s, 0.0))
        gang.done = gang.until = gang.saved = saved
        gang.from_s, gang.speed = now_s, 0.0

    def _checkpoint(self, gang: Gang, now_s: float) -> tuple[float, float]:
        """Give the progress of the newest checkpoint by then, and when it was written."""
        ran_s = now_s - gang.ready_s
        if self._every_s < math.inf and ran_s > 0.0:
            mark_s = gang.ready_s + ran_s // self._every_s * self._every_s
            if mark_s > gang.from_s:
                return gang.progress(mark_s), mark_s
        return gang.saved, gang.saved_s

    def _leave_s(self, gang: Gang) -> float:
        return 0.0 if self._instant else gang.entry.checkpoint_cost_s

    def _later(
        self, gang: Gang, now_s: float, after_s: float, act: Callable[[Gang, float], None]
    ) -> None:
        if after_s > 0.0:
            self._then(gang, now_s + after_s, act)
        else:
            act(gang, now_s)

    def _left(self, gang: Gang, now_s: float) -> None:
        leaving, gang.leaving = gang.leaving, []
        for epoch, allocation in leaving:
            self._workers(gang, allocation, epoch, "scaled_in", int(gang.done * gang.steps))

    def _cut_off(self, gang: Gang, now_s: float, *, reason: StopReason) -> None:
        """End a gang whose grace is over before it has saved."""
        self._lose(gang, now_s)
        self._gone(gang, now_s, reason=reason)

    def _gone(self, gang: Gang, now_s: float, *, reason: StopReason) -> None:
        gang.saves = False
        allocation, gang.allocation = gang.allocation, {}
        self._left(gang, now_s)
        self._workers(gang, allocation, gang.epoch, reason, int(gang.done * gang.steps))


def _allocation(placement: Iterable[NodeGpus]) -> Allocation:
    return {part.node: list(part.gpus) for part in placement}
