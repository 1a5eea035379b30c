"""Compare with what is expected, or record it: only what is missing, or what is named."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.freeze.values import difference

EXPECTED = Path(__file__).parent / "expected"


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Make a folder, in memory where the system has one: nothing here is about a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def expected_path(gate: str, name: str, folder: Path = EXPECTED) -> Path:
    """Return the file of what is expected of one part of a gate."""
    return folder / gate / f"{name}.ndjson"


def read_expected(gate: str, name: str) -> list[str]:
    """Return the lines that are expected; a test without any fails."""
    path = expected_path(gate, name)
    if not path.exists():
        pytest.fail(f"nothing is recorded: python -m tests.freeze record {gate}/{name}")
    return path.read_text().removesuffix("\n").split("\n")


def check(
    gate: str,
    name: str,
    seen: list[str],
    way: str = "",
    told: Callable[[list[str]], list[str]] = list,
) -> None:
    """Fail with what differs, if anything does; `way` says how it was seen, `told` what counts."""
    found = difference(told(read_expected(gate, name)), told(seen))
    if found:
        how = f" ({way})" if way else ""
        pytest.fail(f"{gate}/{name}{how} is not as it was recorded:\n{found}", pytrace=False)


def record(
    gate: str, name: str, seen: list[str], *, may_replace: bool, folder: Path = EXPECTED
) -> str:
    """Write what was seen, and say so; leave what is recorded, unless it was named."""
    path = expected_path(gate, name, folder)
    text = "\n".join(seen) + "\n"
    if path.exists() and path.read_text() == text:
        return "unchanged"
    if path.exists() and not may_replace:
        return "DIFFERS and was not named: left as it is"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return "recorded"
