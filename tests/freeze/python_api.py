"""Conversations through the public Python API: `holdfast.open`, and the session of the Agents SDK.

Each story is a function that yields what is to be told. The same items are then read again.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from agents import RunConfig, Runner

import holdfast
from holdfast.agents_sdk import HoldfastSession
from tests.agents_sdk.fake_model import FakeModel, agent_of
from tests.freeze.door_adapter import open_door
from tests.freeze.recording import memory_folder
from tests.freeze.values import Data, plain

Told = AsyncIterator[tuple[str, Data]]
QUIET = RunConfig(tracing_disabled=True)
CONFIG = '[store]\nurl = "memory:"\n'


async def _echo(items: list[Any]) -> dict[str, Any]:
    text = "; ".join(str(item.get("content", item.get("type"))) for item in items)
    return {"role": "assistant", "content": f"saw {text}"}


async def _refused(work: Any) -> str:
    """Return how something is refused."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - what it is, is told
        return f"{type(error).__name__}: {error}"
    return "not refused"


async def turns(folder: Path) -> Told:
    """Turns with and without keys, a failing one, and what is stored of them."""
    async with holdfast.open(f"sqlite:///{folder / 'store.db'}") as hf:
        session = await hf.session("agent:main:direct:michael")
        async with session.turn("yes", idempotency_key="tg:42:1007") as turn:
            yield "context", await turn.context()
            turn.add({"role": "assistant", "content": "done"})
        yield "output", await turn.output()
        async with session.turn("yes", idempotency_key="tg:42:1007") as again:
            yield "again", [again.is_done, again.id == turn.id]
        yield "again output", await again.output()

        async def fails() -> None:
            async with session.turn("bad") as turn:
                turn.add({"role": "assistant", "content": "lost"})
                raise ValueError("no")

        yield "a failing block", await _refused(fails())
        yield "run", await session.run("and now?", _echo)
        yield "run once", await session.run("once", _echo, idempotency_key="r")
        yield "run again", await session.run("once", _echo, idempotency_key="r")
        yield "reused key", await _refused(session.run("other", _echo, idempotency_key="r"))
        yield "items", await session.items()
        yield "turns", [plain(view.status) for view in await session.turns()]


async def lifecycle(folder: Path) -> Told:
    """Append, reset, restore, fork and delete."""
    async with holdfast.open(f"sqlite:///{folder / 'store.db'}") as hf:
        session = await hf.session("k")
        await session.append(["one", {"role": "assistant", "content": "two"}], batch_id="b")
        await session.append(["one", {"role": "assistant", "content": "two"}], batch_id="b")
        yield "reused batch", await _refused(session.append("other", batch_id="b"))
        fork = await session.fork(after_item=1)
        yield "in the fork", await fork.run("branch", _echo)
        first = session.id
        await session.reset()
        yield "generation", [session.generation, session.id == first]
        yield "after the reset", await session.run("fresh", _echo)
        await session.restore(first)
        yield "after the restore", await session.run("back", _echo)
        yield "wrong generation", await _refused(session.reset(expected_session_id="ses_none"))
        yield "forks", await _refused(session.delete())
        await session.delete(cascade=True)
        yield "deleted", await _refused(session.items())
        yield "unknown", await _refused(hf.session(id="ses_none"))


async def agents_sdk(folder: Path) -> Told:
    """The session of the Agents SDK, embedded and against a gateway."""
    config = folder / "holdfast.toml"
    config.write_text(CONFIG)
    async with open_door(config) as port:
        for place in (
            {"store": f"sqlite:///{folder / 'sdk.db'}"},
            {"url": f"http://127.0.0.1:{port}"},
        ):
            async with HoldfastSession("k", **place) as session:  # type: ignore[arg-type]  # one of both
                async for told in _sdk_session(session):
                    yield told


async def _sdk_session(session: HoldfastSession) -> Told:
    user: Any = {"role": "user", "content": "one"}
    await session.add_items([user, {"role": "assistant", "content": "two"}], batch_id="b")
    await session.add_items([user, {"role": "assistant", "content": "two"}], batch_id="b")
    yield "items", await session.get_items()
    yield "last item", await session.get_items(1)
    yield "popped", await session.pop_item()
    model = FakeModel()
    result = await Runner.run(agent_of(model), "three", session=session, run_config=QUIET)
    yield "answer", result.final_output
    result = await Runner.run(agent_of(model), "four", session=session, run_config=QUIET)
    yield "items after runs", [_without_id(item) for item in await session.get_items()]
    await session.clear_session()
    yield "cleared", await session.get_items()


def _without_id(item: Any) -> Data:
    """Return an item without its id, which the model of the tests counts over all tests."""
    return {name: each for name, each in plain(item).items() if name != "id"}


STORIES: dict[str, Callable[[Path], Told]] = {
    "turns": turns, "lifecycle": lifecycle, "agents_sdk": agents_sdk,
}  # fmt: skip


async def see_stories(masked: Callable[[str], str]) -> list[str]:
    """Return what is told by all stories, as lines."""
    lines: list[str] = []
    for name, story in STORIES.items():
        lines.append(f'{{"story":"{name}"}}')
        with memory_folder() as folder:
            async for what, told in story(folder):
                lines.append(masked(msgspec.json.encode({what: plain(told)}).decode()))
    return lines
