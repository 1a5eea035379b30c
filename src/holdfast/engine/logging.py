"""Log events for operators, through the standard library's loggers; silent until configured.

The first word of an event's name is its area. Areas in `LOG_AREAS` have a logger of their own,
so that each can have its own level.
"""

import json
import logging
from collections.abc import Mapping

import msgspec

from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.healing.redaction import redact

ROOT = "holdfast"
MAX_REASON = 300
LOG_AREAS = (
    "request", "upstream", "agent", "turn", "run", "session", "conversation", "tool", "mcp",
    "channel", "outbox", "webhooks", "schedules", "search", "usage", "store", "worker", "recovery",
    "retention", "serve", "otel",
)  # fmt: skip
ALWAYS_SHOWN = frozenset({"serve"})
"""Areas whose normal events are shown at the default level too, because they are few and useful."""


class EventLog:
    """Writes events such as `log.info("run.ended", run_id=…)`, with ids and without content."""

    def __init__(self) -> None:
        self._root = logging.getLogger(ROOT)
        self._areas = {area: logging.getLogger(f"{ROOT}.{area}") for area in LOG_AREAS}
        self._by_event: dict[str, logging.Logger] = {}
        """Loggers by event name; the names are literals in the code, so there are few."""

    def logger(self, event: str) -> logging.Logger:
        """Return the logger of an event's area."""
        logger = self._areas.get(event.partition(".")[0], self._root)
        self._by_event[event] = logger
        return logger

    def info(self, event: str, **fields: object) -> None:
        """Log a normal event."""
        # Check the level first: each turn logs several events that are usually disabled.
        logger = self._by_event.get(event) or self.logger(event)
        if logger.isEnabledFor(logging.INFO):
            logger.info(event, extra=fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that an operator should look at."""
        self.logger(event).warning(event, extra=fields)

    def failed(self, event: str, exc: HoldfastError, **fields: object) -> None:
        """Log that work in the background failed, with the code of its error.

        Not if the store could not be used, which all of them meet: that is one event, logged as
        `store.unavailable`.
        """
        if not isinstance(exc, StoreUnavailable):
            self.logger(event).warning(event, extra={"code": exc.code, **fields})

    def error(self, event: str, **fields: object) -> None:
        """Log an event that an operator must look at."""
        self.logger(event).error(event, extra=fields)

    def exception(self, event: str, **fields: object) -> None:
        """Log the exception that is being handled."""
        self.logger(event).exception(event, extra=fields)


log = EventLog()
# Without a handler Python would print the bare event names of warnings to standard error.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


class JsonFormatter(logging.Formatter):
    """Formats an event as one JSON object: time, level, event and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        value = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(value, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """Formats an event as one line of text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        fields = " ".join(f"{name}={_text(value)}" for name, value in _fields(record).items())
        at = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


def _text(value: object) -> str:
    """Return a value for a line of text; quote it if it could be mistaken for other fields."""
    text = str(value)
    if text.isprintable() and not set(text) & set(' ="'):
        return text
    return json.dumps(text)


class _TracingLibraryHandler(logging.Handler):
    """Logs the messages of OpenTelemetry's library as events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a message, shortened and without its traceback."""
        log.warning("otel.reported", reason=redact(record.getMessage())[:MAX_REASON])


def configure_logging(level: str, form: str, areas: Mapping[str, str] | None = None) -> None:
    """Write events to standard error from now on; `areas` may have levels of their own."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
    library = logging.getLogger("opentelemetry")
    library.handlers = [_TracingLibraryHandler(logging.WARNING)]
    library.propagate = False
    for area in LOG_AREAS:
        area_level = (areas or {}).get(area)
        if area_level is None and area in ALWAYS_SHOWN and level == "warning":
            area_level = "info"
        child = logging.getLogger(f"{ROOT}.{area}")
        child.setLevel(area_level.upper() if area_level else logging.NOTSET)
