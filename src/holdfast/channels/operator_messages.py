"""Messages of an operator to a chat: check them and split them for the outbox."""

from collections.abc import Callable, Sequence

from holdfast.core.errors import InvalidInput
from holdfast.core.model.delivery import MAX_TARGET, OutboxFile, OutboxMessage
from holdfast.core.transaction.outgoing import MAX_FILES
from holdfast.ports.channel import OperatorMessage, OutgoingFile

MAX_TEXT = 100_000
"""The most characters that may be sent at once."""
MAX_FILE_NAME = 128


def check_message(channel: str, message: OperatorMessage, max_bytes: int) -> None:
    """Raise for a message that can never be sent."""
    for param, value in (("to", message.chat), ("thread", message.thread)):
        if len(value) > MAX_TARGET or "\0" in value:
            raise InvalidInput(f"{param} is not an id of a platform", param=param)
    if not message.chat:
        raise InvalidInput("a message needs a chat", param="to")
    if not message.text.strip() and not message.files:
        raise InvalidInput("a message needs a text or a file", param="text")
    size = len(message.text)
    if size > MAX_TEXT:
        raise InvalidInput(f"the text has {size:,} characters; at most {MAX_TEXT:,}", param="text")
    if message.files:
        _check_files(channel, message.files, max_bytes)


def _check_files(channel: str, files: Sequence[OutgoingFile], max_bytes: int) -> None:
    size = sum(len(file.content) for file in files)
    reason = None
    if not max_bytes:
        reason = f"channel {channel} sends no files"
    elif len(files) > MAX_FILES:
        reason = f"a message may have {MAX_FILES} files"
    elif not all(file.content for file in files):
        reason = "an empty file cannot be sent"
    elif size > max_bytes:
        reason = f"the files have {size:,} bytes; channel {channel} sends at most {max_bytes:,}"
    if reason is not None:
        raise InvalidInput(reason, param="files")


def to_parts(
    channel: str, message: OperatorMessage, split: Callable[[str, str], Sequence[str]]
) -> tuple[OutboxMessage, ...]:
    """Return the messages to write: the text in parts, then the files in order."""
    texts = split(channel, message.text) if message.text.strip() else ()
    files = [
        OutboxFile(name=file_name(file.name), media_type=file.media_type, content=file.content)
        for file in message.files
    ]
    contents: list[tuple[str, OutboxFile | None]] = [(text, None) for text in texts]
    contents += [("", file) for file in files]
    return tuple(
        OutboxMessage(
            channel=channel, chat=message.chat, thread=message.thread, text=text, file=file
        )
        for text, file in contents
    )


def file_name(name: str) -> str:
    """Return the name of a file without folders and without characters that break a header."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(char for char in last if char.isprintable() and char not in '"<>|;')
    return kept.strip()[-MAX_FILE_NAME:] or "file"
