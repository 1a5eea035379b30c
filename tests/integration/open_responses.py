"""The Open Responses schema of a response and a compaction, as JSON Schema: the required fields,
and where null is allowed."""

from typing import Any

from jsonschema_rs import Draft202012Validator

Json = dict[str, Any]


def _object(required: Json, optional: Json | None = None) -> Json:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def _list(*kinds: Json) -> Json:
    return {"type": "array", "items": {"oneOf": list(kinds)}}


def _nullable(kind: Json) -> Json:
    return {"anyOf": [kind, {"type": "null"}]}


def _const(value: str) -> Json:
    return {"const": value}


_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_WHOLE: Json = {"type": "integer"}
_NUMBER: Json = {"type": "number"}
_MODE: Json = {"enum": ["none", "auto", "required"]}
_STATUS: Json = {"enum": ["in_progress", "completed", "incomplete"]}

_INPUT_TEXT = _object({"type": _const("input_text"), "text": _TEXT})
_INPUT_IMAGE = _object(
    {
        "type": _const("input_image"),
        "image_url": _nullable(_TEXT),
        "detail": {"enum": ["low", "high", "auto"]},
    }
)
_INPUT_FILE = _object({"type": _const("input_file")}, {"filename": _TEXT, "file_url": _TEXT})
_OUTPUT_TEXT = _object(
    {"type": _const("output_text"), "text": _TEXT, "annotations": {"type": "array"}},
    {"logprobs": {"type": "array"}},
)
_REFUSAL = _object({"type": _const("refusal"), "refusal": _TEXT})
_SUMMARY_TEXT = _object({"type": _const("summary_text"), "text": _TEXT})
_REASONING_TEXT = _object({"type": _const("reasoning_text"), "text": _TEXT})

_SAID = {"type": _const("message"), "id": _TEXT, "status": _STATUS}
_USER = _object(
    {
        **_SAID,
        "role": {"enum": ["user", "system", "developer"]},
        "content": _list(_INPUT_TEXT, _INPUT_IMAGE, _INPUT_FILE),
    }
)
_ASSISTANT = _object(
    {**_SAID, "role": _const("assistant"), "content": _list(_OUTPUT_TEXT, _REFUSAL)}
)
_CALL = _object(
    {
        "type": _const("function_call"),
        "id": _TEXT,
        "call_id": _TEXT,
        "name": _TEXT,
        "arguments": _TEXT,
        "status": _STATUS,
    }
)
_REASONING = _object(
    {"type": _const("reasoning"), "id": _TEXT, "summary": _list(_SUMMARY_TEXT)},
    {"content": _list(_REASONING_TEXT), "encrypted_content": _TEXT},
)
_COMPACTION = _object({"type": _const("compaction"), "id": _TEXT, "encrypted_content": _TEXT})

_FUNCTION = _object(
    {
        "type": _const("function"),
        "name": _TEXT,
        "description": _nullable(_TEXT),
        "parameters": _nullable({"type": "object"}),
        "strict": _nullable(_FLAG),
    }
)
_FUNCTION_CHOICE = _object({"type": _const("function")}, {"name": _TEXT})
_ALLOWED_TOOLS = _object(
    {"type": _const("allowed_tools"), "tools": _list(_FUNCTION_CHOICE), "mode": _MODE}
)
_JSON_SCHEMA = _object(
    {
        "type": _const("json_schema"),
        "name": _TEXT,
        "description": _nullable(_TEXT),
        "schema": {"type": "object"},
        "strict": _FLAG,
    }
)
_PLAIN_FORMAT = _object({"type": {"enum": ["text", "json_object"]}})
_USAGE = _object(
    {
        "input_tokens": _WHOLE,
        "output_tokens": _WHOLE,
        "total_tokens": _WHOLE,
        "input_tokens_details": _object({"cached_tokens": _WHOLE}),
        "output_tokens_details": _object({"reasoning_tokens": _WHOLE}),
    }
)

RESPONSE = _object(
    {
        "id": _TEXT,
        "object": _const("response"),
        "created_at": _WHOLE,
        "completed_at": _nullable(_WHOLE),
        "status": _TEXT,
        "incomplete_details": _nullable(_object({"reason": _TEXT})),
        "model": _TEXT,
        "previous_response_id": _nullable(_TEXT),
        "instructions": _nullable(_TEXT),
        "output": _list(_ASSISTANT, _CALL, _REASONING, _COMPACTION),
        "error": _nullable(_object({"code": _TEXT, "message": _TEXT})),
        "tools": _list(_FUNCTION),
        "tool_choice": {"oneOf": [_FUNCTION_CHOICE, _MODE, _ALLOWED_TOOLS]},
        "truncation": {"enum": ["auto", "disabled"]},
        "parallel_tool_calls": _FLAG,
        "text": _object(
            {"format": {"oneOf": [_PLAIN_FORMAT, _JSON_SCHEMA]}},
            {"verbosity": {"enum": ["low", "medium", "high"]}},
        ),
        "top_p": _NUMBER,
        "presence_penalty": _NUMBER,
        "frequency_penalty": _NUMBER,
        "top_logprobs": _WHOLE,
        "temperature": _NUMBER,
        "reasoning": _nullable(_object({"effort": _nullable(_TEXT), "summary": _nullable(_TEXT)})),
        "usage": _nullable(_USAGE),
        "max_output_tokens": _nullable(_WHOLE),
        "max_tool_calls": _nullable(_WHOLE),
        "store": _FLAG,
        "background": _FLAG,
        "service_tier": _TEXT,
        "metadata": {"type": "object"},
        "safety_identifier": _nullable(_TEXT),
        "prompt_cache_key": _nullable(_TEXT),
    }
)
COMPACTION = _object(
    {
        "id": _TEXT,
        "object": _const("response.compaction"),
        "created_at": _WHOLE,
        "output": _list(_USER, _COMPACTION),
        "usage": _USAGE,
    }
)


def violations(value: Json, schema: Json) -> list[str]:
    """Return the errors of a value, each with its place."""
    errors = Draft202012Validator(schema).iter_errors(value)
    return [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in errors]
