"""Multipart forms: their fields, and their files."""

from dataclasses import dataclass
from email import message_from_bytes, policy
from typing import Any


@dataclass
class FormFile:
    """A file of a form."""

    name: str
    media_type: str
    content: bytes


def read_form(content_type: str, body: bytes) -> tuple[dict[str, Any], dict[str, FormFile]]:
    """Return the fields and files of a multipart form."""
    head = f"Content-Type: {content_type}\r\nMIME-Version: 1.0\r\n\r\n".encode()
    parsed = message_from_bytes(head + body, policy=policy.HTTP)
    fields: dict[str, Any] = {}
    files: dict[str, FormFile] = {}
    for part in parsed.iter_parts():
        name = str(part.get_param("name", "", "content-disposition"))
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        title = part.get_filename()
        if title is None:
            fields[name] = content.decode()
        else:
            files[name] = FormFile(title, part.get_content_type(), content)
    return fields, files
