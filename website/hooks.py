"""MkDocs hooks: refuse a fence that is no code block, and let long code wrap in table cells."""

import logging
import re
from typing import Any

FENCE = re.compile(r"^ *```.*$", re.MULTILINE)
CODE_BLOCK = re.compile(r"<pre\b")
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
LONG_CODE = re.compile(r"(?<=<code>)[^<]{18,}(?=</code>)")
SEPARATOR = re.compile(r"(::|[_/.,])(?=\w)")

log = logging.getLogger("mkdocs.hooks.fences")


def on_page_content(html: str, *, page: Any, **_: object) -> str:
    """Check the fences of a page and return its HTML with break opportunities in tables."""
    fences, blocks = len(FENCE.findall(page.markdown)), len(CODE_BLOCK.findall(html))
    if fences != 2 * blocks:
        # A warning ends a strict build.
        log.warning("%s: %d fence lines, %d code blocks", page.file.src_uri, fences, blocks)
    return TABLE.sub(lambda table: LONG_CODE.sub(_breakable, table[0]), html)


def _breakable(code: re.Match[str]) -> str:
    return SEPARATOR.sub(r"\1<wbr>", code[0])
