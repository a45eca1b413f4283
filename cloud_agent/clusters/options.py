"""The options for running gangs on any cluster."""

from cloud_agent.sections import ClusterSection
from runtime.executors.options import ExecutorOptions
from schemas.options import Seconds


class ClusterOptions(ClusterSection, ExecutorOptions):
    """How gangs are run on a cluster; each kind of cluster adds its own options."""

    #: While there are gangs, their files are read this often, and so is the cluster's state if it
    #: sends no events; more often in the half minute after an order.
    poll_s: Seconds
