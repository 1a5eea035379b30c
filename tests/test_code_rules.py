"""Keep modules, functions and packages small and well named."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_MODULE_LINES = 900
MAX_PACKAGE_MODULES = 25
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_there_are_sources_to_judge() -> None:
    assert len(SOURCES) > 10


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_module_keeps_the_code_rules(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_MODULE_LINES, "module too long"
    assert path.stem not in FORBIDDEN_NAMES, "name says nothing"
    assert ast.get_docstring(ast.parse(text)), "module does not say what it owns"
    for function in _functions(path):
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        assert length <= MAX_FUNCTION_LINES, f"{function.name} has {length} lines"
        count = len(function.args.args) + len(function.args.kwonlyargs)
        assert count <= MAX_PARAMETERS + 1, f"{function.name} has {count} parameters"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_module_has_no_loose_ends(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert "TODO" not in line or "#" in line.split("TODO", 1)[1], f"line {number}: no issue"
        if "type: ignore" in line:
            assert "type: ignore[" in line, f"line {number}: name the code"


PACKAGES = sorted({path.parent for path in SOURCES})


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_package_is_small_and_says_what_it_owns(package: Path) -> None:
    modules = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MAX_PACKAGE_MODULES, f"{len(modules)} modules"
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text()))


def test_no_two_public_classes_have_one_name() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
