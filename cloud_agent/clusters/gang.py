"""One gang on a cluster: its record is a file, and the cluster's own scheduler runs its workers."""

from collections.abc import Callable

from cloud_agent.clusters.attempt import Attempt, Cluster, Work
from cloud_agent.clusters.folder import RECORDS
from cloud_agent.clusters.gang_record import write
from cloud_agent.options import ClusterOptions
from runtime.core import Report
from runtime.executors.attempt import Leave
from runtime.executors.fetching import job_folder
from runtime.executors.gang import Gang
from runtime.executors.gang_record import GangRecord, StartedRun


class ClusterGang(Gang[Attempt]):
    """A gang on a cluster."""

    def __init__(
        self,
        options: ClusterOptions,
        cluster: Cluster,
        record: GangRecord,
        folder_id: str,
        report: Callable[[Report], None],
    ) -> None:
        """Take over a recorded gang, also from an agent that has ended."""
        super().__init__(options, record, report)
        self._cluster, self._folder_id = cluster, folder_id
        if record.started is not None and record.final is None:
            self._begin(record.started)

    @property
    def run(self) -> tuple[str, int] | None:
        """The job and epoch that the cluster may run for it; None: nothing."""
        if self.attempt is None or self.attempt.ended is not None:
            return None
        return self.attempt.run

    def _write(self) -> None:
        write(self.record, self._options.root / RECORDS)

    def _launch(self, started: StartedRun) -> Attempt:
        record = self.record
        program = record.spec.program
        assert program is not None
        folder = job_folder(self._options.root, record.job) / str(started.epoch)
        work = Work(record.job, program, started, folder, self._folder_id, record.spec.tenant)
        return self._cluster.attempt(work)

    def _advance(self, attempt: Attempt, leave: Leave | None) -> None:
        if attempt.ended is None:
            attempt.advance(self._now_s, None if leave is None else leave.by_s)
