"""Run every command and snippet of the README and the documentation as written."""

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import free_port
from tests.postgres import client_tools
from tests.shell_walk import NOT_RUN, Walker, blocks_of
from tests.wheel import build_wheel, install

ROOT = Path(__file__).parent.parent
OPENCLAW = ROOT / "tests/importing/golden/openclaw"
UNTESTED = {"deploy.md", "release.md", "run-behind-nginx.md", "upgrade.md"}
"""Pages with commands for machines that a test does not have; the title of each block says so."""
PARTLY_TESTED = {"README.md"}
"""Its first command installs a published version."""
PAGES = sorted(
    page
    for page in (ROOT / "docs").rglob("*.md")
    if page.parent.name != "clients"  # tests/clients runs these, each with its client
    and page.name != "use-a-command-line-agent.md"  # tests/cli_agents runs it, with its program
    and any(b.language == "sh" and b.note != NOT_RUN for b in blocks_of(page))
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = set(PROJECT["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.fixture
def provider() -> Iterator[ProviderSimulator]:
    """A provider for the gateway of a page."""
    with ProviderSimulator() as simulator:
        yield simulator


def walker(
    folder: Path, bin_folder: Path, provider: ProviderSimulator, store: str, empty: str = ""
) -> Walker:
    """Return a walker with its own home, a PostgreSQL store and an empty database."""
    home = folder / "home"
    shutil.copytree(OPENCLAW, home / ".openclaw")
    (folder / "backups").mkdir()
    port, other = str(free_port()), str(free_port())
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "OPENAI_"))}
    env = {
        **kept,
        "PATH": os.pathsep.join([str(bin_folder), str(client_tools()), os.environ["PATH"]]),
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "HOLDFAST_SERVER_PORT": port,
        "HOLDFAST_URL": f"http://127.0.0.1:{port}",
        "HOLDFAST_SERVER_GRACE_SECONDS": "1",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "NO_COLOR": "1",
    }
    instead = {
        "8377": port,
        "8400": other,
        "https://api.openai.com/v1": provider.base_url,
        "http://127.0.0.1:11434/v1": provider.base_url,
        "postgresql://user:password@host/database": f"'{store}'",
        "postgresql://user:password@host/empty": f"'{empty}'",
        "/backups/": f"{folder / 'backups'}/",
    }
    return Walker(folder, env, instead)


@pytest.mark.timeout(400)  # a minute of work, on a machine that may be busy
def test_the_wheel_in_an_empty_environment_does_what_the_readme_says(
    tmp_path: Path, provider: ProviderSimulator, postgres_url: str
) -> None:
    build = tmp_path / "build"
    build.mkdir()
    wheel = build_wheel(build)
    assert wheel.name == f"holdfast-{__version__}-py3-none-any.whl"
    bin_folder = install(wheel, tmp_path, "postgres", "agents")
    walk = tmp_path / "walk"
    walk.mkdir()
    with walker(walk, bin_folder, provider, postgres_url) as walking:
        for _ in range(2):  # a reader who runs the examples again sees the same output
            assert walking.walk(ROOT / "README.md", EXTRAS, TARGETS) >= 7
            walking.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_do_what_it_says(
    page: Path,
    tmp_path: Path,
    provider: ProviderSimulator,
    postgres_url: str,
    bare_postgres_url: str,
) -> None:
    bin_folder = Path(sys.executable).parent
    with walker(tmp_path, bin_folder, provider, postgres_url, bare_postgres_url) as walking:
        walking.walk(page, EXTRAS, TARGETS)


def test_blocks_that_are_not_run_are_marked() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        notes = {block.note for block in blocks_of(page) if block.language == "sh"}
        assert notes <= {"", NOT_RUN}
        if NOT_RUN in notes:
            assert page.name in UNTESTED | PARTLY_TESTED
