"""Runs sent to a Dask cluster that is there already. The only module that knows Dask."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: How long to look for the cluster, in seconds.
_FIND_S = 20


class ClusterError(Exception):
    """The cluster cannot be reached, or lost a run."""


class DaskCluster:
    """Where runs are sent. Its workers need Tidegate, and the files under the same paths."""

    def __init__(self, address: str) -> None:
        """Find the cluster.

        Raises:
            ModuleNotFoundError: Dask is not installed here.
            ClusterError: Nothing answers at the address.
        """
        # Not a plain import: without the package there would be no types to check it against.
        self._dask = importlib.import_module("distributed")
        try:
            self._client = self._dask.Client(address, timeout=_FIND_S)
        except (OSError, ValueError) as error:  # its time-out is an OSError
            raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from error

    def __call__(self, work: Callable[[Any], Any], cases: Sequence[Any]) -> Iterator[Any]:
        """Run cases, and give what came of each as it finishes.

        Raises:
            ClusterError: A run was lost, as when the worker that had it keeps dying.
        """
        # Not pure: equal cases are run again, since decision times are measured.
        futures = self._client.map(work, cases, pure=False)
        try:
            for future in self._dask.as_completed(futures):
                try:
                    yield future.result()
                except self._dask.KilledWorker as error:
                    raise ClusterError(f"the cluster lost a run: {error}") from error
        finally:
            self._client.cancel(futures)
            self._client.close()
