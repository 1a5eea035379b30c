"""The metadata that depends on where the project is published; the rest is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = PROJECT["tool"]["holdfast"]["repository"].rstrip("/")
RELATIVE_LINK = re.compile(r"(!?)(\[[^\[\]]*\])\((?!\w+:|#)([^)\s]+)\)")


def absolute(link: re.Match[str]) -> str:
    """Return a link of the README that holds outside of the repository."""
    kind = "raw" if link[1] else "blob"
    return f"{link[1]}{link[2]}({REPOSITORY}/{kind}/main/{link[3]})"


description = (ROOT / "README.md").read_text()
if REPOSITORY:
    description = RELATIVE_LINK.sub(absolute, description)

setup(
    long_description=description,
    long_description_content_type="text/markdown",
    project_urls={
        "Source": REPOSITORY,
        "Documentation": f"{REPOSITORY}/blob/main/docs/README.md",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }
    if REPOSITORY
    else {},
)
