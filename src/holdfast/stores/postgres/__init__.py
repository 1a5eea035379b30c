"""PostgreSQL 14 and later: a pool, grouped commits, wake-ups and proofs of life by the database."""

from holdfast.stores.postgres.open import open_postgres

__all__ = ["open_postgres"]
