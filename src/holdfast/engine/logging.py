"""Structured log events, through the standard library's loggers: silent until configured."""

import logging

import msgspec


class EventLog:
    """Logs events with fields: `log.info("run.ended", run_id=…)`; ids always, content never."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def info(self, event: str, **fields: object) -> None:
        """Log what happened."""
        # Checked first: a turn logs several events, and most servers log none of them.
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(event, extra=fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log what an operator should look at."""
        self._logger.warning(event, extra=fields)

    def error(self, event: str, **fields: object) -> None:
        """Log what an operator must look at."""
        self._logger.error(event, extra=fields)

    def exception(self, event: str, **fields: object) -> None:
        """Log the exception that is being handled."""
        self._logger.exception(event, extra=fields)


log = EventLog(logging.getLogger("holdfast"))


class JsonFormatter(logging.Formatter):
    """Writes an event as one JSON object: time, level, event, and its fields."""

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
    """Writes an event as one readable line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        fields = " ".join(f"{name}={value!s}" for name, value in _fields(record).items())
        at = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def configure_logging(level: str, form: str) -> None:
    """Write our events to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger = logging.getLogger("holdfast")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
