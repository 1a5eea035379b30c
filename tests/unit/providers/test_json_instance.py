"""The demo model's values: valid for their schema, or refused."""

from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from holdfast.core.errors import InvalidInput
from holdfast.providers.json_instance import make_instance

Json = dict[str, Any]
PERSON: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 8},
        "age": {"type": "integer", "minimum": 18, "exclusiveMaximum": 19},
        "tags": {"type": "array", "items": {"enum": ["b", "a"]}, "minItems": 2},
        "mail": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
        "boss": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "mail", "boss"],
    "additionalProperties": False,
}
NODE: Json = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number", "multipleOf": 0.5, "minimum": 3.2},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 0},
            },
            "required": ["value", "children"],
        }
    },
    "$ref": "#/$defs/node",
}
TAGGED: Json = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": name}, "n": {"type": "integer"}},
         "required": ["kind", "n"]} for name in ("cat", "dog")
    ]
}  # fmt: skip
SCHEMAS = [
    PERSON,
    NODE,
    TAGGED,
    {"type": ["null", "boolean"]},
    {"type": "string", "pattern": "^[A-Z]{3}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "minLength": 30},
    {"type": "string", "maxLength": 2},
    {"type": "integer", "multipleOf": 7, "minimum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "maximum": -5},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2},
    {"allOf": [{"type": "object", "required": ["a"]},
               {"properties": {"a": {"type": "integer"}}}]},
    {"const": {"a": 1}},
    {"type": "object"},
    {},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_an_instance_is_valid_for_its_schema(schema: Json) -> None:
    Draft202012Validator(schema, validate_formats=True).validate(make_instance(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema"},
        {"not": {"type": "string"}},
        {"type": "string", "pattern": "^(x|y|z)+!$"},
        {"type": "string", "pattern": "^.*.*.*.*!$"},
        {"type": "string", "pattern": "["},
        {"type": "string", "pattern": "^zzz$"},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**9},
        {"type": "array", "minItems": 6000},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "number", "minimum": "2"},
        {"type": "object", "required": 3},
        {"type": "object", "properties": 3, "required": ["a"]},
        {"type": "widget"},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"anyOf": []},
        7,
        None,
    ],
)
def test_a_schema_whose_instance_is_not_known_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidInput):
        make_instance(schema)
