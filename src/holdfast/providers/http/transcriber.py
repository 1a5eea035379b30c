"""Have recordings transcribed by an upstream, as OpenAI's `POST /audio/transcriptions` does it."""

import asyncio
import secrets
import time

from holdfast.core.errors import ProviderFailure
from holdfast.ports.channel import Attachment
from holdfast.providers.errors import broken, failure_of
from holdfast.providers.failure_log import log_failure
from holdfast.providers.http.upstream import Upstream, read_json

PATH = "/audio/transcriptions"
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 0.5
_SIGNATURES = (
    (b"OggS", "ogg"), (b"ID3", "mp3"), (b"\xff\xfb", "mp3"), (b"\xff\xf3", "mp3"),
    (b"fLaC", "flac"), (b"\x1aE\xdf\xa3", "webm"), (b"\xff\xf1", "aac"), (b"\xff\xf9", "aac"),
)  # fmt: skip


class UpstreamTranscriber:
    """Turns recordings into text; see `Transcriber`."""

    def __init__(self, upstream: Upstream, model: str, seconds: float) -> None:
        self._upstream = upstream
        self._model = model
        self._seconds = seconds

    async def transcribe(self, attachment: Attachment, content: bytes) -> str:
        """Transcribe a recording; retry transient failures."""
        content_type, body = _form(self._model, _file_name(attachment, content), content)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._try(content_type, body)
        except TimeoutError as exc:
            message = f"no transcript within {self._seconds:g} s"
            raise broken(message, "transcription_timeout") from exc

    async def _try(self, content_type: str, body: bytes) -> str:
        pause = FIRST_PAUSE_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._call(content_type, body)
            except ProviderFailure as failure:
                if attempt == ATTEMPTS or failure.failure_class != "transient":
                    raise
                await asyncio.sleep(failure.retry_after or pause)
                pause *= 2
        raise AssertionError

    async def _call(self, content_type: str, body: bytes) -> str:
        request = self._upstream.build_request(
            "POST", PATH, [body], {"content-type": content_type}, may_repeat=True
        )
        started_at = time.monotonic()
        try:
            async with self._upstream.exchange(request) as answer:
                read = await answer.read()
                if not 200 <= answer.status < 300:
                    failure = failure_of(answer.status, answer.headers, read)
                    raise self._upstream.redact_failure(failure)
            text = read_json(read).get("text")
            if not isinstance(text, str):
                raise broken("the upstream's answer has no text", "upstream_broken_answer")
            return text.strip()
        except ProviderFailure as failure:
            key = self._upstream.settings.key
            log_failure(self._upstream.name, failure, started_at, path=PATH, key=key)
            raise


def _file_name(attachment: Attachment, content: bytes) -> str:
    """Return a name with the extension of the content: servers detect the format by it.

    Platforms send voice messages with no extension, or with one that servers do not know.
    """
    extension = next((name for start, name in _SIGNATURES if content.startswith(start)), "")
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        extension = "wav"
    elif content[4:8] == b"ftyp":
        extension = "m4a"
    extension_sent = attachment.name.rpartition(".")[2] if "." in attachment.name else ""
    subtype = attachment.media_type.partition(";")[0].rpartition("/")[2]
    extension = extension or extension_sent or subtype
    safe = "".join(char for char in extension if char.isascii() and char.isalnum())[:8].lower()
    return f"recording.{safe or 'ogg'}"


def _form(model: str, name: str, content: bytes) -> tuple[str, bytes]:
    """Return the content type and the body of the request."""
    boundary = secrets.token_hex(16)
    head = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in (("model", model), ("response_format", "json"))
    )
    head += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = b"".join((head.encode(), content, f"\r\n--{boundary}--\r\n".encode()))
    return f"multipart/form-data; boundary={boundary}", body
