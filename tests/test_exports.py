"""What `import holdfast` offers, and how little it costs: nothing heavy loads before it is used."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

HEAVY = {
    "agents",
    "aiohttp",
    "asyncio",
    "asyncpg",
    "msgspec",
    "openai",
    "prometheus_client",
    "rich",
    "sqlite3",
    "starlette",
    "typer",
    "uvicorn",
}
FOR_THE_ENGINE = {"asyncio", "msgspec", "sqlite3"}
"""What opening a SQLite store needs."""

SHOW_VERSION = (
    "import sys; sys.argv = ['holdfast', '--version']; import holdfast.cli as c; c.main()"
)


def _loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after `code`."""
    return {name.partition(".")[0] for name in _modules_loaded_by(code)}


def _modules_loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint()\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", holdfast.__all__)
def test_a_public_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    value = getattr(holdfast, name)
    assert name == "__version__" or value.__doc__


def test_every_lazily_loaded_name_is_public() -> None:
    assert {*holdfast._HOMES, "__version__"} == set(holdfast.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_ours'"):
        _ = holdfast.nothing_of_ours


def test_importing_holdfast_loads_nothing_heavy() -> None:
    assert _loaded_by("import holdfast") & HEAVY == set()


def test_showing_the_version_loads_nothing_heavy() -> None:
    assert _loaded_by(SHOW_VERSION) & HEAVY == set()


def test_opening_a_store_loads_no_server_no_client_and_no_other_database() -> None:
    code = """
import asyncio
import holdfast
async def main():
    async with holdfast.open("memory:") as hf:
        await hf.session("k")
asyncio.run(main())
"""
    assert _loaded_by(code) & HEAVY <= FOR_THE_ENGINE


def test_a_gateway_without_websockets_and_agents_loads_neither() -> None:
    code = """
import asyncio
import holdfast.http.server.run
from holdfast.app import open_application
from holdfast.settings import Settings
from holdfast.settings.sections import StoreSettings
async def main():
    async with open_application(Settings(store=StoreSettings(url="memory:"))):
        pass
asyncio.run(main())
"""
    loaded = _modules_loaded_by(code)
    assert "holdfast.providers.routing" in loaded
    assert loaded & {"websockets", "holdfast.providers.cli_agents.provider"} == set()


def test_the_installed_command_shows_the_version() -> None:
    command = Path(sys.executable).with_name("holdfast")
    done = subprocess.run(
        [command, "--version"], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"holdfast {holdfast.__version__}\n"


def test_every_module_can_be_imported_on_its_own() -> None:
    root = Path(holdfast.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if not name.endswith("__main__"):
            assert importlib.import_module(name).__doc__, name
