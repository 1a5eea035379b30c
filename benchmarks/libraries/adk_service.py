"""Measure ADK's DatabaseSessionService: one event per message."""

# mypy: ignore-errors
import asyncio
import sys

from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.genai import types
from timing import TEXT, measure


def event() -> Event:
    return Event(author="user", content=types.Content(role="user", parts=[types.Part(text=TEXT)]))


async def main() -> None:
    where = sys.argv[1]
    if "://" in where:
        url = where.replace("postgresql://", "postgresql+asyncpg://")
    else:
        url = f"sqlite+aiosqlite:///{where}"
    service = DatabaseSessionService(db_url=url)
    sessions = {}

    async def prepare(length) -> None:
        session = await service.create_session(app_name="b", user_id="u", session_id=str(length))
        for _ in range(length):
            await service.append_event(session, event())
        sessions[length] = session

    async def append(length) -> None:
        await service.append_event(sessions[length], event())

    async def read(length) -> None:
        found = await service.get_session(app_name="b", user_id="u", session_id=str(length))
        assert len(found.events) >= length

    await measure(prepare, append, read)


asyncio.run(main())
