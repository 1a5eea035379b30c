"""A process whose writes the operating system refuses for a while.

Run by a test as `python refused_by_system.py FAULT FOLDER`; it prints the results of three turns.
"""

import asyncio
import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import HoldfastError
from holdfast.app import open as open_holdfast
from holdfast.engine.embedded.api import SessionHandle
from holdfast.engine.embedded.turn_handle import Item

CAPABILITY_VERSION_3 = 0x20080522


def tell(word: object) -> None:
    """Print one line for the test."""
    sys.stdout.write(f"{word}\n")


def give_up_privileges() -> None:
    """Drop the superuser's capabilities, so that file permissions apply."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


@contextmanager
def file_size_limit(folder: Path) -> Iterator[None]:
    """Prevent files from growing beyond the size of the largest one."""
    largest = max(path.stat().st_size for path in folder.iterdir() if path.is_file())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only_folder(folder: Path) -> Iterator[None]:
    """Remove write permission from the folder and everything in it."""
    paths = [folder, *folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


async def _answer(items: list[Item]) -> str:
    return f"knowing {len(items) - 1}"


LONG = "x" * 400_000
"""Larger than the schema, so that the log outgrows the largest file."""


async def _converse(session: SessionHandle, name: str) -> str:
    try:
        await session.run(name + LONG, _answer, idempotency_key=name)
    except HoldfastError as exc:
        return exc.code
    return "answered"


async def _start_and_converse(url: str, name: str) -> str:
    try:
        async with open_holdfast(url) as hf:
            return await _converse(await hf.session("k"), name)
    except HoldfastError as exc:
        return exc.code


async def grow_beyond_the_limit(url: str, folder: Path) -> None:
    """Reach the limit in a running process, and continue when it is lifted."""
    async with open_holdfast(url) as hf:
        session = await hf.session("k")
        tell(await _converse(session, "one"))
        with file_size_limit(folder):
            tell(await _converse(session, "two"))
        tell(await _converse(session, "two"))


async def start_without_rights(url: str, folder: Path) -> None:
    """Start without write permission, and again with it."""
    tell(await _start_and_converse(url, "one"))
    with read_only_folder(folder):
        tell(await _start_and_converse(url, "two"))
    tell(await _start_and_converse(url, "two"))


async def main(fault: str, folder: Path) -> None:
    """Run one turn before, one during and one after the fault; then read all of them."""
    url = f"sqlite:///{folder}/a.db"
    await (grow_beyond_the_limit if fault == "file_size_limit" else start_without_rights)(
        url, folder
    )
    async with open_holdfast(url) as hf:
        items = await (await hf.session("k")).items()
    said = [item["content"][0]["text"][:9] for item in items]
    tell("in_order" if said == ["onexxxxxx", "knowing 0", "twoxxxxxx", "knowing 2"] else said)


if __name__ == "__main__":
    if os.getuid() == 0:
        give_up_privileges()
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
