"""The documentation matches the code: snippets run, links resolve, tables are complete."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
import typer

import holdfast
from holdfast.cli.app import app
from holdfast.core.compaction.summary_prompts import DEFAULT_PROMPT
from holdfast.core.errors import HoldfastError
from holdfast.core.model.turn import Outcome
from holdfast.core.transaction.commands import Command
from holdfast.engine.settings import (
    ContextSettings,
    HealSettings,
    RetentionSettings,
    StreamSettings,
    ToolSettings,
)
from holdfast.http import app as application
from holdfast.http.server.errors import STATUS
from holdfast.providers.settings import AgentRuntime, TimeoutSettings, UpstreamSettings
from holdfast.settings import (
    AccessKey,
    LimitSettings,
    LogSettings,
    ResetSettings,
    ServerSettings,
    StoreSettings,
    TranscribeSettings,
    default_store_url,
)
from holdfast.stores.sql import migrations
from holdfast.stores.sqlite.driver import DIALECT
from holdfast.tools.settings import McpSettings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
INVARIANTS = sorted((DOCS / "invariants").glob("I*.md"))
DECISIONS = sorted((DOCS / "decisions").glob("0*.md"))

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_TEST = re.compile(r"`((?:tests|src/holdfast/testing)/[\w/]+\.py)(?:::(\w+))?`")
SOURCE_FILE = re.compile(r"`([\w/]+/\w+\.(?:py|sql))`")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=_name)


def _prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return FENCE.sub("", page.read_text())


class Section(NamedTuple):
    title: str
    rows: list[list[str]]


def _sections(page: Path) -> list[Section]:
    """Return the headings of a page, each with the cells of its tables."""
    found = [Section("", [])]
    for line in _prose(page).splitlines():
        if line.startswith("#"):
            found.append(Section(line.lstrip("# "), []))
        elif line.startswith("|") and not line.startswith("|--"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[-1].rows.append(cells)
    return [Section(section.title, section.rows[1:]) for section in found]


def _table(page: Path, title: str | None = None) -> dict[str, list[str]]:
    """Return the rows of a page, or of one section, by the code in their first cell."""
    rows: dict[str, list[str]] = {}
    for section in _sections(page):
        if title is None or section.title == title:
            for row in section.rows:
                for name in re.findall(r"`([^`]+)`", row[0]):
                    assert name not in rows, f"{name} is documented twice on {page.name}"
                    rows[name] = row
    return rows


# ── snippets, links, names ──────────────────────────────────────────────────────────────────


WALKED = {ROOT / "README.md", *(DOCS / "how-to/clients").glob("*.md")}
"""Pages whose snippets need a gateway: `tests/test_walks.py` and `tests/clients` run them."""


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "```python" in page.read_text() and page not in WALKED],
    ids=_name,
)
def test_the_snippets_of_a_page_run_in_order_and_print_what_it_says(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "STORE_URL" in page.read_text():
        monkeypatch.setenv("STORE_URL", request.getfixturevalue("postgres_url"))
    blocks = FENCE.findall(page.read_text())
    for index, (language, code) in enumerate(blocks):
        if language != "python":
            continue
        exec(compile(code, f"{page.name}[{index}]", "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
        following = blocks[index + 1] if index + 1 < len(blocks) else ("", "")
        if printed or following[0] == "text":
            assert following == ("text", printed), f"after block {index} of {page.name}"


def test_there_are_snippets_to_run() -> None:
    assert sum("```python" in page.read_text() for page in PAGES) >= 5


@cache
def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", _prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(_prose(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in _anchors(linked), f"{target} has no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    front = [ROOT / "README.md"]
    while front:
        page = front.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = [target.partition("#")[0] for target in LINK.findall(_prose(page))]
        front += [(page.parent / path).resolve() for path in targets if path and ":" not in path]
    assert [_name(page) for page in PAGES if page not in seen] == []


@every_page
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    for path in SOURCE_FILE.findall(page.read_text()):
        places = (ROOT / path, ROOT / "src" / path, ROOT / "src/holdfast" / path)
        assert any(place.exists() for place in places), f"no file {path}"


@every_page
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = re.findall(r"(?:^|`)make (\w+)", page.read_text(), flags=re.MULTILINE)
    assert set(named) <= targets


def test_the_architecture_is_one_page_and_names_every_package() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(page.splitlines()) <= 100
    packages = [p.name for p in (ROOT / "src/holdfast").iterdir() if (p / "__init__.py").exists()]
    assert [package for package in packages if f"`{package}`" not in page] == []


def test_every_path_of_the_architecture_exists() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    first = "|".join(p.name for p in (ROOT / "src/holdfast").iterdir() if p.is_dir())
    paths = set(re.findall(rf"\b(?:{first})/[\w/]+(?:\.py|\.sql)?", page))
    assert len(paths) >= 60
    assert [path for path in sorted(paths) if not (ROOT / "src/holdfast" / path).exists()] == []


def test_the_architecture_names_functions_and_classes_of_the_files_beside_them() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`([\w/]+\.py)` \(`(\w+)(?:\.(\w+))?`\)", page)
    assert len(named) >= 6
    for path, *names in named:
        known = _names_in(ROOT / "src/holdfast" / path)
        assert {name for name in names if name} <= known, f"{path} has no {names}"


@pytest.mark.parametrize("page", DECISIONS, ids=_name)
def test_a_decision_has_a_date_its_alternatives_and_a_line_in_the_index(page: Path) -> None:
    text = page.read_text()
    date = re.search(r"^Date: (\d{4}-\d\d-\d\d)\. Status: \w+\.$", text, flags=re.MULTILINE)
    assert date, "no date"
    titles = [section.title for section in _sections(page)]
    assert {"Decision", "Alternatives", "Costs"} <= set(titles)
    title = text.partition("\n")[0].removeprefix(f"# {page.name[:4]} ")
    index = (page.parent / "README.md").read_text()
    assert f"| [{page.name[:4]}]({page.name}) | {date[1]} | {title} |" in index


# ── the promises ────────────────────────────────────────────────────────────────────────────


@cache
def _names_in(path: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


@every_page
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for path, name in NAMED_TEST.findall(page.read_text()):
        assert (ROOT / path).exists(), f"no file {path}"
        assert not name or name in _names_in(ROOT / path), f"{path} has no {name}"


def test_there_is_a_page_for_each_of_the_twelve_promises() -> None:
    assert [page.name[:3] for page in INVARIANTS] == [f"I{number:02}" for number in range(1, 13)]


@pytest.mark.parametrize("page", INVARIANTS, ids=_name)
def test_a_promise_names_its_owners_its_enforcement_its_tests_and_its_gaps(page: Path) -> None:
    titles = [section.title for section in _sections(page)]
    for title in ("Owners", "How it is enforced", "Failures it rules out", "Tests", "Known gaps"):
        assert title in titles, f"no section {title!r}"
    assert NAMED_TEST.findall(page.read_text()), "no test is named"


def test_every_known_failure_mode_is_listed_by_one_promise() -> None:
    text = "".join(page.read_text() for page in INVARIANTS)
    listed = re.findall(r"^\| (F\d\d) \|", text, flags=re.MULTILINE)
    assert sorted(set(listed)) == [f"F{number:02}" for number in range(1, 74)]
    assert len(listed) == len(set(listed)), "a failure is listed twice"


FAILURES = REFERENCE / "failure-modes.md"
NOT_BY_REQUEST = {"F45", "F47", "F50", "F65"}
"""Disks, old files and clocks: no request causes them, so their own tests cover them."""


def _failure_rows() -> dict[str, list[str]]:
    rows = [row for section in _sections(FAILURES) for row in section.rows]
    assert len({row[0] for row in rows}) == len(rows), "a mode is listed twice"
    return {row[0]: row for row in rows}


def test_every_failure_mode_is_listed_with_its_tests_or_says_that_it_has_none() -> None:
    rows = _failure_rows()
    assert list(rows) == [f"F{number:02}" for number in range(1, 74)]
    for name, (_, words, _, tests) in rows.items():
        assert words, f"{name} says nothing"
        is_covered = bool(NAMED_TEST.search(tests))
        assert is_covered != tests.startswith("not covered yet"), name


def test_a_failure_mode_lists_a_test_of_its_name_where_there_can_be_one() -> None:
    rows = _failure_rows()
    named: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in _names_in(path):
            if found := re.match(r"test_f(\d\d)_", name):
                where = f"{path.relative_to(ROOT)}::{name}"
                named.setdefault(f"F{found[1]}", set()).add(where)
    for mode, tests in named.items():
        listed = {f"{path}::{name}" for path, name in NAMED_TEST.findall(rows[mode][3])}
        assert tests & listed, f"{mode} lists none of {sorted(tests)}"
    for number in range(36, 74):
        mode = f"F{number}"
        is_open = rows[mode][3].startswith("not covered yet")
        assert mode in named or is_open or mode in NOT_BY_REQUEST, f"{mode} has no test of its name"


# ── the reference against the code ──────────────────────────────────────────────────────────


def _all_errors(root: type[HoldfastError] = HoldfastError) -> Iterator[type[HoldfastError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__.startswith("holdfast."):
            yield from _all_errors(child)


def test_every_error_code_is_documented_as_it_is() -> None:
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    page = REFERENCE / "errors.md"
    rows = _table(page, "Errors") | _table(page, "Errors of the HTTP surface")
    assert {code: (row[1], row[2]) for code, row in rows.items()} == {
        error.code: (f"`{error.__name__}`", "yes" if error.retryable else "no")
        for error in _all_errors()
    }


def test_every_status_that_a_page_names_with_an_error_code_is_what_clients_get() -> None:
    classes = {error.code: error for error in _all_errors()}
    named = 0
    for page in PAGES:
        if "simulator" in page.name or "test-against" in page.name:
            continue  # errors of providers, some of which have a code of ours
        for status, code in re.findall(r"\b([45]\d\d) `(\w+)`", page.read_text()):
            if code in classes:
                named += 1
                expected = next(STATUS[kind] for kind in classes[code].__mro__ if kind in STATUS)
                assert int(status) == expected, f"{page.name}: {code}"
    assert named >= 40


def test_every_recorded_code_that_is_documented_is_one_the_code_writes() -> None:
    rows = _table(REFERENCE / "errors.md", "Codes recorded with a turn")
    sources = "".join(path.read_text() for path in (ROOT / "src/holdfast").rglob("*.py"))
    assert rows
    assert [code for code in rows if f'"{code}"' not in sources] == []


def _event_argument(call: ast.Call, method: str) -> ast.expr | None:
    """Return the event kind that a call of the draft writes, if it writes one."""
    if method == "add_event":
        return call.args[0]
    if method != "save_turn":
        return None
    if len(call.args) > 2:
        return call.args[2]
    return next((named.value for named in call.keywords if named.arg == "event"), None)


def _event_kinds(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        kind = _event_argument(node, node.func.attr)
        if kind is None:
            continue
        if isinstance(kind, ast.Constant):
            yield str(kind.value)
        else:
            assert ast.unparse(kind) == "f'turn.{outcome}'", "a kind this test cannot read"
            yield from (f"turn.{outcome}" for outcome in get_args(Outcome))


def test_every_event_kind_is_documented() -> None:
    kinds = {
        kind for path in (ROOT / "src/holdfast/core").rglob("*.py") for kind in _event_kinds(path)
    }
    assert set(_table(REFERENCE / "events.md", "Events")) == kinds


def test_every_command_of_the_store_is_documented() -> None:
    commands = {command.__name__ for command in Command.__subclasses__()}
    assert set(_table(REFERENCE / "commands.md", "Commands")) == commands


def _default(cell: str) -> Any:
    if cell == "required":
        return dataclasses.MISSING
    known = {
        "time": time,
        "UTC": UTC,
        "TimeoutSettings": TimeoutSettings,
        "AgentRuntime": AgentRuntime,
        "DEFAULT_PROMPT": DEFAULT_PROMPT,
        "default_store_url": default_store_url,
    }
    return eval(cell.strip("`"), known)


def _default_of(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@pytest.mark.parametrize(
    "settings",
    [
        holdfast.LaneSettings,
        StreamSettings,
        HealSettings,
        ContextSettings,
        ServerSettings,
        StoreSettings,
        ResetSettings,
        LimitSettings,
        ToolSettings,
        McpSettings,
        RetentionSettings,
        LogSettings,
        TranscribeSettings,
        AccessKey,
        UpstreamSettings,
        TimeoutSettings,
    ],
)
def test_every_setting_is_documented_with_its_default(settings: Any) -> None:
    rows = _table(REFERENCE / "settings.md", settings.__name__)
    fields = dataclasses.fields(settings)
    assert {name: _default(row[1]) for name, row in rows.items()} == {
        field.name: _default_of(field) for field in fields
    }


def test_every_field_of_the_reset_policy_is_documented_with_its_default() -> None:
    rows = _table(REFERENCE / "settings.md", "ResetPolicy")
    fields = msgspec.structs.fields(holdfast.ResetPolicy)
    assert {name: _default(row[1]) for name, row in rows.items()} == {
        field.name: field.default for field in fields
    }


def _schema() -> dict[str, list[str]]:
    connection = sqlite3.connect(":memory:")
    try:
        for text, parameters in migrations.installation(DIALECT, 0.0):
            connection.execute(text, parameters)
        names = connection.execute(
            # The tables of FTS5 are one index.
            "select name from sqlite_master where type = 'table' and name not like 'sqlite_%' "
            "and name not like 'search_text%'"
        )
        return {
            name: [row[1] for row in connection.execute(f"pragma table_info({name})")]
            for (name,) in names.fetchall()
        }
    finally:
        connection.close()


def test_every_table_and_column_is_documented_in_its_order() -> None:
    page = REFERENCE / "schema.md"
    titles = [section.title for section in _sections(page) if section.rows]
    assert {title: list(_table(page, title)) for title in titles} == _schema()


def test_every_public_name_is_documented() -> None:
    titles = {section.title for section in _sections(REFERENCE / "python.md")}
    named = {
        name.replace("\\", "")
        for title in titles
        for name in re.findall(r"holdfast\.([\w\\]+)", title)
    }
    assert named == set(holdfast.__all__)


@pytest.mark.parametrize("owner", [holdfast.Holdfast, holdfast.SessionHandle, holdfast.TurnHandle])
def test_every_public_method_is_documented_with_its_parameters(owner: type) -> None:
    rows = _table(REFERENCE / "python.md", f"holdfast.{owner.__name__}")
    written = {re.sub(r"^await ", "", name).partition("(")[0]: name for name in rows}
    public = {name for name in vars(owner) if not name.startswith("_")}
    if owner is holdfast.Holdfast:
        public.add("gateway")
    assert set(written) == public
    for name, text in written.items():
        member = vars(owner).get(name)
        assert text.startswith("await ") == inspect.iscoroutinefunction(member), text
        if inspect.isfunction(member):
            assert _parameters(text) == list(inspect.signature(member).parameters)[1:], text


def _parameters(text: str) -> list[str]:
    call = ast.parse(f"def {re.sub('^await ', '', text)}: ...").body[0]
    assert isinstance(call, ast.FunctionDef)
    return [argument.arg for argument in [*call.args.args, *call.args.kwonlyargs]]


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Return every command that does something, by its full name."""
    children: dict[str, Any] | None = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in sorted(children.items()):
        yield from _commands(child, f"{path} {name}")


def test_every_command_and_option_of_the_command_line_is_documented() -> None:
    page = REFERENCE / "command-line.md"
    known = dict(_commands(typer.main.get_command(app), "holdfast"))
    for name, command in known.items():
        assert f"`{name}" in page.read_text(), f"{name} is not documented"
        for flag in (flag for option in command.params for flag in option.opts):
            is_documented = not flag.startswith("-") or flag in page.read_text()
            assert is_documented, f"{flag} of {name} is not documented"
    documented = {re.sub(r" [-\[A-Z].*", "", name) for name in _table(page, "Command line")}
    assert documented == {*known, "holdfast"}


def test_every_endpoint_that_is_documented_exists() -> None:
    routes = re.findall(r'add\("(\w+)", "([^"]+)"', inspect.getsource(application))
    documented = set(_table(REFERENCE / "http.md", "Endpoints"))
    documented |= set(_table(REFERENCE / "conversations.md", "Conversations"))
    documented |= set(_table(REFERENCE / "sessions.md", "Endpoints"))
    assert documented
    assert documented <= {f"{method} {path}" for method, path in routes}
