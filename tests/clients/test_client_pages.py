"""Each page about a client is run as it is written: the client remembers on its second turn."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

from tests.acceptance.gateway_process import free_port
from tests.clients.environments import node_with, python_with
from tests.shell_walk import Walker

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGES = ROOT / "docs/how-to/clients"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
IN_THIS_ENVIRONMENT = [
    "openai-python",
    "agents-sdk",
    "langchain",
    "langgraph",
    "pydantic-ai",
    "llm",
]
WITH_NODE = ["openai-node", "vercel-ai-sdk"]
IN_SOAK = ["llamaindex", "codex"]
NOT_RUN = ["open-webui"]
PACKAGES = frozenset(
    {"openai", "langchain-openai", "langgraph", "pydantic-ai-slim[openai]", "llm", "ai"}
    | {"@ai-sdk/openai", "llama-index-llms-openai-like", "@openai/codex"}
)


def run(page: str, folder: Path, *bin_folders: Path) -> None:
    """Run a page in a home of its own, with the programs of these folders."""
    home = folder / "home"
    home.mkdir()
    port = str(free_port())
    own = ("HOLDFAST_", "OPENAI_", "CODEX_", "LLM_", "LANGSMITH_", "LANGCHAIN_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    programs = [*map(str, bin_folders), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {
        **kept,
        "PATH": os.pathsep.join(programs),
        "HOME": str(home),
        "HOLDFAST_SERVER_PORT": port,
        "HOLDFAST_SERVER_GRACE_SECONDS": "1",
        "HOLDFAST_URL": f"http://127.0.0.1:{port}",
        "NO_COLOR": "1",
    }
    with Walker(folder, env, {"8377": port}, PACKAGES) as walking:
        assert walking.walk(PAGES / f"{page}.md", set(EXTRAS), set()) >= 2


@pytest.mark.parametrize("page", IN_THIS_ENVIRONMENT)
def test_a_python_client_remembers_as_its_page_says(page: str, tmp_path: Path) -> None:
    run(page, tmp_path)


@pytest.mark.timeout(600)  # the first run installs the packages
@pytest.mark.parametrize("page", WITH_NODE)
def test_a_node_client_remembers_as_its_page_says(page: str, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(node_with(HERE / "package.json"))
    run(page, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_llamaindex_remembers_as_its_page_says(tmp_path: Path) -> None:
    run("llamaindex", tmp_path, python_with(HERE / "llamaindex.txt"))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_codex_remembers_as_its_page_says(tmp_path: Path) -> None:
    run("codex", tmp_path, node_with(HERE / "codex/package.json") / ".bin")


def test_every_page_of_a_client_is_run_or_says_that_it_is_not() -> None:
    pages = {page.stem for page in PAGES.glob("*.md")} - {"README"}
    assert pages == {*IN_THIS_ENVIRONMENT, *WITH_NODE, *IN_SOAK, *NOT_RUN}
    for page in NOT_RUN:
        assert "not run by a test" in (PAGES / f"{page}.md").read_text()
    for page in IN_SOAK:
        assert "run by `make soak`" in (PAGES / f"{page}.md").read_text()
