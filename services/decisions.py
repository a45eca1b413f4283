"""Logs a scheduler's decisions for operators."""

import logging
from collections.abc import Callable
from typing import Any

from scheduler.core import facts
from scheduler.core.stimuli import Decision, Stimulus
from services.logs import Log

#: The facts that are logged above debug.
_LEVELS: dict[type[Any], tuple[int, str]] = {
    facts.GangStarting: (logging.INFO, "gang starting"),
    facts.GangScaling: (logging.INFO, "gang scaling"),
    facts.JobMigrating: (logging.INFO, "job migrating"),
    facts.JobCompleted: (logging.INFO, "job completed"),
    facts.JobFailed: (logging.WARNING, "job failed"),
    facts.LoanRequested: (logging.INFO, "loan requested"),
    facts.LoanGranted: (logging.INFO, "loan granted"),
    facts.ReclaimStarted: (logging.INFO, "reclaim started"),
    facts.LoanReturned: (logging.INFO, "loan returned"),
    facts.LoanLost: (logging.WARNING, "loan lost"),
    facts.NodeLost: (logging.WARNING, "node lost"),
    facts.CommandExpired: (logging.WARNING, "command expired"),
    facts.PolicyFailed: (logging.ERROR, "policy failed"),
}
#: Reasons for leaving GPUs that are logged at info.
_TAKEN = ("preempted", "migrated", "failed")
_LEAVING = (facts.GangCheckpointing, facts.GangStopping)
_SHOWN = ("job", "epoch", "node", "pool", "loan", "command", "reason", "detail", "error", "step")


def tell_decisions(log: Log) -> Callable[[Stimulus, Decision], None]:
    """Give a watcher that logs each fact with the message that caused it."""

    def tell(stimulus: Stimulus, decision: Decision) -> None:
        cause = stimulus.cause
        name = cause.source.rsplit("/", 1)[-1]
        led_by = name if cause.bootid < 0 else f"{name}-{cause.bootid}-{cause.sequence}"
        for fact in decision.facts:
            level, event = _weigh(fact)
            if log.isEnabledFor(level):
                shown = {key: getattr(fact, key) for key in _SHOWN if hasattr(fact, key)}
                log.log(level, event, cause=led_by, **shown)

    return tell


def _weigh(fact: Any) -> tuple[int, str]:
    if isinstance(fact, _LEAVING):
        return (logging.INFO if fact.reason in _TAKEN else logging.DEBUG), f"gang {fact.reason}"
    return _LEVELS.get(type(fact), (logging.DEBUG, type(fact).__name__))
