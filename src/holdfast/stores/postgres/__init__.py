"""PostgreSQL 14 and later: a pool, group commit, notifications and worker locks."""

from holdfast.stores.postgres.driver import open_postgres

__all__ = ["open_postgres"]
