"""The gateways of this user that run: each keeps a file that says which store it uses.

A gateway locks its file as long as it lives, so a file without a lock is that of a dead one.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """What a gateway says of itself."""

    pid: int
    url: str
    store: str
    """The store's URL; secrets are masked."""
    has_secret: bool
    """Whether something of the URL is masked, so that it opens nothing."""


def _directory(environment: Mapping[str, str]) -> Path:
    root = Path(environment.get("XDG_STATE_HOME") or "")
    # The XDG specification has relative values ignored.
    return (root if root.is_absolute() else Path.home() / ".local" / "state") / "holdfast"


@contextlib.contextmanager
def announced(gateway: RunningGateway) -> Iterator[None]:
    """Keep the file of a gateway for the length of a block; without a home there is none."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, RuntimeError):
            stack.enter_context(_locked_file(gateway))
        yield


@contextlib.contextmanager
def _locked_file(gateway: RunningGateway) -> Iterator[None]:
    directory = _directory(os.environ)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"gateway-{gateway.pid}-{secrets.token_hex(4)}.json"
    unfinished = path.with_suffix(".new")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Locked and whole before it has its name: a reader takes one without a lock for a dead one.
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, json.dumps(asdict(gateway)).encode())
        unfinished.replace(path)
        yield
    finally:
        for name in (path, unfinished):
            name.unlink(missing_ok=True)
        os.close(handle)


def running_gateways() -> list[RunningGateway]:
    """Return the gateways of this user that run, by address; files of dead ones are removed."""
    try:
        paths = list(_directory(os.environ).glob("gateway-*.json"))
    except (OSError, RuntimeError):
        return []
    found = (gateway for gateway in map(_read, paths) if gateway is not None)
    return sorted(found, key=lambda gateway: gateway.url)


def _read(path: Path) -> RunningGateway | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            with contextlib.suppress(ValueError, TypeError):
                return RunningGateway(**json.load(file))
            return None
        path.unlink(missing_ok=True)
    return None
