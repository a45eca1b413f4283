"""Fold a fact into the state: the only way it changes; every fact ever written is accepted.

A fold first checks the life cycles (an illegal fact raises and changes nothing), then writes. It
decides nothing: what a fact means must not depend on the version that reads it.
"""

from typing import Any

from scheduler.core import fold_cell, fold_fleet, fold_jobs, fold_metrics, fold_requests
from scheduler.core.registry import FOLDS
from scheduler.core.state import ClusterState

__all__ = ["apply", "fold_cell", "fold_fleet", "fold_jobs", "fold_metrics", "fold_requests"]


def apply(state: ClusterState, fact: Any) -> None:
    """Fold one fact into the state.

    Raises:
        InvalidTransition: the fact cannot follow; the state is unchanged.
    """
    FOLDS[type(fact)](state, fact)
