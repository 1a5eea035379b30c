"""A fault: a small change to the code that breaks a promise, and the tests that must detect it."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.postgres import FOLDER

ROOT = Path(__file__).parent.parent.parent
RUN_SECONDS = 900
TEST_SECONDS = 60
"""A fault may make a test wait forever; it is stopped after this time."""
NOTICED = 1
"""Pytest's exit code if a test failed; other codes mean that the tests did not run."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One change to one file; at least one of the tests in `caught_by` must fail."""

    name: str
    path: str
    """The file, relative to the root of the project."""
    old: str
    """Text that occurs once in the file."""
    new: str
    caught_by: tuple[str, ...]

    def count(self, root: Path = ROOT) -> int:
        """Return how often the text to be changed occurs in its file."""
        file = root / self.path
        return file.read_text().count(self.old) if file.is_file() else 0

    def apply(self, root: Path) -> None:
        """Put the fault into the sources under `root`."""
        file = root / self.path
        file.write_text(file.read_text().replace(self.old, self.new))


def copy_sources(folder: Path) -> None:
    """Copy the sources into a folder, without compiled files."""
    shutil.copytree(
        ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run of tests ended."""

    returncode: int
    failures: int
    output: str

    @property
    def is_noticed(self) -> bool:
        """Whether a test failed; a run that aborts for another reason also ends with 1."""
        return self.returncode == NOTICED and self.failures > 0


def run_tests(folder: Path, tests: tuple[str, ...]) -> RunOutcome:
    """Run tests of this project on the sources under `folder`, until one fails."""
    # A separate database server: a shared one would be stopped by the first run that ends.
    env = {name: value for name, value in os.environ.items() if name != FOLDER}
    env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = str(folder / "src")
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    # A separate folder as well: runs that share one may fail while cleaning it up.
    with tempfile.TemporaryDirectory(prefix="holdfast-fault-", ignore_cleanup_errors=True) as own:
        report = Path(own, "report.xml")
        options = ["-x", "-p", "no:xdist", "--timeout", str(TEST_SECONDS)]
        options += ["--basetemp", str(Path(own, "tmp")), "--junit-xml", str(report)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        return RunOutcome(done.returncode, _failures(report), done.stdout + done.stderr)


def _failures(report: Path) -> int:
    """Return how many tests failed; errors in fixtures are not counted."""
    if not report.is_file():
        return 0
    return sum(
        int(suite.attrib["failures"]) for suite in ElementTree.parse(report).iter("testsuite")
    )
