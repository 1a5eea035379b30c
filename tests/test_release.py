"""What must agree before a release: the version, the changelog and the wheel."""

import re
import tomllib
import zipfile
from datetime import date
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import holdfast
from tests.wheel import build_wheel

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
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "holdfast._version.__version__"
    }


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


@pytest.mark.parametrize("repository", ["", "https://host.test/team/holdfast/"])
def test_the_metadata_of_the_wheel_leads_to_the_repository_or_nowhere(
    repository: str, tmp_path: Path
) -> None:
    metadata = _metadata(build_wheel(tmp_path, repository))
    description = str(metadata.get_payload())
    links = re.findall(r"\]\((?!#)([^)\s]+)\)", description)
    address = repository.rstrip("/")
    assert len(links) > 20
    assert all(link.startswith(f"{address}/") for link in links) == bool(repository)
    assert f"]({address}/blob/main/docs/README.md)" in description or not repository
    assert f"]({address}/raw/main/docs/pictures/" in description or not repository
    urls = metadata.get_all("Project-URL") or []
    assert [url.partition(", ")[0] for url in urls] == (
        ["Source", "Documentation", "Changelog", "Issues"] if repository else []
    )
    assert all(url.partition(", ")[2].startswith(address) for url in urls)
    assert metadata["Author"]
    assert not re.search(r"REPOSITORY|\bexample\b\.|TODO", str(metadata))


def test_every_installed_package_supports_the_oldest_python() -> None:
    # A package that needs 3.11.5 breaks `make test` on a system with 3.11.2.
    installed = {
        package.name: SpecifierSet(",".join(package.metadata.get_all("Requires-Python") or ()))
        for package in distributions()
    }
    assert len(installed) > 50
    assert [name for name, required in installed.items() if "3.11.0" not in required] == []
