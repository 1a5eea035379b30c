"""Recordings in chats: transcribed within bounds, and named to the person where they are not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.providers.http.client import PooledClient
from holdfast.providers.http.transcriber import UpstreamTranscriber
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.settings import UpstreamSettings
from holdfast.testing.simulator.process import ProviderSimulator
from tests.integration.chat_room import ChatRoom, open_chat_room

RECORDINGS = [
    (b"OggS...", "", "ogg"),
    (b"ID3...", "", "mp3"),
    (b"RIFF....WAVE", "song.mp3", "wav"),
    (b"....ftypM4A ", "voice.oga", "m4a"),
    (b"\x1aE\xdf\xa3", "", "webm"),
    (b"unknown", 'a".FLAC', "flac"),
    (b"unknown", "", "mpeg"),
]


@asynccontextmanager
async def voice_room(
    kind: str = "telegram", *, seconds: float = 60.0, **more: Any
) -> AsyncIterator[tuple[ChatRoom, ProviderSimulator]]:
    """Run a gateway with a channel, and a server that transcribes."""
    with ProviderSimulator() as provider:
        settings = UpstreamSettings(url=provider.base_url, key="sk-voice")
        client = PooledClient(settings.timeouts)
        transcriber = UpstreamTranscriber(Upstream(settings, client), "whisper-1", seconds)
        try:
            async with open_chat_room(kind, transcriber=transcriber, **more) as room:
                yield room, provider
        finally:
            await client.close()


def speak(room: ChatRoom, content: bytes = b"OggS...", **more: Any) -> None:
    """Have person 7 send a recording."""
    room.telegram.files["v"] = content
    file = {"file_id": "v", "mime_type": "audio/mpeg", "file_size": len(content), **more}
    room.telegram.say("", voice=file)


@pytest.mark.parametrize(("content", "name", "extension"), RECORDINGS)
async def test_the_file_name_tells_a_server_the_format(
    content: bytes, name: str, extension: str
) -> None:
    async with voice_room() as (room, provider):
        speak(room, content, file_name=name)
        await room.until_text(f"Speech of {len(content)} bytes.")
        [call] = provider.requests(api="audio")
        assert call.body["file"] == f"recording.{extension}"


async def test_a_recording_on_slack_is_transcribed() -> None:
    async with voice_room("slack") as (room, provider):
        provider.add_answer("it rains", when={"api": "audio"})
        room.slack.files["F1"] = ("audio_message.m4a", "audio/mp4", b"....ftypM4A ")
        file = {"id": "F1", "name": "audio_message.m4a", "mimetype": "audio/mp4", "size": 12}
        room.slack.say("listen", files=[file], subtype="file_share")
        await room.until_text("[Transcript of audio_message.m4a:]\nit rains")


async def test_a_busy_server_is_retried() -> None:
    async with voice_room() as (room, provider):
        provider.add_fault("rate_limit", retry_after_seconds=0.01, when={"api": "audio"}, times=2)
        provider.add_answer("hello", when={"api": "audio"})
        speak(room)
        await room.until_text("[Transcript of audio:]\nhello")
        assert len(provider.requests(api="audio")) == 3


async def test_a_server_that_hangs_delays_the_turn_for_a_bounded_time() -> None:
    async with voice_room(seconds=0.1) as (room, provider):
        provider.add_fault("hang", when={"api": "audio"})
        speak(room)
        await room.until_text("not understood: it could not be transcribed.")
        await room.until_text("re:")


async def test_what_is_too_large_is_not_loaded() -> None:
    async with voice_room(media_bytes=6) as (room, provider):
        speak(room)
        await room.until_text("Your voice message was not understood: it is too large.")
        assert provider.requests(api="audio") == []


async def test_silence_is_no_text() -> None:
    async with voice_room() as (room, provider):
        provider.add_answer(" ", when={"api": "audio"})
        speak(room)
        await room.until_text("Your voice message was not understood: nothing is said in it.")


async def test_without_a_transcription_server_a_line_explains_it() -> None:
    async with open_chat_room("telegram") as room:
        speak(room)
        await room.until_text(
            "Your voice message was not understood: voice and audio cannot be transcribed here."
        )
        assert not any(method == "getFile" for method, _ in room.telegram.calls)
