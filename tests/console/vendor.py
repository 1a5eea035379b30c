"""Builds the libraries that the console has in its `vendor` folder, from pinned npm packages.

`python -m tests.console.vendor` writes them again; a test compares them with what it would write.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.clients.environments import node_with

HERE = Path(__file__).parent
VENDOR = HERE.parents[1] / "src/holdfast/console/static/vendor"
LIBRARIES = ("lit", "markdown", "highlight", "uplot")
STYLES = {"uplot.css": "uplot/dist/uPlot.min.css"}
LICENCES = "LICENSES.txt"
PACKAGES = (
    "lit", "markdown-it", "entities", "linkify-it", "mdurl", "punycode.js", "uc.micro",
    "highlight.js", "uplot",
)  # fmt: skip
"""The packages whose code is in the folder."""
_OPTIONS = ("--bundle", "--format=esm", "--minify", "--legal-comments=inline", "--target=es2022")


def build(node_modules: Path) -> dict[str, bytes]:
    """Return the files of the folder, by name."""
    built = {name: (node_modules / path).read_bytes() for name, path in STYLES.items()}
    with tempfile.TemporaryDirectory() as folder:
        # The bundler looks for packages beside its entry.
        (Path(folder) / "node_modules").symlink_to(node_modules)
        for name in LIBRARIES:
            shutil.copy(HERE / f"{name}_entry.js", Path(folder) / f"{name}.js")
            command = [
                str(node_modules / ".bin/esbuild"), f"{name}.js", *_OPTIONS, "--outfile=built.js",
            ]  # fmt: skip
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            built[f"{name}.js"] = (Path(folder) / "built.js").read_bytes()
    built[LICENCES] = _licences(node_modules).encode()
    return built


def _licences(node_modules: Path) -> str:
    """Return the licences of all packages, one after another."""
    parts = []
    for name in PACKAGES:
        folder = node_modules / name
        [file, *_] = sorted(folder.glob("LICEN[CS]E*"))
        version = re.search(r'"version": "([^"]+)"', (folder / "package.json").read_text())
        assert version is not None, name
        parts.append(f"{name} {version[1]}\n\n{file.read_text().strip()}\n")
    return ("\n" + "-" * 80 + "\n\n").join(parts)


if __name__ == "__main__":
    for name, content in build(node_with(HERE / "package.json")).items():
        (VENDOR / name).write_bytes(content)
