"""Run the plans of many commands together: equal queries become one statement.

The commands must be about different sessions, so that none depends on what another writes.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import asyncpg

from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.facts import Facts
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.postgres.clock import CLOCK
from holdfast.stores.postgres.dialect import (
    Parameters,
    Written,
    at_once,
    in_arrays,
    read_many,
    spelled,
    table_of,
    together,
)
from holdfast.stores.postgres.errors import meaning
from holdfast.stores.postgres.row_locks import Locked, lock_keys
from holdfast.stores.sql.command_plans import plan
from holdfast.stores.sql.lookups import changed_lane
from holdfast.stores.sql.plan import Ask, LostUpdate, Plan, Row, Statement

Connection = asyncpg.Connection
PlanT = TypeVar("PlanT")
Writes = dict[Statement, list[tuple[Any, ...]]]
"""Statements, each with all its parameter sets."""

_TYPES: dict[str, tuple[str, ...]] = {}
"""Parameter types of each statement, as PostgreSQL inferred them."""


async def carry_out(
    connection: Connection, commands: Sequence[Command[Any]], now: float, lanes: LaneCache
) -> list[Any]:
    """Decide on the commands and write the changes; return the decisions."""
    planned = await _decide(connection, [plan(command, now, lanes) for command in commands])
    await _write(connection, [deque(one.writes) for one in planned])
    return [one.decision for one in planned]


async def write_from_cache(connection: Connection, chosen: Writes) -> float | None:
    """Write decisions made from the cache in one statement, which is its own transaction.

    Return the database's time, or None if a gate failed and nothing was written.
    """
    try:
        text = at_once(await _forms(connection, chosen), CLOCK)
        ((_, server_time),) = await connection.fetch(text, *_parameters(chosen))
    except asyncpg.DivisionByZeroError:
        return None
    except Exception as exc:
        if meaning(exc) != "lost_race":
            raise
        return None
    return float(server_time)


async def read_changed(
    connection: Connection, versions: Mapping[SessionId, int], now: float
) -> list[tuple[Facts, list[StoredItem]]]:
    """Return the lanes that are no longer at these versions, and their new items, in one read."""
    plans = [changed_lane(session_id, version, now) for session_id, version in versions.items()]
    return [changed for changed in await _decide(connection, plans) if changed is not None]


async def _decide(connection: Connection, plans: list[Plan[PlanT]]) -> list[PlanT]:
    """Run the plans to their ends, one query of each plan per round."""
    ends: dict[int, PlanT] = {}
    asks: dict[int, Ask] = {}

    def advance(index: int, rows: list[Row] | None) -> None:
        try:
            asks[index] = next(plans[index]) if rows is None else plans[index].send(rows)
        except StopIteration as stop:
            ends[index] = stop.value

    for index in range(len(plans)):
        advance(index, None)
    while asks:
        current, asks = asks, {}
        for index, rows in (await _answers(connection, current)).items():
            advance(index, rows)
    return [ends[index] for index in range(len(plans))]


async def _answers(connection: Connection, questions: dict[int, Ask]) -> dict[int, list[Row]]:
    groups: dict[Statement, dict[tuple[Any, ...], list[int]]] = {}
    for index, (statement, parameters) in questions.items():
        groups.setdefault(statement, {}).setdefault(parameters, []).append(index)
    answers: dict[int, list[Row]] = {}
    for statement, askers in groups.items():
        results = await _fetch(connection, statement, list(askers))
        for rows, indices in zip(results, askers.values(), strict=True):
            for index in indices:
                answers[index] = rows
    return answers


async def _fetch(
    connection: Connection, statement: Statement, sets: list[tuple[Any, ...]]
) -> list[list[Row]]:
    """Return the rows that a statement finds for each parameter set."""
    if len(sets) == 1:
        rows: list[Any] = await connection.fetch(spelled(statement), *sets[0])
        return [rows]
    text = read_many(
        statement.postgres or statement.text, Parameters(await _types(connection, statement))
    )
    results: list[list[Row]] = [[] for _ in sets]
    for row in await connection.fetch(text, *in_arrays(sets)):
        results[row[0] - 1].append(row[1:])
    return results


async def _write(connection: Connection, queues: list[deque[Ask]]) -> None:
    """Run all writes, each command's in order, as many as possible in one statement."""
    while any(queues):
        chosen: Writes = {}
        for queue in queues:
            for statement, parameters in next_writes(queue):
                chosen.setdefault(statement, []).append(parameters)
        await _execute(connection, chosen)


def next_writes(queue: deque[Ask]) -> Iterator[Ask]:
    """Yield the writes that one statement can do: no table twice, except for plain inserts.

    The parts of one statement do not see each other's changes, but a row may have to be changed
    twice.
    """
    touched: dict[str, Statement] = {}
    while queue:
        statement = queue[0][0]
        table = table_of(statement.text)
        if table in touched and not (only_adds(touched[table]) and only_adds(statement)):
            return
        touched[table] = statement
        yield queue.popleft()


@cache
def only_adds(statement: Statement) -> bool:
    return statement.text.startswith("insert") and "on conflict" not in statement.text


async def _execute(connection: Connection, chosen: Writes) -> None:
    if len(chosen) == 1:
        ((statement, sets),) = chosen.items()
        if len(sets) == 1:
            status = await connection.execute(spelled(statement), *sets[0])
            _check(statement, 1, int(status.rpartition(" ")[2]))
            return
    writes = await _forms(connection, chosen)
    (counts,) = await connection.fetch(together(writes), *_parameters(chosen))
    fenced = [statement for statement in chosen if statement.is_fenced]
    for statement, count in zip(fenced, counts, strict=False):
        _check(statement, len(chosen[statement]), count)


async def _forms(connection: Connection, chosen: Writes) -> tuple[Written, ...]:
    return tuple(
        [
            Written(
                statement.postgres or statement.text,
                await _types(connection, statement),
                statement.is_fenced,
                len(sets) == 1,
            )
            for statement, sets in chosen.items()
        ]
    )


def _parameters(chosen: Writes) -> list[object]:
    parameters: list[object] = []
    for sets in chosen.values():
        parameters += sets[0] if len(sets) == 1 else in_arrays(sets)
    return parameters


def _check(statement: Statement, expected: int, changed: int) -> None:
    if statement.is_fenced and changed != expected:
        raise LostUpdate(statement.name)


async def _types(connection: Connection, statement: Statement) -> tuple[str, ...]:
    if statement.name not in _TYPES:
        prepared = await connection.prepare(spelled(statement))
        _TYPES[statement.name] = tuple(parameter.name for parameter in prepared.get_parameters())
    return _TYPES[statement.name]


Wave = list[int]


def waves(commands: Sequence[Command[Any]], locked: Locked) -> list[Wave]:
    """Split the batch into waves of indices; no wave has two commands on one session or key.

    Commands about the same session keep their order. Within a wave they are sorted, so that two
    processes that create the same sessions do so in the same order.
    """
    last: dict[Hashable, int] = {}
    waves_so_far: list[Wave] = []
    order: dict[int, str] = {}
    for index, command in enumerate(commands):
        names = lock_keys(command)
        keys = {*names, *(session for name in names for session in locked.sessions_of(name))}
        wave = max((last[key] + 1 for key in keys if key in last), default=0)
        for key in keys:
            last[key] = wave
        if wave == len(waves_so_far):
            waves_so_far.append([])
        waves_so_far[wave].append(index)
        order[index] = min(map(repr, names), default="")
    return [sorted(wave, key=lambda index: (order[index], index)) for wave in waves_so_far]
