"""Logs on standard error: one JSON object per line, or text; those of libraries, too."""

import json
import logging
import math
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

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


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines have fields: `log.info("leads", epoch=3)`."""

    def bind(self, **fields: Any) -> "Log":
        """Give one whose lines have these, too."""
        return Log(self.logger, {**(self.extra or {}), **fields})

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Make fields of all that is not `logging`'s own."""
        own = {name: kwargs[name] for name in ("exc_info", "stacklevel") if name in kwargs}
        said = {name: value for name, value in kwargs.items() if name not in own}
        return msg, {**own, "extra": {"tidegate": {**(self.extra or {}), **said}}}


class _Lines(logging.Formatter):
    """Writes a JSON object, or text."""

    def __init__(self, about: Mapping[str, str], *, text: bool) -> None:
        super().__init__()
        self._about, self._text = about, text

    def format(self, record: logging.LogRecord) -> str:
        fields = {**self._about, **getattr(record, "tidegate", {})}
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        at = at.replace("+00:00", "Z")
        said, level = record.getMessage(), record.levelname.lower()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._text:
            said = "".join(one if one.isprintable() else repr(one)[1:-1] for one in said)
            shown = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
            return f"{at} [{level}] {record.name}: {said} {shown}" + (f"\n{trace}" if trace else "")
        line = {**fields, "event": said, "level": level, "logger": record.name, "timestamp": at}
        line = {**line, "exception": trace} if trace else line
        return json.dumps(_in_json(line), default=repr, allow_nan=False)


def _in_json(value: object) -> object:
    """Give a value of which JSON can write every number: it has none for `nan` and `inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _in_json(one) for name, one in value.items()}
    return [*map(_in_json, value)] if isinstance(value, list | tuple) else value


def _shown(value: object) -> str:
    plain = isinstance(value, str) and value.isprintable() and " " not in value
    return str(value) if plain else repr(value)


def configure(section: LogSection, **about: str) -> Log:
    """Send everything to standard error; give a logger that adds `about` to every line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_DropRepeats())
    handler.setFormatter(_Lines(about, text=section.format == "text"))
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
    return Log(logging.getLogger("tidegate"), about)
