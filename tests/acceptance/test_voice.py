"""Voice messages: their text goes into the turn, and a person who is not understood is told so."""

from pathlib import Path

from holdfast.simulator.platforms.telegram import TelegramSimulator
from tests.acceptance.channel_stories import QUICK, signal_story, telegram_story
from tests.acceptance.test_telegram import until_sent

TRANSCRIBE = '[transcribe]\nupstream = "upstream"\nmodel = "whisper-1"\n'
OGG = b"OggS\0voice of Ada"


def speak(telegram: TelegramSimulator, content: bytes = OGG) -> None:
    """Have person 7 send a voice message."""
    name = f"voice-{len(telegram.files)}"
    telegram.files[name] = content
    telegram.say("", voice={"file_id": name, "mime_type": "audio/x-new", "file_size": 17})


def test_a_voice_message_is_answered_by_what_it_says(store_url: str, tmp_path: Path) -> None:
    with telegram_story(store_url, tmp_path, rest=TRANSCRIBE) as (telegram, provider, _):
        provider.add_answer("book the flight to Rome", when={"api": "audio"})
        speak(telegram)
        telegram.wait_for_text("[Transcript of audio:]\nbook the flight to Rome")
        assert len(telegram.texts()) == 1, "nothing but the answer"
        [call] = provider.requests(api="audio")
        assert call.headers["authorization"] == "Bearer sk-story"
        form = {"model": "whisper-1", "response_format": "json", "file": "recording.ogg"}
        assert call.body == form
        telegram.deliver_again(1)
        telegram.say("and back")
        telegram.wait_for_text("Last text: and back")
        assert len(provider.requests(api="audio")) == 1


def test_a_recording_that_cannot_be_transcribed_is_named_once(
    store_url: str, tmp_path: Path
) -> None:
    rest = f"{TRANSCRIBE}{QUICK}"
    with telegram_story(store_url, tmp_path, rest=rest) as (telegram, provider, gateway):
        barrier = provider.hold(when={"api": "responses"})
        speak(telegram, b"in a format that nobody knows")
        line = "Your voice message was not understood: it could not be transcribed."
        telegram.wait_for_text(line)
        barrier.wait_held()
        until_sent(gateway, 1)
        gateway.kill()
        barrier.remove()
        gateway.start()
        telegram.wait_for_text("it could not be transcribed.]")
        telegram.say("and now?")
        telegram.wait_for_text("Last text: and now?")
        assert telegram.texts().count(line) == 1
        assert len(provider.requests(api="audio")) == 1, (
            "the answer is stored before the model call"
        )


def test_a_recording_of_signal_is_transcribed(tmp_path: Path) -> None:
    with signal_story("memory:", tmp_path, rest=TRANSCRIBE) as (signal, provider, _):
        provider.add_answer("it rains", when={"api": "audio"})
        signal.files["A1"] = OGG
        signal.say("", attachments=[{"id": "A1", "contentType": "audio/aac", "size": 17}])
        signal.wait_for_text("it rains")
        assert len(provider.requests(api="audio")) == 1
