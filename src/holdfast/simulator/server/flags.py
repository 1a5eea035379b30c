"""Faults on the command line: a kind, then `name=value` words."""

import json
import shlex
from typing import Any, get_args

from holdfast.simulator.faults.catalogue import CATALOGUE
from holdfast.simulator.faults.effects import Effect
from holdfast.simulator.state.scenario import TOO_LARGE, InvalidScenario, fault_of

KINDS = sorted(str(kind.__struct_config__.tag) for kind in get_args(Effect))
MAX_SHOWN = 200
"""How many characters of an invalid flag an error repeats."""


def read_flag(written: str) -> Effect:
    """Return the fault that a flag describes, or raise `InvalidScenario`.

    `cut event=3 ending=reset times=1 when.model=gpt-5*`, `R02`, or a JSON object.
    """
    where = f"--fault {_shortened(written)!r}"
    if written.lstrip().startswith("{"):
        try:
            return fault_of(_decoded(written, where), where=where)
        except json.JSONDecodeError as exc:
            raise InvalidScenario(f"{where}: not JSON: {exc}") from exc
    try:
        words = shlex.split(written)
    except ValueError as exc:
        raise InvalidScenario(f"{where}: {exc}") from exc
    if not words:
        raise InvalidScenario("--fault: expected a kind")
    if words[0] not in KINDS and words[0] not in CATALOGUE:
        known = ", ".join([*KINDS, *CATALOGUE])
        raise InvalidScenario(f"{where}: no fault {words[0]!r}; there are {known}")
    table: dict[str, Any] = {"kind": words[0]}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidScenario(f"{where}: expected name=value, got {word!r}")
        _put(table, name.split(".", 2), _value(value, where))
    return fault_of(table, where=where)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _decoded(text: str, where: str) -> Any:
    """Return the JSON in `text`; raise `JSONDecodeError` for invalid JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as exc:
        raise InvalidScenario(f"{where}: {TOO_LARGE}") from exc


def _value(text: str, where: str) -> Any:
    try:
        return _decoded(text, where)
    except json.JSONDecodeError:
        return text


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InvalidScenario(f"--fault: {name!r} is given twice")
        table = inner
    table[path[-1]] = value
