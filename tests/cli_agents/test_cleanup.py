"""A clean-up deletes nothing of use, and no broken directory ends it."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.maintenance.runtime_cleanup import RuntimeCleanup
from holdfast.ports.provider import ModelCall
from holdfast.ports.session_runtimes import FindSession, RuntimeSession
from holdfast.processes.child import UnixAccount
from holdfast.providers.cli_agents.directories import AgentDirectories
from holdfast.providers.cli_agents.provider import CliAgentProvider
from holdfast.providers.cli_agents.registry import open_agent
from tests.cli_agents.agents import processes_of
from tests.cli_agents.test_agent_approvals import MODEL, asking

NOBODY = UnixAccount(65534, 65534)


def _provider(root: Path, **more: Any) -> CliAgentProvider:
    return open_agent(asking(root, **more), lambda prefix: f"{prefix}_1")


def _add_transcript(provider: CliAgentProvider, name: str) -> Path:
    directory = provider.directories.session(name)
    directory.create()
    return directory.write_config("transcript", "old")


async def _find_idle(_: str) -> RuntimeSession:
    return RuntimeSession()


async def _find_erased(_: str) -> RuntimeSession:
    return RuntimeSession(is_erased=True)


class _Gateway:
    """Knows every session, and none has a provider state."""

    find_runtime_session = staticmethod(_find_idle)


class _Runtimes:
    """The agents of one provider."""

    is_empty = False

    def __init__(self, provider: CliAgentProvider) -> None:
        self._provider = provider
        self.end_session = provider.end_session
        self.running_sessions = provider.running_sessions
        self.stored_sessions = provider.stored_sessions

    async def clean_session(self, session_id: str, find: FindSession) -> None:
        await self._provider.clean_session(session_id, find)


async def test_a_broken_directory_does_not_keep_others_from_being_cleaned(root: Path) -> None:
    provider = _provider(root)
    transcripts = [_add_transcript(provider, name) for name in ("ses_1", "ses_3")]
    _add_transcript(provider, "ses_2")
    folder = root / "asking"
    (folder / "ses_2" / "lock").mkdir()
    (folder / "ses_1" / "session.json").write_bytes(b'{"token":"\xff"}')
    (folder / "a file").touch()
    (folder / os.fsdecode(b"\xff")).mkdir()
    gateway: Any = _Gateway()
    await provider.start()
    await RuntimeCleanup(gateway, _Runtimes(provider)).check(is_full=True)
    assert not any(path.exists() for path in transcripts)
    names: Collection[str] = await provider.stored_sessions()
    assert set(names) == {"ses_1", "ses_2", "ses_3"}


@pytest.mark.parametrize("last", [NOBODY, UnixAccount(65535, 65535)])
async def test_a_clean_up_leaves_directories_to_the_agents_user(
    root: Path, last: UnixAccount
) -> None:
    provider = _provider(root)
    provider.directories = AgentDirectories(root / "asking", "", (NOBODY, last))
    transcript = _add_transcript(provider, "ses_1")
    folders = [root / "asking", root / "asking/ses_1", root / "asking/ses_1/config"]
    before = [(path.stat().st_uid, path.stat().st_mode) for path in folders]
    await provider.clean_session("ses_1", _find_idle)
    assert not transcript.exists()
    assert [(path.stat().st_uid, path.stat().st_mode) for path in folders] == before


async def test_a_process_ends_if_another_gateway_has_deleted_its_directory(root: Path) -> None:
    provider, other = _provider(root), _provider(root)
    items = [b'{"type":"message","role":"user","content":"hi"}']
    call = ModelCall(model=MODEL, items=items, new_items=items, session_id="ses_1")
    try:
        assert (await provider.answer(call)).items
        await other.clean_session("ses_1", _find_erased)
        assert await provider.stored_sessions() == []
        assert processes_of(root)
        await provider.clean_session("ses_1", _find_erased)
        assert processes_of(root) == []
    finally:
        await provider.close()


async def test_a_session_of_a_gateway_with_other_settings_is_left_alone(root: Path) -> None:
    provider, other = _provider(root), _provider(root, permissions="read")
    items = [b'{"type":"message","role":"user","content":"hi"}']
    call = ModelCall(model=MODEL, items=items, new_items=items, session_id="ses_1")
    try:
        state = (await provider.answer(call)).state
        assert state is not None
        running = processes_of(root)
        transcript = _add_transcript(provider, "ses_1")

        async def find(_: str) -> RuntimeSession:
            return RuntimeSession(states=(state,))

        await other.clean_session("ses_1", find)
        assert transcript.exists()
        assert processes_of(root) == running
        assert running
    finally:
        await provider.close()
        await other.close()
