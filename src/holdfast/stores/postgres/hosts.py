"""Connect to one of several hosts although others of them hang.

asyncpg tries hosts one after another within a single time limit. A host that accepts a connection
and says nothing, as a frozen primary does, would keep it from all hosts behind it.
"""

import asyncio
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from holdfast.stores.postgres.errors import meaning

HEAD_START_SECONDS = 0.25
"""How long a host has before the next one is tried beside it."""
PREFERS_STANDBY = "prefer-standby"
"""What asyncpg must decide itself: it compares the hosts."""


async def connect_to_any(dsn: str | None = None, **arguments: Any) -> asyncpg.Connection:
    """Return a connection to the first host that answers and is what the URL asks for."""
    one_each = _one_for_each_host(dsn or "")
    if len(one_each) == 1:
        connection: asyncpg.Connection = await asyncpg.connect(dsn, **arguments)
        return connection
    running: set[asyncio.Task[asyncpg.Connection]] = set()
    errors: list[BaseException] = []
    try:
        while one_each or running:
            if one_each:
                running.add(asyncio.create_task(asyncpg.connect(one_each.pop(0), **arguments)))
            pause = HEAD_START_SECONDS if one_each else None
            done, _ = await asyncio.wait(
                running, timeout=pause, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                running.remove(task)
                if (error := task.exception()) is None:
                    return task.result()
                errors.append(error)
    finally:
        for task in running:
            task.add_done_callback(_discard)
            task.cancel()
    raise _most_telling(errors)


def _one_for_each_host(dsn: str) -> list[str]:
    """Return a URL for each host, in their order; the URL itself if it cannot be divided."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if query.get("target_session_attrs") == PREFERS_STANDBY:
        return [dsn]
    user, at, hosts = parts.netloc.rpartition("@")
    if hosts:
        return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]
    names, ports = query.get("host", "").split(","), query.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(names)
    if len(ports) != len(names):
        return [dsn]
    each = [{**query, "host": name, "port": port} for name, port in zip(names, ports, strict=True)]
    return [
        urlunsplit(
            parts._replace(query=urlencode({k: v for k, v in one.items() if v}, quote_via=quote))
        )
        for one in each
    ]


def _discard(task: "asyncio.Task[asyncpg.Connection]") -> None:
    """Drop the connection of an attempt that another one has overtaken."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def _most_telling(errors: list[BaseException]) -> BaseException:
    """Return the error of all hosts together.

    A refused name or password counts if no host took it; otherwise the primary may come back.
    """
    others = [exc for exc in errors if not isinstance(exc, asyncpg.TargetServerAttributeNotMatched)]
    if len(others) == len(errors):
        others.sort(key=lambda exc: meaning(exc) != "refused")
    else:
        others.sort(key=lambda exc: meaning(exc) != "gone")
    return (others or errors)[0]
