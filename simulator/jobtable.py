"""What happens to jobs: they come, get GPUs, go on from leg to leg, lose GPUs, end."""

from collections.abc import Sequence

import numpy as np

from simulator.jobcolumns import INF, JobColumns
from simulator.physics.base import Placement


class JobTable(JobColumns):
    """All jobs of a run."""

    # --- comings and goings -------------------------------------------------------------------

    def admit(self, first: int, last: int) -> None:
        """Make jobs [first, last) active."""
        self.active = np.concatenate((self.active, np.arange(first, last)))
        self._names = None

    def drop(self, jobs: Sequence[int]) -> None:
        """Make jobs inactive: they ended, or were refused."""
        keep = np.ones(len(self.active), dtype=np.bool_)
        keep[self.active.searchsorted(jobs)] = False
        self.active = self.active[keep]
        self._names = None

    def is_here(self, job: int, now_s: float) -> bool:
        """Say whether a job has come and not gone."""
        gone = self.end_s[job] < INF or self.refused[job]
        return not gone and bool(self.submit_s[job] <= now_s)

    # --- running ------------------------------------------------------------------------------

    def give(
        self, job: int, placement: Placement, now_s: float, pool: int = 0, travel_s: float = 0.0
    ) -> None:
        """Change a job's allocation, () for none; the same one as before must not be given.

        Args:
            job: Which.
            placement: What it shall hold.
            now_s: The present.
            pool: The pool that is in.
            travel_s: How much longer than its model says it pauses.
        """
        before, count = self.placement[job], self.count
        done = self.progress(job, now_s)
        self.settle(job, now_s)
        self.placement[job] = placement
        held, size = int(self.size[job]), sum(gpus for _, gpus in placement)
        self.size[job] = size
        self.changed_s[job] = now_s
        self._saved[job] = done
        self._pool[job] = pool
        if not size:
            count.preemptions[job] += 1
            self.waiting_since_s[job] = now_s
            self._halt(job, done)
            return
        if not held:
            self.waited_s[job] += now_s - self.waiting_since_s[job]
        starts = self.first_start_s[job] == INF
        if starts:
            self.first_start_s[job] = now_s
        else:
            self.restarts[job] += 1
        if held:
            kind = count.grown if size > held else count.shrunk if size < held else count.moved
            kind[job] += 1
        self._ready_s[job] = now_s + (self.models[job].pause_s(before, placement) + travel_s)
        self._saved_s[job] = self._ready_s[job]
        if starts:
            self.first_ready_s[job] = self._ready_s[job]
        self._turn(job, done, float(self._ready_s[job]))

    def run_on(self, until_s: float) -> float:
        """Begin the legs that follow those due before a moment, as if at their time.

        Nothing but the end of a job is news, and one leg is begun alike whenever that happens.

        Returns:
            When the first job that would end is due, or another leg at that moment or later.
        """
        while True:
            job = int(self.active[self.due_s.take(self.active).argmin()])
            due_s = float(self.due_s[job])
            if due_s >= until_s or self._until[job] >= self.total[job]:
                return due_s
            self.turn(job)

    def turn(self, job: int) -> bool:
        """End a leg that is due; begin the next, or end the job (True)."""
        mark_s, until = float(self._mark_s[job]), float(self._until[job])
        if until < self.total[job]:
            if self._every_s is not None:
                self._saved[job], self._saved_s[job] = self._checkpoint(job, mark_s)
            self._turn(job, until, mark_s)
            return False
        self.settle(job, mark_s)
        self.end_s[job] = mark_s
        self.size[job] = 0
        self._halt(job, until)
        return True

    def _turn(self, job: int, done: float, from_s: float) -> None:
        gpus = tuple(sorted((count for _, count in self.placement[job]), reverse=True))
        leg = self.models[job].leg(done, gpus)
        self._done[job], self._from_s[job] = done, from_s
        speed = leg.speed * float(self.affinity[job, self._pool[job]])
        self._speed[job], self._until[job] = speed, leg.until
        self._stale[job] = True
        if speed <= 0.0:
            self.due_s[job] = self._mark_s[job] = INF
            return
        takes_s = (leg.until - done) / speed
        mark_s = from_s + (
            round(takes_s / self._tick_s) * self._tick_s if self._tick_s else takes_s
        )
        self._mark_s[job] = mark_s
        self.due_s[job] = mark_s if self.eager else from_s + takes_s

    def kill(self, job: int, now_s: float) -> None:
        """Take all from a job, and what it did since its last checkpoint."""
        saved, saved_s = self._checkpoint(job, now_s)
        self.lost_gpu_s[job] += float(self.size[job]) * max(now_s - saved_s, 0.0)
        self.give(job, (), now_s)
        self.count.killed[job] += 1
        self._saved[job] = saved
        self._halt(job, saved)

    def _checkpoint(self, job: int, now_s: float) -> tuple[float, float]:
        """Return the progress of a job's last checkpoint, and when that was."""
        mark_s = float(self._mark(self._ready_s[job : job + 1], now_s)[0])
        if mark_s > self._from_s[job]:  # in the present leg
            return self.progress(job, mark_s), mark_s
        return float(self._saved[job]), float(self._saved_s[job])

    def _halt(self, job: int, done: float) -> None:
        self._done[job] = self._until[job] = done
        self._speed[job] = 0.0
        self.due_s[job] = self._mark_s[job] = INF
        self._stale[job] = True

    def settle(self, job: int, now_s: float) -> None:
        """Book what a job held since its allocation changed; before that changes again."""
        size = float(self.size[job])
        if size:
            since_s = float(self.changed_s[job])
            self._held[job] += now_s - since_s
            self._attained[job] += size * (now_s - since_s)
            paused_s = min(now_s, float(self._ready_s[job])) - since_s
            self.paused_gpu_s[job] += size * max(paused_s, 0.0)

    def close(self, job: int, now_s: float) -> None:
        """Book what a job that does not end in time has had."""
        self.settle(job, now_s)
        if self.size[job]:
            self.changed_s[job] = now_s
        else:
            self.waited_s[job] += now_s - self.waiting_since_s[job]
