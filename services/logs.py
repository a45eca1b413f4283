"""Logs on standard error: one JSON object per line, or text; those of libraries, too."""

import logging
import sys

import structlog

from services.sections import LogSection

#: Clients that repeat themselves many times a second while a broker is away.
_CHATTY = ("aiokafka", "mqtt")
_NEVER = logging.CRITICAL + 1
#: A repeated message is logged again after this long.
SELDOM_S = 30.0


class _DropRepeats(logging.Filter):
    """Drops repeated messages of chatty libraries."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in _CHATTY:
            return True
        key = record.name, str(record.msg)
        # Also where the machine's clock was set back since.
        if abs(record.created - self._said_s.get(key, 0.0)) < SELDOM_S:
            return False
        if len(self._said_s) > 500:
            self._said_s.clear()
        self._said_s[key] = record.created
        return True


def configure(section: LogSection, **about: str) -> structlog.stdlib.BoundLogger:
    """Send everything to standard error; give a logger that adds `about` to every line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if section.format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    render: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta
    ]
    if section.format == "json":
        render.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_DropRepeats())
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
        # While a broker is down its client would flood the log. Even at debug only warnings: at
        # info, aiokafka logs every request for metadata.
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
