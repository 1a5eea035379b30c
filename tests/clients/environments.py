"""Environments for clients that the development environment lacks.

They are installed once into the user's cache directory, outside the checkout, and identified by the
hash of their requirements.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

INSTALL_SECONDS = 500


def python_with(requirements: Path) -> Path:
    """Return the `bin` folder of an environment with exactly these requirements."""

    def install(folder: Path) -> None:
        venv.create(folder, with_pip=True, symlinks=True)
        run_command(
            str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps",
            "--disable-pip-version-check", "--requirement", str(requirements),
        )  # fmt: skip

    return _cached(requirements, install) / "bin"


def node_with(manifest: Path) -> Path:
    """Return the `node_modules` folder for a `package.json` with a lock file next to it."""

    def install(folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in (manifest.name, "package-lock.json"):
            shutil.copy(manifest.with_name(name), folder)
        npm = node_program("npm")
        run_command(npm, "ci", "--no-audit", "--no-fund", "--prefix", str(folder))

    return _cached(manifest.with_name("package-lock.json"), install) / "node_modules"


def node_program(name: str) -> str:
    """Return the machine's `node` or `npm`, or one from PyPI if it has none."""
    found = shutil.which(name)
    return found or str(python_with(Path(__file__).with_name("node.txt")) / name)


def _cached(source: Path, install: Callable[[Path], None]) -> Path:
    return cached_folder(source.read_bytes(), install)


def cached_folder(source: bytes, install: Callable[[Path], None]) -> Path:
    """Return the folder that `install` fills, once for each `source`."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}".encode()
    name = hashlib.sha256(source + version).hexdigest()[:16]
    folder, ready = _root() / name, _root() / f"{name}.ready"
    with locked(name):
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted install
            install(folder)
            ready.touch()
    return folder


def _root() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-tests"
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time install: test workers run concurrently."""
    with (_root() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def apt_program(package: str, *names: str) -> str | None:
    """Return the first of these programs; install their package if missing and permitted."""

    def find() -> str | None:
        return next((path for name in names if (path := shutil.which(name)) is not None), None)

    # One lock for all packages: apt-get fails immediately while another one runs.
    with locked("apt"):
        if find() is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
            for command in ("update", f"install --yes --no-install-recommends {package}"):
                subprocess.run(
                    ["apt-get", "--quiet=2", *command.split()],
                    capture_output=True,
                    check=False,
                    timeout=INSTALL_SECONDS,
                    env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                )
        return find()


def run_command(*command: str) -> None:
    """Run a command that must succeed."""
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
