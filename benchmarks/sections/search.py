"""Full-text search: how fast items are indexed, how large the index is, how long a query takes.

Items have 40 words, drawn as words are in texts: few are common, most are rare. Queries are one and
two words of different rarity, within a tenant and within one key.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles

from tests.postgres import private_server

import holdfast
from benchmarks.report import Report
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.maintenance.search_indexer import SearchIndexer
from holdfast.ports.search import SearchQuery

ITEMS, SHORT_ITEMS = 1_000_000, 2_000
WORDS_PER_ITEM = 40
VOCABULARY = 50_000
ITEMS_PER_APPEND = 20
SESSIONS = 1_000
QUERIES, SHORT_QUERIES = 300, 20

_WORDS = [f"w{number:x}" for number in range(VOCABULARY)]
_WEIGHTS = list(accumulate(1 / (rank + 10) for rank in range(VOCABULARY)))


async def _fill(engine: holdfast.Holdfast, items: int, choose: random.Random) -> int:
    """Append messages; return how many characters they have."""
    size = 0
    for number in range(max(items // ITEMS_PER_APPEND, 1)):
        session = await engine.session(f"agent:{number % SESSIONS}")
        texts = [
            " ".join(choose.choices(_WORDS, cum_weights=_WEIGHTS, k=WORDS_PER_ITEM))
            for _ in range(ITEMS_PER_APPEND)
        ]
        size += sum(map(len, texts))
        await session.append([{"role": "user", "content": text} for text in texts])
    return size


def _queries(count: int, choose: random.Random) -> Iterator[tuple[str, SearchQuery]]:
    for _ in range(count):
        rare, common = choose.choice(_WORDS[1_000:]), choose.choice(_WORDS[20:1_000])
        yield "one word", SearchQuery(text=rare)
        yield "two words", SearchQuery(text=f"{rare} {common}")
        yield "common word", SearchQuery(text=common)
        key = Key(f"agent:{choose.randrange(SESSIONS)}")
        yield "one key", SearchQuery(text=common, key=key)


async def _measure(report: Report, store: str, url: str, *, is_short: bool) -> None:
    choose = random.Random(7)
    items = SHORT_ITEMS if is_short else ITEMS
    async with holdfast.open(url) as engine:
        characters = await _fill(engine, items, choose)
        before = _file_bytes(url)
        indexer = SearchIndexer(engine.gateway)
        began = time.perf_counter()
        await indexer.catch_up()
        rate = items / (time.perf_counter() - began)
        index = {} if before is None else {
            "index_bytes_per_character": ((_file_bytes(url) or 0) - before) / characters
        }  # fmt: skip
        report.add("search", store=store, what="index", items=items, items_per_second=rate, **index)
        times: dict[str, list[float]] = {}
        for what, query in _queries(SHORT_QUERIES if is_short else QUERIES, choose):
            began = time.perf_counter()
            await engine.gateway.store.search.search(DEFAULT_TENANT, query)
            times.setdefault(what, []).append(1000 * (time.perf_counter() - began))
    for what, taken in times.items():
        p95 = quantiles(taken, n=20)[-1]
        report.add("search", store=store, what=what, items=items, p50_ms=median(taken), p95_ms=p95)


def _file_bytes(url: str) -> int | None:
    """Return the size of a SQLite store's files."""
    if not url.startswith("sqlite:"):
        return None
    path = Path(url.removeprefix("sqlite:///"))
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*") if file.is_file())


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure both databases; a short run has SQLite alone."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/search.db"
        asyncio.run(_measure(report, "SQLite", url, is_short=is_short))
    if not is_short:
        with private_server() as server:
            asyncio.run(_measure(report, "PostgreSQL", server.url(), is_short=False))
