"""What every test may ask for."""

import logging
from collections.abc import Iterator

import pytest

from tests import postgres
from tests.postgres import bare_postgres_url, databases, postgres_server, postgres_url
from tests.store_urls import any_store_url, lasting_store_url, store_url

__all__ = [
    "any_store_url",
    "bare_postgres_url",
    "databases",
    "lasting_store_url",
    "postgres_server",
    "postgres_url",
    "store_url",
]


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Undo what a test configures: its handler would write to a stream that is closed by then."""
    loggers = [logging.getLogger(name) for name in ("holdfast", "opentelemetry")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    yield
    for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


def _is_worker(config: pytest.Config) -> bool:
    """Whether this process was started by another one of the same run."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run."""
    if not _is_worker(config):
        postgres.begin_run()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what soak tests have counted and measured."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "soak" and report.when == "call":
                    terminalreporter.write_line(f"{report.nodeid}: {value}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a run."""
    if not _is_worker(config):
        postgres.end_run()
