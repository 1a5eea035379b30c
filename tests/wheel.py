"""Install the wheel into an environment with only its declared dependencies, linked from this one.

No network: the packages that its metadata requires are those of this environment.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def build_wheel(folder: Path, repository: str = "") -> Path:
    """Build the wheel from a clean copy of the sources, as one that is published there."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    if repository:
        set_repository(source, repository)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
            "--no-index", "--disable-pip-version-check", "--wheel-dir", str(folder), str(source),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def set_repository(root: Path, address: str) -> None:
    """Set the one place that says where the project is published."""
    path = root / "pyproject.toml"
    text, count = re.subn(
        r'^repository = ".*"$', f'repository = "{address}"', path.read_text(), flags=re.M
    )
    assert count == 1
    path.write_text(text)


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """Install the wheel and its closure into an empty environment; return its `bin`."""
    target = folder / "venv"
    venv.create(target, with_pip=False, symlinks=True)
    site = target / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", str(target / "bin/python"), "install",
            "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (made,) = site.glob("holdfast-*.dist-info")
    for name in _closure(Distribution.at(made), set(extras)):
        _link(distribution(name), site)
    return target / "bin"


def _closure(root: Distribution, extras: set[str]) -> set[str]:
    """Return the names of all packages that a package requires, with some of its extras."""
    found: set[str] = set()
    front = [(root, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while front:
        package, wanted = front.pop()
        for line in package.requires or ():
            need = Requirement(line)
            if need.marker is not None and not any(
                need.marker.evaluate({"extra": extra}) for extra in ("", *wanted)
            ):
                continue
            name = need.name.lower().replace("_", "-")
            asked = (name, frozenset(need.extras))
            if name == "holdfast" or asked in seen:
                if name == "holdfast":
                    front.append((root, frozenset(need.extras)))
                continue
            seen.add(asked)
            found.add(name)
            front.append((distribution(name), asked[1]))
    return found


def _link(package: Distribution, site: Path) -> None:
    origin = Path(sysconfig.get_paths()["purelib"])
    names = {Path(str(file)).parts[0] for file in package.files or ()} - {"..", "__pycache__"}
    for name in names:
        place = site / name
        if not place.exists() and (origin / name).exists():
            place.symlink_to(origin / name)
