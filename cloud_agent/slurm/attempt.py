"""One run on Slurm: its job is submitted once, followed and stopped, until it is surely over.

A missing answer proves nothing. While Slurm does not answer, only the files of the run are read;
its next listing decides. A run is over when Slurm lists it as ended, or no longer knows it; a job
that is COMPLETING is not over.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from cloud_agent.clusters.attempt import Attempt as ClusterAttempt, Work
from cloud_agent.options import SlurmOptions
from cloud_agent.slurm.commands import Slurm, SlurmError, SlurmJob
from cloud_agent.slurm.run import Run, progress_names
from cloud_agent.slurm.scripts import sbatch_options, write_scripts
from runtime.executors.attempt import Outcome
from schemas.programs import Program

#: Slurm is asked for the same again after this long.
_AGAIN_S = 5.0
#: Beyond the grace, for the keepers to end their workers; then the Slurm job is cancelled.
_OVERDUE_S = 5.0
#: Failed workers are looked for this often; at the second time the rest of the gang is ended.
_LOOK_S = 30.0
#: How often Slurm may refuse a submission, while it answers and lists no such job.
_REFUSALS = 3
#: What Slurm's states of a job that ended badly mean.
_WORDS = {
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "somebody other than the agent cancelled its Slurm job",
    "DEADLINE": "Slurm's deadline for the job has passed",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "a worker used more memory than Slurm allows it",
    "PREEMPTED": "Slurm preempted it for another job",
    "REVOKED": "Slurm runs the job on another cluster",
    "TIMEOUT": "Slurm's time limit for the job has passed",
}
_ERROR_MAX = 1000

#: Slurm's jobs by (job, epoch); None: Slurm does not answer.
Listing = Mapping[tuple[str, int], Sequence[SlurmJob]] | None


class Attempt(ClusterAttempt):
    """The run of one epoch on Slurm."""

    def __init__(
        self, options: SlurmOptions, slurm: Slurm, listing: Callable[[], Listing], work: Work
    ) -> None:
        super().__init__(work, progress_names(len(work.started.placement)))
        self.files = Run(work.folder)
        if work.program.secrets:
            words = "secrets: an agent of a Slurm cluster has none; leave them out"
            self.ended = Outcome(False, words, retriable=False, ran=False)
        self._options, self._slurm, self._listing = options, slurm, listing
        self._sent = False
        self._id: int | None = None
        self._refusals, self._retry_s = 0, -math.inf
        #: Since when it waits for Slurm to begin it, and whether it was seen to have begun.
        self._waits_since_s: float | None = None
        self._was_begun = False
        self._requests = self.files.requests()
        self._leave_by_s, self._again_s = math.inf, -math.inf
        self._cancel_s = -math.inf
        self._cause: str | None = None
        self._look_s, self._has_failed = -math.inf, False

    def save(self) -> None:
        if self._id is not None:
            self._request("save", 0)
            self._wake_keepers()

    def advance(self, now_s: float, leave_by_s: float | None) -> None:
        if self.ended is not None:
            return
        listing = self._listing()
        if self._sent:
            self._follow(listing, now_s, leave_by_s)
        else:  # what is handed in now cannot be in this listing
            self._submit(listing, now_s, leave_by_s is not None)

    def _submit(self, listing: Listing, now_s: float, is_unwanted: bool) -> None:
        """Submit it, unless Slurm has it: an earlier answer may have been lost."""
        job, epoch = self.run
        claim, there = self.files.claim(), () if listing is None else listing.get((job, epoch), ())
        if claim is not None or there:
            self._sent, self._id = True, there[0].id if claim is None else claim
        elif is_unwanted or self._refusals >= _REFUSALS:
            # A closed run never runs. If Slurm has its job after all, it is cancelled when listed.
            if self.files.close():
                words = f"Slurm does not take the job: {self._cause}"
                self.ended = Outcome(False, words, ran=False)
        elif listing is not None and now_s >= self._retry_s:
            script = write_scripts(self.work, self.files, self._options)
            comment = self._slurm.comment(job, epoch)
            said = sbatch_options(self.work, self.files, comment, self._options)
            try:
                self._id, self._sent = self._slurm.submit(said, script), True
            except SlurmError as error:
                self._refusals, self._cause = self._refusals + 1, str(error)
                self._retry_s = now_s + self._refusals

    def _follow(self, listing: Listing, now_s: float, leave_by_s: float | None) -> None:
        claim = self.files.claim()
        self._id = self._id if claim is None else claim
        if listing is None:
            if claim is not None and leave_by_s is not None:
                self._ask_to_leave(now_s, leave_by_s)
            self.runs = self.runs or claim is not None
            return
        there = listing.get(self.run, ())
        live = [one for one in there if not one.ended]
        own = next((one for one in there if one.id == self._id), None)
        if claim is not None:
            for other in live:
                if other is not own:
                    self._cancel([other], now_s)  # submitted twice; only one can claim the run
        if not live:
            self._take_end(own, claim)
        elif leave_by_s is not None:
            self._terminate(live, now_s, leave_by_s)
        elif own is not None and own.waits:
            self._wait_for_start(own, claim is not None, now_s)
        else:
            self.runs = self.runs or own is not None
            self._end_remains(live, now_s)

    def _end_remains(self, live: Sequence[SlurmJob], now_s: float) -> None:
        """Cancel what runs on long after a worker failed: Slurm should have ended it."""
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        failures, _ = self.files.failures()
        if failures and self._has_failed:
            self._cause = failures
            self._cancel(live, now_s)
        self._has_failed = bool(failures)

    def _wait_for_start(self, own: SlurmJob, was_begun: bool, now_s: float) -> None:
        """Wait for Slurm to begin it, up to a limit."""
        limit_s = self._options.pending_timeout_s
        since_s = self._waits_since_s = self._waits_since_s or now_s
        if was_begun and not self._was_begun:
            self._was_begun = True  # it may have begun after Slurm made its listing
        elif was_begun:
            self._cause = "Slurm put the job back into its queue: a node failed, or an operator did"
            self._cancel([own], now_s)
        elif now_s - since_s > limit_s and self.files.close():
            self._cause = (
                f"Slurm has not begun the job within {limit_s:g} s, it says {own.reason}; see that "
                "the nodes are up and their GPUs left to Tidegate"
            )
            self._cancel([own], now_s)

    def _terminate(self, live: Sequence[SlurmJob], now_s: float, leave_by_s: float) -> None:
        """Stop the workers in time: through their keepers, and if that fails through Slurm."""
        if self.files.close() or now_s > leave_by_s + _OVERDUE_S:
            self._cancel(live, now_s)
            return
        self._ask_to_leave(now_s, leave_by_s)
        if now_s >= self._again_s:
            self._again_s = now_s + _AGAIN_S
            self._wake_keepers()

    def _ask_to_leave(self, now_s: float, leave_by_s: float) -> None:
        """Write the request, once; the keepers poll for it, too."""
        if leave_by_s < self._leave_by_s:
            self._leave_by_s, self._again_s = leave_by_s, now_s
            self._request("leave", max(0, int(leave_by_s - now_s)))

    def _take_end(self, own: SlurmJob | None, claim: int | None) -> None:
        if claim is None and not self.files.close():
            return  # it began after Slurm made its listing; the next one shows it
        self.ended = _outcome(self.files, own, self._id, self._cause, self.work.program)

    def _request(self, verb: Literal["save", "leave"], grace_s: int) -> None:
        self._requests += 1
        self.files.request(self._requests, verb, grace_s)

    def _wake_keepers(self) -> None:
        """Have the keepers read the request now."""
        if self._id is not None:
            with contextlib.suppress(SlurmError):
                self._slurm.alert(self._id)

    def _cancel(self, jobs: Sequence[SlurmJob], now_s: float) -> None:
        if now_s < self._cancel_s:
            return
        self._cancel_s = now_s + _AGAIN_S
        for one in jobs:
            try:
                self._slurm.cancel(one.id)
            except SlurmError:
                self._cancel_s = now_s  # Slurm is away, or the job is gone; the next listing tells


def _outcome(
    run: Run, own: SlurmJob | None, slurm_id: int | None, cause: str | None, program: Program
) -> Outcome:
    """Tell from Slurm's word, else from what the batch script wrote at its end.

    Args:
        run: Its files.
        own: Its job as listed; None: Slurm does not know it any more.
        slurm_id: The id of that job; None: there was none.
        cause: Why the agent ended it by itself, if it did.
        program: What the workers ran.
    """
    if cause is not None:
        return Outcome(False, cause[:_ERROR_MAX])
    code = run.exit_code()
    state = own.state if own is not None else None
    if state == "COMPLETED" or (state is None and code == 0):
        told = run.told()
        return Outcome(True) if told is None else Outcome(False, told[:_ERROR_MAX])
    failures, runnable = run.failures()
    if not runnable:
        return Outcome(False, f"{program.argv[0]}: cannot be run there: {failures}", False)
    if state in _WORDS:
        words = _WORDS[state]
    elif failures:
        words = failures
    elif code is not None:
        words = f"its workers ended with code {code}: {run.last_words()}"
    elif state is not None:
        words = f"its Slurm job {slurm_id} is {state}: {run.last_words()}"
    else:
        words = f"its Slurm job {slurm_id} is gone, and nobody wrote down how it ended"
    return Outcome(False, words[:_ERROR_MAX])
