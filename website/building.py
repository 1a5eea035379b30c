"""The site: the pages as they lie in the repository, so that every link between them holds."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")

CONFIG = """\
site_name: Holdfast
docs_dir: pages
site_dir: {site}
use_directory_urls: false
theme:
  name: readthedocs
  highlightjs: false
markdown_extensions:
  - tables
  - fenced_code
  - toc:
      permalink: true
plugins: []
validation:
  nav:
    omitted_files: ignore
    not_found: warn
    absolute_links: warn
  links:
    not_found: warn
    anchors: warn
    absolute_links: warn
    unrecognized_links: warn
nav:
  - Holdfast: README.md
  - Documentation: docs/README.md
  - Tutorial: docs/tutorial/first-agent.md
  - How-to: docs/how-to/README.md
  - Reference: docs/reference/README.md
  - Explanation: docs/explanation/README.md
  - Promises: docs/invariants/README.md
  - Decisions: docs/decisions/README.md
  - Architecture: ARCHITECTURE.md
  - Contributing: CONTRIBUTING.md
  - Changelog: CHANGELOG.md
"""


def build(root: Path, site: Path) -> None:
    """Build the site; a link that leads nowhere is an error."""
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "pages"
        pages.mkdir()
        for name in PAGES:
            shutil.copy(root / name, pages)
        shutil.copytree(root / "docs", pages / "docs")
        config = Path(folder) / "mkdocs.yml"
        config.write_text(CONFIG.format(site=site.absolute()))
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"the site cannot be built:\n{done.stdout}{done.stderr}")
