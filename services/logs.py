"""Logs: a JSON object a line on standard error, or text; libraries speak through the same pipe."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog

from scheduler.core import facts
from scheduler.core.stimuli import Decision, Stimulus
from services.sections import LogSection

#: What operators read of the decisions; everything else that was decided is said at debug.
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
#: Why a gang leaves its GPUs, where somebody will ask.
_TAKEN = ("preempted", "migrated", "failed")
_LEAVING = (facts.GangCheckpointing, facts.GangStopping)
_SHOWN = ("job", "epoch", "node", "pool", "loan", "command", "reason", "detail", "error", "step")


#: Clients that repeat themselves many times a second while a broker is away.
_CHATTY = ("aiokafka", "mqtt")
_NEVER = logging.CRITICAL + 1
#: The same is let through again after this long.
SELDOM_S = 30.0


class _Seldom(logging.Filter):
    """Lets what a chatty library repeats through now and then only."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in _CHATTY:
            return True
        key = record.name, str(record.msg)
        if record.created < self._said_s.get(key, 0.0) + SELDOM_S:
            return False
        if len(self._said_s) > 500:
            self._said_s.clear()
        self._said_s[key] = record.created
        return True


def configure(section: LogSection, **about: str) -> structlog.stdlib.BoundLogger:
    """Send everything to standard error; give a logger that says `about` on every line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if section.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    render: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta
    ]
    if section.format == "json":
        render.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Seldom())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_say_about(about), *shared], processors=[*render, last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(section.level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    for library in _CHATTY:
        # While a broker is away its client has much to say, and would bury our own sentence. Even
        # at debug no more than warnings: at info, aiokafka tells of every request for metadata.
        debug = section.level == "debug"
        logging.getLogger(library).setLevel(logging.WARNING if debug else _NEVER)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("tidegate").bind(**about)
    return log


def _say_about(about: dict[str, str]) -> structlog.typing.Processor:
    def add(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        line.update(about)
        return line

    return add


def tell_decisions(log: structlog.stdlib.BoundLogger) -> Callable[[Stimulus, Decision], None]:
    """Give a watcher that says what was decided, for whom, and which message led to it."""

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
