"""Build the documentation site: the pages as they lie in the repository, so every link holds."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from holdfast import __version__

HERE = Path(__file__).parent
TOP_PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE",
)
CONFIG = """\
INHERIT: {here}/mkdocs.yml
docs_dir: pages
site_dir: {site}
hooks: [{here}/hooks.py]
"""


def build(root: Path, site: Path) -> None:
    """Build the site; a dead link or anchor, or a fence that is no code block, is an error."""
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "pages"
        pages.mkdir()
        for name in TOP_PAGES:
            shutil.copy(root / name, pages)
        shutil.copytree(root / "docs", pages / "docs")
        shutil.copy(HERE / "site.css", pages)
        config = Path(folder) / "mkdocs.yml"
        config.write_text(CONFIG.format(here=HERE, site=site.absolute()))
        finished = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **_variables(root)},
        )
    if finished.returncode != 0:
        raise SystemExit(f"the site cannot be built:\n{finished.stdout}{finished.stderr}")


def _variables(root: Path) -> dict[str, str]:
    """Return the variables that `mkdocs.yml` reads: the version, and where pages are edited.

    Without an address of the repository in `pyproject.toml` no page offers to edit it.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())
    repository = project["tool"]["holdfast"]["repository"].rstrip("/")
    variables = {"DOCS_SITE_NAME": f"Holdfast {__version__}"}
    if repository:
        variables["DOCS_EDIT_URI"] = f"{repository}/edit/main/{{path}}"
    return variables
