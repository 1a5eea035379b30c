"""Full-text search: how fast items are indexed, how large the index is, how long a query takes.

An item has 40 words with a natural distribution: few are common, most are rare. One item in ten is
Chinese. Items are appended, indexed and searched by the same code as in a gateway.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles

import asyncpg
import msgspec
from tests.postgres import private_server

import holdfast
from benchmarks.report import Report
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.maintenance.search_indexer import SearchIndexer
from holdfast.ports.search import SearchQuery

ITEMS, SHORT_ITEMS = 100_000, 2_000
QUERIES, SHORT_QUERIES = 100, 5
WORDS_PER_ITEM = 40
VOCABULARY = 50_000
ITEMS_PER_APPEND = 20
SESSIONS, AGENTS = 1_000, 20
WRITERS = 8
CHINESE_EVERY = 10
SAMPLE_EVERY = 1_000

_SHARES = list(accumulate(1 / (rank + 10) for rank in range(VOCABULARY)))
_WORDS = [f"w{number:x}" for number in range(VOCABULARY)]
# Words of two characters, from a set of 1,500.
_CHINESE = [
    chr(0x4E00 + number % 1_500) + chr(0x4E00 + number * 7 // 3 % 1_500)
    for number in range(VOCABULARY)
]


class _Filled(msgspec.Struct):
    """The content of a filled store."""

    characters: int = 0
    samples: list[str] = []
    """Some of the texts, for queries that find something."""
    chinese_samples: list[str] = []
    middle: float = 0.0
    """When half of the items were stored."""


def _key(number: int) -> Key:
    return Key(f"agent:{number % AGENTS}:user:{number}")


def _text(number: int, choose: random.Random) -> str:
    if number % CHINESE_EVERY == 0:
        return "".join(choose.choices(_CHINESE, cum_weights=_SHARES, k=WORDS_PER_ITEM))
    return " ".join(choose.choices(_WORDS, cum_weights=_SHARES, k=WORDS_PER_ITEM))


async def _fill(engine: holdfast.Holdfast, items: int, choose: random.Random) -> _Filled:
    """Append messages in several sessions at once, so that commits are grouped."""
    filled = _Filled()
    numbers = iter(range(max(items // ITEMS_PER_APPEND, 1)))

    async def write() -> None:
        for number in numbers:
            if number == items // ITEMS_PER_APPEND // 2:
                filled.middle = time.time()
            first = number * ITEMS_PER_APPEND
            texts = [_text(first + index, choose) for index in range(ITEMS_PER_APPEND)]
            filled.characters += sum(map(len, texts))
            if first % SAMPLE_EVERY == 0:
                filled.chinese_samples.append(texts[0])
                filled.samples.append(texts[1])
            session = await engine.session(_key(number % SESSIONS))
            await session.append(
                [
                    {"role": ("user", "assistant")[index % 2], "content": text}
                    for index, text in enumerate(texts)
                ]
            )

    await asyncio.gather(*(write() for _ in range(WRITERS)))
    return filled


def _queries(
    filled: _Filled, count: int, choose: random.Random
) -> Iterator[tuple[str, SearchQuery]]:
    for _ in range(count):
        rare, common = choose.choice(_WORDS[5_000:]), choose.choice(_WORDS[20:1_000])
        frequent = choose.choice(_WORDS[:20])
        key = _key(choose.randrange(SESSIONS))
        agent = f"agent:{choose.randrange(AGENTS)}:"
        words = choose.choice(filled.samples).split()
        at = choose.randrange(len(words) - 1)
        chinese = choose.choice(filled.chinese_samples)
        place = choose.randrange(len(chinese) - 4)
        yield "rare word", SearchQuery(text=rare)
        yield "common word", SearchQuery(text=common)
        yield "word of most items", SearchQuery(text=frequent)
        yield "rare and common word", SearchQuery(text=f"{rare} {common}")
        yield "two common words", SearchQuery(text=f"{common} {frequent}")
        yield "three words, some match", SearchQuery(text=f"{rare} {common} nowhere")
        yield "phrase", SearchQuery(text=f'"{words[at]} {words[at + 1]}"')
        yield "prefix of 17 words", SearchQuery(text=f"{_WORDS[choose.randrange(256, 3_000)]}*")
        yield "prefix of 273 words", SearchQuery(text=f"{_WORDS[choose.randrange(16, 180)]}*")
        yield "Chinese, one sign", SearchQuery(text=chinese[place])
        yield "Chinese, two signs", SearchQuery(text=chinese[place : place + 2])
        yield "Chinese, four signs", SearchQuery(text=chinese[place : place + 4])
        yield "one key", SearchQuery(text=common, key=key)
        yield "one key, rare word", SearchQuery(text=rare, key=key)
        yield "key prefix of an agent", SearchQuery(text=common, key_prefix=agent)
        yield "key prefix of few sessions", SearchQuery(text=common, key_prefix=key)
        yield "role", SearchQuery(text=common, roles=("assistant",))
        yield "role without items", SearchQuery(text=common, roles=("tool",))
        yield "newer half", SearchQuery(text=common, since=filled.middle)
        yield "older half", SearchQuery(text=common, until=filled.middle)
        yield "before all items", SearchQuery(text=common, until=1.0)


async def _measure(report: Report, store: str, url: str, items: int, queries: int) -> None:
    choose = random.Random(7)
    async with holdfast.open(url) as engine:
        filled = await _fill(engine, items, choose)
        before = await _stored_bytes(url)
        indexer = SearchIndexer(engine.gateway)
        began = time.perf_counter()
        await indexer.catch_up()
        rate = items / (time.perf_counter() - began)
        size = (await _stored_bytes(url) - before) / filled.characters
        report.add(
            "search", store=store, items=items, indexed_per_second=rate, bytes_per_character=size
        )
        times: dict[str, list[float]] = {}
        for what, query in _queries(filled, queries, choose):
            began = time.perf_counter()
            await engine.gateway.store.search.search(DEFAULT_TENANT, query)
            times.setdefault(what, []).append(1000 * (time.perf_counter() - began))
    for what, taken in times.items():
        p95 = quantiles(taken, n=20)[-1]
        report.add("search", store=store, items=items, query=what, p50_ms=median(taken), p95_ms=p95)


async def _stored_bytes(url: str) -> int:
    """Return the size of a store."""
    if url.startswith("sqlite:"):
        path = Path(url.removeprefix("sqlite:///"))
        files = path.parent.glob(path.name + "*")
        return sum(file.stat().st_size for file in files if file.is_file())
    connection = await asyncpg.connect(url)
    try:
        size: int = await connection.fetchval("select pg_database_size(current_database())")
    finally:
        await connection.close()
    return size


def run(report: Report, *, is_short: bool = False, items: int | None = None) -> None:
    """Measure both databases; a short run measures SQLite only."""
    items = items or (SHORT_ITEMS if is_short else ITEMS)
    queries = SHORT_QUERIES if is_short else QUERIES
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/search.db"
        asyncio.run(_measure(report, "SQLite", url, items, queries))
    if not is_short:
        with private_server() as server:
            asyncio.run(_measure(report, "PostgreSQL", server.url(), items, queries))
