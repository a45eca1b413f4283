"""What an operator may choose about gangs on any cluster."""

import math
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoints.store import CheckpointStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How gangs are run on a cluster; each kind of cluster adds its own options."""

    #: Folder for all that belongs to runs, on a file system that the agent and the nodes share:
    #: `runs/`, `held/`.
    root: Path
    #: Where checkpoints become durable.
    store: CheckpointStore
    #: The agent's name, which marks what it runs on the cluster.
    agent: str
    #: While there are gangs, their files are read this often, and so is the cluster's state if it
    #: sends no events; more often in the half minute after an order.
    poll_s: float = 2.0
    #: A gang that the cluster does not begin within this has failed.
    pending_timeout_s: float = 900.0
    #: A program that says nothing has started when it has run this long.
    quiet_start_s: float = 5.0
    #: A gang is stuck after this long without a step, or 20 of its usual intervals if longer.
    stuck_after_s: float = 600.0
    #: End a stuck gang as failed; otherwise it is only reported.
    end_stuck: bool = False
    #: What workers are told is usual (`TIDEGATE_GRACE_S`), and what a change of size gives them.
    grace_s: float = 60.0
    #: A checkpoint that was asked for must come within this.
    save_s: float = 300.0
    #: Beyond the grace, for the upload of the last checkpoint.
    final_upload_timeout_s: float = 60.0
    checkpoint_retention: int = 2  #: Checkpoints of a job that stay in the store.

    def __post_init__(self) -> None:
        if not self.agent:
            raise ValueError("agent: must not be empty")
        if not self.root.is_absolute():
            raise ValueError(f"root: must be an absolute path, not {self.root}")
        self.positive("poll_s", "pending_timeout_s", "stuck_after_s", "save_s")
        for name in ("quiet_start_s", "grace_s", "final_upload_timeout_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be finite and not negative")
        if self.checkpoint_retention < 1:
            raise ValueError("checkpoint_retention: must be at least 1")

    def positive(self, *names: str) -> None:
        """Check that these fields are positive and finite.

        Raises:
            ValueError: one is not; the message names it.
        """
        for name in names:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be positive and finite")
