"""Reads the console's static files from the package, with what a server needs to send them."""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Types of files that are served; others (types for the checker, notes) are not."""
INDEX = "index.html"


class StaticFile(msgspec.Struct, frozen=True):
    """One file, plain and compressed."""

    content_type: str
    body: bytes
    compressed: bytes
    etag: str


def load_files() -> Mapping[str, StaticFile]:
    """Return the files by their path below `/console/`."""
    return dict(_walk(Path(__file__).with_name("static"), ""))


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, StaticFile]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
            continue
        content_type = CONTENT_TYPES.get("." + entry.name.rpartition(".")[2])
        if content_type is not None:
            yield prefix + entry.name, _read(entry, content_type)


def _read(entry: Path, content_type: str) -> StaticFile:
    body = entry.read_bytes()
    # A fixed time keeps the bytes, and so caches, the same from start to start.
    compressed = gzip.compress(body, mtime=0)
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return StaticFile(content_type, body, compressed, etag)
