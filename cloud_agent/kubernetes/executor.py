"""Runs gangs as Kubernetes Jobs.

A gang is one Indexed Job, labelled with agent, job, epoch and shared folder. It is created
suspended under a name derived from job and epoch, recorded, and only then unsuspended: a Job that
is created twice or late runs nothing. Its Pods go exactly to the nodes that Tidegate chose.
Kubernetes (its scheduler and the node's device plugin) chooses the devices and enforces that nobody
else uses them. GPU indices in a placement are therefore only counts here.

GPUs are free when the API has neither the Job nor a Pod of it. A node that does not answer keeps
its Pods: their GPUs stay taken until it is back, or somebody deletes the node.

A change of size is a new Job: the workers save and leave, the next ones go on from there. Programs
that resize in place are restarted too. Needs Kubernetes 1.27 or newer, and the right to get, list,
watch, create, patch and delete Jobs and Pods of one namespace.
"""

import logging
from collections.abc import Callable, Collection, Mapping

from cloud_agent.clusters.attempt import Work
from cloud_agent.clusters.executor import ClusterExecutor
from cloud_agent.kubernetes.api import Api, Away, Refused
from cloud_agent.kubernetes.attempt import Attempt, RunContext
from cloud_agent.kubernetes.body import selector
from cloud_agent.kubernetes.informer import Informer, View
from cloud_agent.kubernetes.objects import JobSeen, PodSeen
from cloud_agent.options import KubernetesOptions

_log = logging.getLogger(__name__)


class _Kubernetes:
    """A cluster of Kubernetes (see `cloud_agent.clusters.attempt.Cluster`)."""

    def __init__(self, options: KubernetesOptions) -> None:
        self._api = Api(options.namespace, options.kubeconfig, options.request_s)
        self._informer = Informer(self._api, selector(options.agent))
        self._view: View | None = None
        self._context = RunContext(self._api, lambda: self._view, options, lambda: self._lease_s)
        self._lease_s: float | None = None
        self._attempts: list[Attempt] = []
        self._has_warned = False

    @property
    def away(self) -> str | None:
        return self._informer.away

    def begin(self, wake: Callable[[], None]) -> None:
        self._api.open()
        self._informer.begin(wake)

    def keep_lease(self, until_s: float | None, grace_s: float) -> None:
        self._lease_s = until_s  # attempts set it as the Jobs' deadline; Pods have their own grace

    def look(self, folder_id: str) -> None:
        view = self._informer.view()
        self._view = None if view is None else self._own(view, folder_id)
        if self._view is not None:
            for attempt in self._attempts:
                attempt.hear(self._view.heard)

    def _own(self, view: View, folder_id: str) -> View:
        """Leave out what another agent of this name runs, or has left here.

        Nobody ends that but Kubernetes, with the lease of its agent. What says no folder is of an
        earlier release, and what a record names is ours whatever it says.
        """
        recorded = {one.uid for one in self._attempts} - {None}

        def is_own(one: JobSeen | PodSeen) -> bool:
            uid = one.uid if isinstance(one, JobSeen) else one.owner
            return one.folder_id in ("", folder_id) or uid in recorded

        jobs = tuple(filter(is_own, view.jobs))
        if len(jobs) < len(view.jobs) and not self._has_warned:
            self._has_warned = True
            others = next(one.name for one in view.jobs if one not in jobs)
            _log.warning(
                "Job %s is of another agent of this name, or of one with another folder: it is "
                "left alone, and ends with that agent's lease; if there are two, rename one",
                others,
            )
        return View(jobs, tuple(filter(is_own, view.pods)), tuple(filter(is_own, view.heard)))

    def attempt(self, work: Work) -> Attempt:
        made = Attempt(self._context, work)
        self._attempts = [one for one in self._attempts if one.ended is None] + [made]
        return made

    def delete_orphans(self, expected: Collection[tuple[str, int]]) -> None:
        if self._view is None:
            return
        own = {one.run: one.uid for one in self._attempts if one.run in expected}
        there = {one.uid for one in self._view.jobs}
        try:
            for job in self._view.jobs:
                # A Job that was just created may not be recorded yet.
                if not job.leaves and own.get((job.job, job.epoch), "") not in (None, job.uid):
                    self._api.delete_job(job.name, job.uid)
            for pod in self._view.pods:
                # Pods of an existing Job are deleted with it.
                if (
                    not pod.leaves
                    and pod.owner not in there
                    and (pod.job, pod.epoch) not in expected
                ):
                    self._api.delete_pod(pod.name, pod.uid, None)
        except (Away, Refused) as error:
            _log.warning("what Tidegate left on Kubernetes cannot be deleted: %s", error)

    def close(self) -> None:
        self._api.close()


class KubernetesExecutor(ClusterExecutor):
    """Runs gangs on a Kubernetes cluster; see `ClusterExecutor`."""

    def __init__(
        self, options: KubernetesOptions, remembered: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(options, _Kubernetes(options), remembered)
