"""Our statements in PostgreSQL's spelling."""

import re
from functools import cache

TYPES = {
    # Ids and keys are compared by their bytes, whatever the language of the database.
    "text": 'text collate "C"',
    "int": "bigint",
    "real": "double precision",
    "blob": "bytea",
    "without_rowid": "",
    "serial": "bigint generated always as identity primary key",
    "txid": "(pg_current_xact_id()::text::bigint)",
    "horizon": "pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
}

_PARAMETER = re.compile(r"\?(\d+)")


@cache
def in_dollars(text: str) -> str:
    """Return a statement with its parameters written `$1`, `$2`."""
    return _PARAMETER.sub(r"$\1", text)
