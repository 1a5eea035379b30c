"""The workflows that a visitor of the repository sees: they call the commands of the checkout."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def _steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job.get("steps", ())]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_commands_that_exist_and_may_write_nothing_by_default(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for step in _steps(path):
        command = step.get("run", "")
        for target in re.findall(r"\bmake ([a-z-]+)", command):
            assert target in TARGETS, command
        for script in re.findall(r"\bbash (\S+)", command):
            assert (ROOT / script).is_file(), command
        assert re.fullmatch(r"[\w./-]+@[\w./-]+", step.get("uses", "a@b"))


def test_every_supported_python_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = [
        name.rpartition(" ")[2]
        for name in project["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
    ]
    jobs = yaml.safe_load((FOLDER / "workflows/tests.yml").read_text())["jobs"]
    assert jobs["debian"]["strategy"]["matrix"]["python"] == supported
    assert set(jobs["macos"]["strategy"]["matrix"]["python"]) <= set(supported)
    assert {"run": "bash .ci/run"} in jobs["debian"]["steps"]


def test_a_release_is_tested_first_and_published_without_a_stored_secret() -> None:
    jobs = yaml.safe_load((FOLDER / "workflows/release.yml").read_text())["jobs"]
    assert jobs["build"]["needs"] == "tests"
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in "".join(path.read_text() for path in WORKFLOWS)


def test_the_templates_are_forms() -> None:
    for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name == "config.yml":
            continue
        assert form["name"]
        assert form["description"]
        ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 0
    assert "CHANGELOG.md" in (FOLDER / "PULL_REQUEST_TEMPLATE.md").read_text()
