"""What every test may ask for."""

import pytest

from tests import postgres
from tests.postgres import bare_postgres_url, databases, postgres_server, postgres_url

__all__ = ["bare_postgres_url", "databases", "postgres_server", "postgres_url"]


def _is_worker(config: pytest.Config) -> bool:
    """Whether this process was started by another one of the same run."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run."""
    if not _is_worker(config):
        postgres.begin_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a run."""
    if not _is_worker(config):
        postgres.end_run()
