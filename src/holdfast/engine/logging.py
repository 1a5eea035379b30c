"""Events for operators, through the standard library's loggers: silent until somebody listens."""

import logging

import msgspec


class Events:
    """Where events are told: `log.info("run.ended", run_id=…)`; ids always, content never."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def info(self, event: str, **carried: object) -> None:
        """Tell what happened, to those who want to follow."""
        # Asked first: a turn tells several, and hardly anybody listens to them all.
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(event, extra=carried)

    def warning(self, event: str, **carried: object) -> None:
        """Tell what somebody should look at."""
        self._logger.warning(event, extra=carried)

    def error(self, event: str, **carried: object) -> None:
        """Tell what somebody must look at."""
        self._logger.error(event, extra=carried)

    def exception(self, event: str, **carried: object) -> None:
        """Tell of the exception that is being handled."""
        self._logger.exception(event, extra=carried)


log = Events(logging.getLogger("holdfast"))


class JsonLines(logging.Formatter):
    """One JSON object an event: time, level, event, and whatever the event carries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        value = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_carried(record),
        }
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(value, enc_hook=str).decode()


class TextLines(logging.Formatter):
    """One readable line an event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        carried = " ".join(f"{name}={value!s}" for name, value in _carried(record).items())
        at = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {carried}".rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _carried(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def listen(level: str, form: str) -> None:
    """Write our events to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logger = logging.getLogger("holdfast")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
