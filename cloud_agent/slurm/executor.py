"""Runs gangs as Slurm jobs.

A gang is one Slurm job, whose comment names agent, job and epoch. Tidegate chooses the nodes and
how many GPUs of each. Slurm chooses the devices, and enforces that nobody else uses them (`gres`).
GPU indices in a placement are therefore only counts here.

A gang runs once under an epoch, whatever is submitted twice, requeued or answered late: the batch
script claims the run in its folder first, and the agent makes the same claim before it gives up a
gang that has not begun (see `scripts`). Jobs in the agent's folder without a gang are cancelled.

A change of size is a new Slurm job: the workers save and leave, the next ones go on from there.
Programs that resize in place are restarted too.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait

from cloud_agent.clusters.attempt import Work
from cloud_agent.clusters.executor import ClusterExecutor
from cloud_agent.options import SlurmOptions
from cloud_agent.slurm.attempt import Attempt, Listing
from cloud_agent.slurm.commands import Slurm, SlurmError, SlurmJob, by_gang
from cloud_agent.slurm.run import Run, write_lease
from runtime.executors.fetching import job_folder
from runtime.threads import in_thread

_log = logging.getLogger(__name__)


class _Cluster:
    """A Slurm cluster (see `cloud_agent.clusters.attempt.Cluster`)."""

    def __init__(self, options: SlurmOptions) -> None:
        self._options, self._slurm = options, Slurm(options)
        self._asked: Future[list[SlurmJob]] | None = None
        self._listing: Listing = None
        self.away: str | None = None

    def begin(self, wake: Callable[[], None]) -> None:
        """Do nothing: Slurm sends no events."""

    def keep_lease(self, until_s: float | None, grace_s: float) -> None:
        write_lease(self._options.root, until_s, grace_s)

    def look(self, folder_id: str) -> None:
        self._listing = self._list(folder_id)

    def attempt(self, work: Work) -> Attempt:
        return Attempt(self._options, self._slurm, lambda: self._listing, work)

    def delete_orphans(self, expected: Collection[tuple[str, int]]) -> None:
        for which, jobs in (self._listing or {}).items():
            for one in jobs if which not in expected else ():
                try:
                    if not one.ended:
                        self._slurm.cancel(one.id)
                except SlurmError:
                    return  # it is listed again

    def close(self) -> None:
        self._slurm.interrupt()

    def _own(self, job: SlurmJob, folder_id: str) -> bool:
        """Whether it is of this folder: else another agent of this name and user runs it.

        One that says no folder is of an earlier release. One that has claimed a run here is ours
        whatever it says.
        """
        run = Run(job_folder(self._options.root, job.job) / str(job.epoch))
        return job.folder_id in ("", folder_id) or run.claim() == job.id

    def _list(self, folder_id: str) -> Listing:
        """Give a new listing; None while Slurm has not answered, or if it does not.

        A thread asks Slurm, so that the runs' files are read meanwhile. Nothing is submitted
        without a listing.
        """
        if self._asked is None:
            self._asked = in_thread(self._slurm.jobs)
        wait([self._asked], self._options.poll_s)
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        try:
            jobs = asked.result()
        except SlurmError as error:
            if self.away is None:
                _log.warning("Slurm does not answer: %s", error)
            self.away = str(error)
            return None
        self.away = None
        return by_gang([one for one in jobs if self._own(one, folder_id)])


class SlurmExecutor(ClusterExecutor):
    """Runs gangs on a Slurm cluster; see `ClusterExecutor`."""

    def __init__(self, options: SlurmOptions, remembered: Mapping[str, int] | None = None) -> None:
        super().__init__(options, _Cluster(options), remembered)
