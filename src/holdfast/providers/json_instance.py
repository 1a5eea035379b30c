"""Makes an instance of a JSON schema, for the demo model's structured output.

It understands what structured output allows, and refuses the rest: an instance that may be invalid
would be worse than an error.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.core.errors import InvalidInput

DEPTHS = (4, 8, 24)
"""How deep an instance may be; a shallow one is tried first, as schemas may refer to themselves."""
MAX_VALUES = 5_000
"""How many values are made, with those of alternatives that did not lead to an instance."""
MAX_LENGTH = 10_000
"""The longest text or list that a schema may demand."""
MAX_PATTERN = 200
MAX_REPEATS = 3
_REPEATS = re.compile(r"[*+?]|\{\d*,")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
"""With a few repeats and no repeated group, a search in a short text is fast."""
_FORMATS = {
    "date": "2026-01-31", "time": "12:00:00Z", "date-time": "2026-01-31T12:00:00Z",
    "duration": "P1D", "email": "demo@example.com", "hostname": "example.com",
    "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}  # fmt: skip
_SAMPLES = (
    "demo", "Demo", "DEMO", "a", "A", "1", "12", "123", "1234", "12345", "abc", "ABC", "a1", "A1",
    "demo-1", "demo_1", "A-1", "ABC-123", "1.0", "1.0.0", "@demo", "#aabbcc", "+15550100", "en-US",
    "en", "EUR", "/demo", "demo.txt", *_FORMATS.values(),
)  # fmt: skip
"""Texts that are tried for a pattern."""
_NOT_MADE = (
    "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains",
    "patternProperties", "propertyNames", "minProperties", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
"""Keywords that demand something which is not checked here."""


class _NoInstance(Exception):
    """No instance of this schema is known."""


def make_instance(schema: Any) -> Any:
    """Return a small value that is valid for a schema; raise `InvalidInput` if none is known."""
    try:
        for depth in DEPTHS[:-1]:
            with suppress(_NoInstance):
                return _Maker(schema, depth).make(schema, 0)
        return _Maker(schema, DEPTHS[-1]).make(schema, 0)
    except _NoInstance as exc:
        raise InvalidInput(str(exc)) from exc
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as exc:
        raise InvalidInput("this is not a JSON schema that the demo model understands") from exc


class _Maker:
    def __init__(self, root: Any, max_depth: int) -> None:
        self._root = root
        self._max_depth = max_depth
        self._left = MAX_VALUES

    def make(self, schema: Any, depth: int) -> Any:
        """Return an instance of a part of the schema."""
        self._left -= 1
        if depth > self._max_depth or self._left < 0:
            raise _NoInstance("the demo model cannot answer a schema of this depth or size")
        if schema is True:
            return "demo"
        schema = self._resolved(schema, depth)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                return self._any_of(schema, name, depth)
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return schema["enum"][0]
        make = _MAKERS.get(_type_of(schema))
        if make is None:
            raise _NoInstance(f"the demo model does not know the type {schema.get('type')!r}")
        return make(self, schema, depth)

    def _resolved(self, schema: Any, depth: int) -> dict[str, Any]:
        """Return a schema with what it refers to, and all that it combines, as one."""
        if not isinstance(schema, dict):
            raise _NoInstance("a JSON schema must be an object")
        unknown = next((name for name in _NOT_MADE if name in schema), None)
        if unknown is not None:
            raise _NoInstance(f"the demo model cannot answer a schema with {unknown!r}")
        parts = list(schema.get("allOf") or ())
        if "$ref" in schema:
            parts.append(self._target(schema["$ref"]))
        if not parts:
            return schema
        if depth > self._max_depth:
            raise _NoInstance("the demo model cannot answer a schema that refers to itself")
        merged = {name: value for name, value in schema.items() if name not in ("allOf", "$ref")}
        for part in parts:
            for name, value in self._resolved(part, depth + 1).items():
                merged[name] = _merged(name, merged[name], value) if name in merged else value
        return merged

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _NoInstance(f"the demo model cannot follow the reference {reference!r}")
        found = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise _NoInstance(f"the schema has nothing at {reference!r}")
            found = found[key]
        return found

    def _any_of(self, schema: dict[str, Any], name: str, depth: int) -> Any:
        """Return an instance of the first alternative that has one."""
        rest = {key: value for key, value in schema.items() if key != name}
        if name == "oneOf" and not _is_exclusive(schema[name]):
            raise _NoInstance("the demo model cannot tell the alternatives of 'oneOf' apart")
        failure: _NoInstance | None = None
        for option in schema[name]:
            try:
                return self.make({**rest, "allOf": [*rest.get("allOf", ()), option]}, depth + 1)
            except _NoInstance as exc:
                failure = exc
        raise failure or _NoInstance(f"{name!r} has no alternative")

    def object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """Return an object with the properties that are required."""
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        made = {}
        for name in required:
            made[name] = self.make(properties.get(name, True), depth + 1)
        return made

    def array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        """Return a list with one item, or as many as are demanded."""
        first = list(schema.get("prefixItems") or ())
        least, most = _bounds(schema, "minItems", "maxItems")
        count = max(least, min(1, most))
        made = [self.make(part, depth + 1) for part in first[:count]]
        while len(made) < count:
            try:
                made.append(self.make(schema.get("items", True), depth + 1))
            except _NoInstance:
                if len(made) < least:
                    raise
                break
        if schema.get("uniqueItems") and len(made) > 1:
            raise _NoInstance("the demo model cannot answer a list of several unique items")
        return made

    def string(self, schema: dict[str, Any], _: int) -> str:
        """Return a text of the right form and length."""
        least, most = _bounds(schema, "minLength", "maxLength")
        wanted = schema.get("format")
        samples: Sequence[str] = [_FORMATS[wanted]] if wanted in _FORMATS else _SAMPLES
        if "pattern" not in schema and wanted not in _FORMATS:
            return "demo"[:most] if least <= 4 else "demo".ljust(least, "o")
        pattern = schema.get("pattern", "")
        is_slow = len(_REPEATS.findall(pattern)) > MAX_REPEATS or _REPEATED_GROUP.search(pattern)
        if len(pattern) > MAX_PATTERN or is_slow:
            raise _NoInstance("the demo model cannot answer a pattern of this size")
        try:
            matches = re.compile(pattern).search
        except re.error as exc:
            raise _NoInstance("a pattern of the schema is not a regular expression") from exc
        for sample in samples:
            if least <= len(sample) <= most and matches(sample):
                return sample
        raise _NoInstance(f"the demo model knows no text for {schema.get('pattern') or wanted!r}")

    def number(self, schema: dict[str, Any], _: int) -> float | int:
        """Return a number within the bounds."""
        step = schema.get("multipleOf") or (1 if _type_of(schema) == "integer" else 0)
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if not all(isinstance(value, int | float) for value in (step, low, high)):
            raise _NoInstance("the bounds of a number must be numbers")

        def fits(value: float) -> bool:
            is_inside = low <= value <= high and (below is None or value < below)
            return is_inside and (above is None or value > above)

        edges = [
            edge for edge in (low, high, above, below) if edge not in (None, -math.inf, math.inf)
        ]
        for start in (1, 0, *edges):
            near = [start]
            if step:
                nearest = math.floor(start / step) * step
                near = [nearest, nearest + step, nearest - step]
            else:
                near += [start + 0.5, start - 0.5]
            for value in near:
                if fits(value):
                    return int(value) if _type_of(schema) == "integer" else value
        raise _NoInstance("the demo model knows no number within these bounds")


_MAKERS: Mapping[str, Callable[[_Maker, dict[str, Any], int], Any]] = {
    "object": _Maker.object,
    "array": _Maker.array,
    "string": _Maker.string,
    "number": _Maker.number,
    "integer": _Maker.number,
    "boolean": lambda *_: True,
    "null": lambda *_: None,
}


def _type_of(schema: dict[str, Any]) -> str:
    """Return the first type that a schema allows, guessed from its keywords if it names none."""
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        kind = next((one for one in kind if one != "null"), "null")
    if kind is not None:
        return str(kind)
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _merged(name: str, one: Any, other: Any) -> Any:
    """Return one keyword of two schemas that both apply."""
    if one == other or name in ("title", "description", "default", "examples", "$defs"):
        return one
    if name == "properties":
        both = {key: {"allOf": [one[key], other[key]]} for key in one.keys() & other.keys()}
        return {**one, **other, **both}
    if name == "required":
        return [*one, *(key for key in other if key not in one)]
    if name in ("minLength", "minItems", "minimum", "exclusiveMinimum"):
        return max(one, other)
    if name in ("maxLength", "maxItems", "maximum", "exclusiveMaximum"):
        return min(one, other)
    if name == "enum" and any(value in other for value in one):
        return [value for value in one if value in other]
    raise _NoInstance(f"the demo model cannot combine two values of {name!r}")


def _bounds(schema: dict[str, Any], least: str, most: str) -> tuple[int, int]:
    low, high = schema.get(least, 0), schema.get(most, MAX_LENGTH)
    if not isinstance(low, int) or not isinstance(high, int) or low > min(high, MAX_LENGTH):
        raise _NoInstance(f"the demo model cannot answer a schema with this {least!r}")
    return low, high


def _is_exclusive(options: Any) -> bool:
    """Whether the alternatives of a schema exclude each other by type or by a constant."""
    if not isinstance(options, list) or not all(isinstance(option, dict) for option in options):
        return False
    if len(options) < 2:
        return True
    kinds = [option.get("type") for option in options]
    plain = [kind for kind in kinds if isinstance(kind, str)]
    if len(plain) == len(set(plain)) == len(options) and not {"integer", "number"} <= set(plain):
        return True
    tags = [
        {(name, str(part["const"])) for name, part in (option.get("properties") or {}).items()
         if isinstance(part, dict) and "const" in part and name in (option.get("required") or ())}
        for option in options
    ]  # fmt: skip
    names = set.intersection(*({name for name, _ in tag} for tag in tags))
    return any(
        len({value for tag in tags for key, value in tag if key == name}) == len(options)
        for name in names
    )
