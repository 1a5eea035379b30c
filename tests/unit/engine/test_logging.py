"""Events for operators."""

import ast
import logging
import re
from functools import cache
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.logging import LOG_AREAS, log


def test_an_event_carries_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast"):
        log.info("run.ended", run_id="run_1")
    assert [(one.getMessage(), vars(one)["run_id"]) for one in caplog.records] == [
        ("run.ended", "run_1")
    ]


def test_what_nobody_listens_to_is_not_even_written_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        log.info("run.ended", run_id="run_1")
        log.warning("run.odd", run_id="run_2")
    assert [one.getMessage() for one in caplog.records] == ["run.odd"]


@cache
def _log_calls() -> list[tuple[Path, ast.Call]]:
    """Return every call of a logger in the sources, with its file."""
    return [
        (path, call)
        for path in Path(holdfast.__file__).parent.rglob("*.py")
        if re.search(r"\blog", text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and re.match(r"(self\.)?_?log(ged|ger)?\b", ast.unparse(call.func))
    ]


def test_no_event_carries_what_a_log_record_has_of_its_own() -> None:
    taken = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    wrong = [
        f"{path.name}:{call.lineno}: {word.arg}"
        for path, call in _log_calls()
        if ast.unparse(call.func).startswith("log.")
        for word in call.keywords
        if word.arg in taken
    ]
    assert wrong == []


def test_every_event_has_an_area() -> None:
    literals = [
        (path.name, argument.value)
        for path, call in _log_calls()
        if "simulator" not in path.parts
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    assert len(literals) > 40
    events = [(name, text) for name, text in literals if re.fullmatch(r"\w+\.\w+", text)]
    assert [one for one in events if one[1].partition(".")[0] not in LOG_AREAS] == []
    assert set(LOG_AREAS) <= {event.partition(".")[0] for _, event in events} | {"request"}


def test_an_exception_comes_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("run.broke", run_id="run_1")
    assert caplog.records[0].exc_info is not None
