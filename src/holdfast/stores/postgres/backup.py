"""Back up a PostgreSQL store with PostgreSQL's own tools, and verify the copy."""

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.stores.postgres.dsn import read_target

TOOLS = ("pg_dump", "pg_restore")
Progress = Callable[[str], None]


def dump(url: str, tables: set[str], target: Path, progress: Progress) -> int:
    """Copy a database in one snapshot; return its size. `target` is created whole or not at all."""
    tools = _find_tools()
    address, environment = address_of(url)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _claim(unfinished)
        command = [tools["pg_dump"], "--format=custom", "--no-password", "--verbose"]
        _run([*command, f"--file={unfinished}", f"--dbname={address}"], environment, progress)
        _verify(tools["pg_restore"], unfinished, tables)
        _flush(unfinished)
        unfinished.replace(target)
        _flush(target.absolute().parent)
    finally:
        unfinished.unlink(missing_ok=True)
    return target.stat().st_size


def _find_tools() -> dict[str, str]:
    paths = {name: shutil.which(name) for name in TOOLS}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise StoreUnavailable(
            f"a PostgreSQL store is copied by PostgreSQL's own {' and '.join(missing)}, not found "
            "on the PATH: install its client tools, or back up on the database's machine"
        )
    return {name: path for name, path in paths.items() if path is not None}


def address_of(url: str) -> tuple[str, dict[str, str]]:
    """Return the address for libpq's tools, and the environment with its secrets and settings."""
    target = read_target(url)
    parts = urlsplit(target.dsn)
    login, at, where = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    kept = {}
    for name, value in parse_qsl(parts.query):
        if name == "password":
            password = quote(value)
        else:
            kept[name] = value
    settings = [
        f"-c {name}=" + value.replace("\\", "\\\\").replace(" ", "\\ ")
        for name, value in target.settings.items()
    ]
    environment = dict(os.environ)
    if password:
        environment["PGPASSWORD"] = unquote(password)
    if settings:
        environment["PGOPTIONS"] = " ".join([environment.get("PGOPTIONS", ""), *settings]).strip()
    query = urlencode(kept, safe="/", quote_via=quote)
    address = f"postgresql://{user}{at}{where}{parts.path}" + (f"?{query}" if query else "")
    return address, environment


def _claim(path: Path) -> None:
    """Create the file with access for its owner only."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _run(command: list[str], environment: dict[str, str], progress: Progress) -> None:
    """Run a tool; if it fails, raise with its last lines of output."""
    with _started(command, environment) as process:
        assert process.stderr is not None
        output: deque[str] = deque(maxlen=2)
        for line in process.stderr:
            output.append(line.strip())
            if "dumping contents of table" in line:
                progress(line.rpartition("table ")[2].strip(' "\n'))
    if process.returncode != 0:
        raise StoreUnavailable(f"pg_dump failed: {_error_text(output)}")


@contextmanager
def _started(command: list[str], environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Start a tool; kill it if the block raises, else wait for its end."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _error_text(output: Iterable[str]) -> str:
    """Return a tool's error message, without its name and other output."""
    lines = [line.partition(": ")[2] for line in output]
    errors = [line for line in lines if line.startswith(("error: ", "detail: "))]
    return "; ".join(line.partition(": ")[2] for line in errors) or "no reason was given"


def _verify(pg_restore: str, copy: Path, tables: set[str]) -> None:
    """Read the whole copy and check that it has every table."""
    listed = subprocess.run(
        [pg_restore, "--list", str(copy)], capture_output=True, text=True, check=False
    )
    listing = subprocess.run(
        [pg_restore, f"--file={os.devnull}", str(copy)], capture_output=True, text=True, check=False
    )
    for done in (listed, listing):
        if done.returncode != 0:
            raise StoreError(f"the copy cannot be read: {_error_text(done.stderr.splitlines())}")
    held = {
        words[words.index("DATA") + 2]
        for words in (line.split() for line in listed.stdout.splitlines())
        if "DATA" in words[:-2]
    }
    if lacking := sorted(tables - held):
        raise StoreError(f"the copy lacks {', '.join(lacking)}")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
