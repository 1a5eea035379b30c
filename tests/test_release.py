"""What must agree before a release: the version, the changelog and the wheel."""

import re
import tomllib
from datetime import date
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

import holdfast

ROOT = Path(__file__).parent.parent
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d{2}-\d{2})\)")


def _releases() -> list[tuple[tuple[int, ...], date]]:
    """Return the released versions with their dates, in the changelog's order."""
    found = [RELEASE.fullmatch(heading) for heading in HEADINGS[1:]]
    return [
        (tuple(map(int, match.group(1, 2, 3))), date.fromisoformat(match[4]))
        for match in found
        if match is not None
    ]


def test_the_changelog_lists_unreleased_changes_and_then_dated_releases() -> None:
    assert HEADINGS[0] == "Unreleased"
    assert len(_releases()) == len(HEADINGS) - 1, HEADINGS
    assert sorted(_releases(), reverse=True) == _releases()


def test_the_latest_release_of_the_changelog_is_the_version() -> None:
    version, _ = _releases()[0]
    assert ".".join(map(str, version)) == holdfast.__version__


def test_the_wheel_takes_its_version_from_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "holdfast._version.__version__"
    }


def test_every_installed_package_supports_the_oldest_python() -> None:
    # A package that needs 3.11.5 breaks `make test` on a system with 3.11.2.
    installed = {
        package.name: SpecifierSet(",".join(package.metadata.get_all("Requires-Python") or ()))
        for package in distributions()
    }
    assert len(installed) > 50
    assert [name for name, required in installed.items() if "3.11.0" not in required] == []
