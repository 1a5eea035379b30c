"""Databases with the schema before the log, as far as they are recognised and refused."""

import sqlite3
from pathlib import Path

import asyncpg

TABLES = (
    "create table schema_versions (version integer primary key, name text, applied_at real)",
    "insert into schema_versions values (1, 'kernel', 0.0)",
    "create table sessions (id text primary key)",
)


def create_file(path: Path) -> None:
    """Create a SQLite store of the first schema."""
    connection = sqlite3.connect(path)
    for statement in TABLES:
        connection.execute(statement)
    connection.commit()
    connection.close()


async def fill_database(url: str) -> None:
    """Create the tables of the first schema in an empty PostgreSQL database."""
    connection = await asyncpg.connect(url)
    try:
        for statement in TABLES:
            await connection.execute(statement)
    finally:
        await connection.close()
