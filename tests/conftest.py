"""Fixtures and settings of all tests."""

import functools
import gc
import logging
import secrets
from collections.abc import Iterator

import httpx._config
import httpx._transports.default
import pytest

from tests import hypothesis_profile, postgres
from tests.postgres import bare_postgres_url, databases, postgres_server, postgres_url
from tests.soak.parts import PART_NAMES, part_of
from tests.store_urls import any_store_url, lasting_store_url, store_url

__all__ = [
    "any_store_url",
    "bare_postgres_url",
    "databases",
    "hypothesis_profile",
    "lasting_store_url",
    "postgres_server",
    "postgres_url",
    "store_url",
]

# Each httpx client reads the certificates of the system, which takes 36 ms of CPU time. No test
# uses TLS over httpx, so all clients can share the first one's context.
_shared = functools.cache(httpx._config.create_ssl_context)
httpx._transports.default.create_ssl_context = _shared  # type: ignore[attr-defined]  # not ours

# A server that shares its CPU with other tests may take longer than the default five seconds.
for _wait in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _wait, 60.0)


@pytest.fixture(autouse=True)
def own_gateways(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the commands of a test find the gateways of this test only."""
    place = tmp_path_factory.getbasetemp() / "state" / secrets.token_hex(8)
    monkeypatch.setenv("XDG_STATE_HOME", str(place))


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Undo a test's logging configuration: its handler would write to a closed stream."""
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run have one part of the soak only."""
    parser.addoption("--soak-part", type=int, choices=range(1, len(PART_NAMES) + 1))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other parts."""
    part = config.getoption("--soak-part")
    if part is None:
        return
    others = [item for item in items if part_of(item.nodeid) != part]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if part_of(item.nodeid) == part]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let garbage collections skip what was collected: it lives until the end, and is a lot."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the counts and measurements of soak tests."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "soak" and report.when == "call":
                    terminalreporter.write_line(f"{report.nodeid}: {value}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a run."""
    if not _is_worker(config):
        postgres.end_run()
