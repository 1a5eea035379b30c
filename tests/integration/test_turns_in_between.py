"""A turn or a reset that comes between any two looks of a request at the store.

What a request found out holds only for the log that it looked at.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key, SessionId
from holdfast.core.transaction.commands import Delete
from holdfast.ports.store import Store
from tests.in_process import Item, RunningGateway, open_gateway

MOST_READS = 40


class _SteppedReader:
    """A reader that does something once, after the n-th of its reads."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self._left = 0
        self._deed: Callable[[], Awaitable[None]] | None = None

    def after(self, count: int, deed: Callable[[], Awaitable[None]]) -> None:
        """Do `deed` once so many reads have been answered from now on."""
        self._left, self._deed = count, deed

    @property
    def is_done(self) -> bool:
        """Whether there were so many reads."""
        return self._deed is None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._read, name)

        async def read(*args: Any, **more: Any) -> Any:
            found = await method(*args, **more)
            await self._count()
            return found

        return read

    async def _count(self) -> None:
        self._left -= 1
        deed = self._deed
        if deed is not None and self._left <= 0:
            self._deed = None
            await deed()


class _SteppedStore:
    """A store whose reads are counted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.uncounted = store.read
        self.read = _SteppedReader(store.read)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def turns(self, key: str) -> int:
        """Return how many turns a key has."""
        await asyncio.sleep(0)
        view = await self.uncounted.session(DEFAULT_TENANT, key=Key(key))
        return view.session.turn_count if view is not None else 0


@asynccontextmanager
async def _stepped_gateway(url: str) -> AsyncIterator[tuple[RunningGateway, _SteppedStore]]:
    stores: list[_SteppedStore] = []

    def wrap(store: Store) -> Any:
        stores.append(_SteppedStore(store))
        return stores[0]

    async with open_gateway(store_url=url, wrap=wrap) as gateway:
        yield gateway, stores[0]


@pytest.fixture(name="store_url", params=["memory", "sqlite"])
def _store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'h.db'}"


def _user(text: str) -> Item:
    return {"role": "user", "content": text}


async def _regenerate(gateway: RunningGateway, store: _SteppedStore, key: str, reads: int) -> bool:
    """Ask for an answer again while another turn arrives; return whether it came in between.

    Both turns are accepted before the model says a word.
    """
    await gateway.chat([_user("one")], key)
    calls = len(gateway.model.calls)
    gateway.model.gate.clear()
    others: list[asyncio.Task[httpx.Response]] = []

    async def another_turn() -> None:
        accepted = await store.turns(key)
        others.append(asyncio.create_task(gateway.chat([_user("two")], key)))
        while await store.turns(key) == accepted:
            pass

    store.read.after(reads, another_turn)
    history = [_user("one"), {"role": "assistant", "content": "re:one"}]
    again = asyncio.create_task(gateway.chat(history, key))
    while await store.turns(key) < 3:
        if len(gateway.model.calls) > calls and not store.read.is_done:
            break
    has_come = store.read.is_done
    gateway.model.gate.set()
    for reply in await asyncio.gather(again, *others):
        assert reply.status_code == 200, reply.text
    asked = sorted(shown[-1] for shown in gateway.model.shown[calls:])
    assert asked == (["one", "two"] if has_come else ["one"]), reads
    return has_come


async def test_an_answer_given_again_follows_its_question_whatever_turn_came_in_between(
    store_url: str,
) -> None:
    async with _stepped_gateway(store_url) as (gateway, store):
        reads = 1
        while await _regenerate(gateway, store, f"k{reads}", reads):
            reads += 1
    assert 1 < reads < MOST_READS


async def _go_on(gateway: RunningGateway, store: _SteppedStore, key: str, reads: int) -> bool:
    """Send a history while its session is reset; return whether the reset came in between."""
    session_id = (await gateway.chat([_user("one")], key)).headers["x-session-id"]

    async def reset() -> None:
        done = await gateway.client.post(f"/v1/sessions/{session_id}/reset")
        assert done.status_code == 200, done.text

    store.read.after(reads, reset)
    history = [_user("one"), {"role": "assistant", "content": "re:one"}, _user("two")]
    reply = await gateway.chat(history, key)
    if not store.read.is_done:
        return False
    if reply.status_code == 200:
        assert gateway.model.shown[-1] == ["one", "re:one", "two"], reads
        if reply.headers["x-session-id"] != session_id:
            assert await gateway.log(key) == ["one", "re:one", "two", "re:two"]
    else:
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "turn_cancelled")
    return True


async def test_a_history_is_shown_whole_whatever_reset_came_in_between(store_url: str) -> None:
    async with _stepped_gateway(store_url) as (gateway, store):
        reads = 1
        while await _go_on(gateway, store, f"k{reads}", reads):
            reads += 1
    assert 1 < reads < MOST_READS


READ_PATHS = [
    "/v1/responses/{response}", "/v1/responses/{response}?stream=true",
    "/v1/responses/{response}/input_items", "/v1/chat/completions/{completion}",
    "/v1/chat/completions/{completion}/messages", "/v1/chat/completions?model={model}",
    "/v1/sessions/{session}/items", "/v1/sessions/{session}/items?view=log",
    "/v1/conversations/{conversation}/items",
]  # fmt: skip


NO_PAGE = '{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}'
GONE = (
    "response_not_found", "completion_not_found", "session_not_found", "conversation_not_found",
    "cut off",
)  # fmt: skip


@pytest.mark.parametrize("path", READ_PATHS)
async def test_a_deletion_in_between_shows_all_or_nothing(path: str, any_store_url: str) -> None:
    async with _stepped_gateway(any_store_url) as (gateway, store):
        for reads in range(1, MOST_READS):
            key, model = f"k{reads}", f"m{reads}"
            response = await gateway.respond("one", key, model=model)
            completion = await gateway.chat([_user("two")], key, store=True, model=model)
            session = response.headers["x-session-id"]
            named = path.format(
                response=response.json()["id"], completion=completion.json()["id"], model=model,
                session=session, conversation=session.replace("ses_", "conv_"),
            )  # fmt: skip
            whole = await _shown(gateway, named)

            async def delete(session: str = session) -> None:
                command = Delete(tenant=DEFAULT_TENANT, session_id=SessionId(session))
                await gateway.engine.submit(command)

            store.read.after(reads, delete)
            shown = await _shown(gateway, named)
            if not store.read.is_done:
                assert shown == whole
                return
            nothing = [NO_PAGE] if "?model=" in path else GONE
            assert shown == whole or shown in nothing, shown
    raise AssertionError(f"more than {MOST_READS} reads")


async def _shown(gateway: RunningGateway, path: str) -> str:
    """Return what a path shows; for an error its code, for a stream without an end `cut off`."""
    try:
        answer = await gateway.client.get(path)
    except httpx.RemoteProtocolError:
        return "cut off"
    return answer.text if answer.is_success else str(answer.json()["error"]["code"])
