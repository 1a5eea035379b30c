"""Classify the errors of real providers, by code first and by text second."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.core.errors import FailureClass
from holdfast.providers.errors import classify, failure_in_stream, failure_of

Json = dict[str, Any]
INVALID = "invalid_request_error"


def openai(message: str, *, code: str | None = None, param: str | None = "input",
           kind: str = INVALID) -> Json:  # fmt: skip
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic(message: str, kind: str = INVALID) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


LISTED: dict[str, tuple[int, Any, FailureClass]] = {
    "R01": (
        404,
        openai(
            "Item with id 'rs_0b1d' not found. Items are not persisted when `store` is set to "
            "false. Try again with `store` set to true, or remove this item from your input."
        ),
        "stale_state",
    ),
    "R02": (
        400,
        openai(
            "Previous response with id 'resp_1' not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        ),
        "stale_state",
    ),
    "R03": (
        400,
        openai("Item 'rs_1' of type 'reasoning' was provided without its required following item."),
        "shape",
    ),
    "R04": (400, openai("No tool output found for function call call_1."), "shape"),
    "R05": (
        400,
        openai("No tool call found for function call output with call_id call_1."),
        "shape",
    ),
    "R06": (
        400,
        openai(
            "Duplicate item found with id rs_1. Remove duplicate items from your input and try "
            "again."
        ),
        "shape",
    ),
    "R07": (
        400,
        openai(
            "The encrypted content for item rs_1 could not be verified. Reason: Encrypted content "
            "could not be decrypted or parsed.",
            code="invalid_encrypted_content",
            param=None,
        ),
        "foreign_opaque",
    ),
    "R07 of old": (
        400,
        openai("The encrypted content gAAA...c90= could not be verified.", param=None),
        "foreign_opaque",
    ),
    "R08": (
        400,
        openai(
            "Another process is currently operating on this conversation. Please retry in a few "
            "seconds.",
            code="conversation_locked",
            param="conversation",
        ),
        "busy",
    ),
    "R09": (
        400,
        openai(
            "Invalid 'input[95].call_id': string too long. Expected a string with maximum length "
            "64, but got a string with length 116 instead.",
            code="string_above_max_length",
        ),
        "shape",
    ),
    "R10": (
        400,
        openai(
            "Your input exceeds the context window of this model. Please adjust your input and "
            "try again.",
            code="context_length_exceeded",
        ),
        "overflow",
    ),
    "R17": (404, openai("Conversation with id 'conv_1' not found.", param=None), "stale_state"),
    "C01": (
        400,
        openai(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            "call_1",
            param="messages.[2].role",
        ),
        "shape",
    ),
    "C02": (
        400,
        openai(
            "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
            code=INVALID,
            param=None,
        ),
        "shape",
    ),
    "C03": (
        400,
        openai(
            "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with "
            "maximum length 40, but got a string with length 43 instead.",
            code="string_above_max_length",
        ),
        "shape",
    ),
    "C04": (
        429,
        openai(
            "You exceeded your current quota, please check your plan and billing details.",
            code="insufficient_quota",
            kind="insufficient_quota",
            param=None,
        ),
        "terminal",
    ),
    "C05": (
        429,
        openai(
            "Rate limit reached for m in organization o on tokens per min (TPM): Limit 1, Used 1, "
            "Requested 1. Please try again in 1s.",
            code="rate_limit_exceeded",
            kind="tokens",
            param=None,
        ),
        "transient",
    ),
    "C07": (
        400,
        openai(
            "This endpoint's maximum context length is 32768 tokens. However, you requested about "
            "42832 tokens (42832 of text input).",
            param=None,
        ),
        "overflow",
    ),
    "A01": (
        400,
        anthropic(
            "messages.37: `tool_use` ids were found without `tool_result` blocks immediately after:"
            " toolu_1. Each `tool_use` block must have a corresponding `tool_result` block in the "
            "next message."
        ),
        "shape",
    ),
    "A02": (
        400,
        anthropic(
            "messages.82.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1"
        ),
        "shape",
    ),
    "A03": (400, anthropic("messages.43.content.2: `tool_use` ids must be unique"), "shape"),
    "A04": (
        400,
        anthropic("messages.5.content.0: Invalid `signature` in `thinking` block"),
        "foreign_opaque",
    ),
    "A05": (
        400,
        anthropic(
            "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant"
            " message cannot be modified."
        ),
        "foreign_opaque",
    ),
    "A06": (400, anthropic("prompt is too long: 200251 tokens > 200000 maximum"), "overflow"),
    "A06 of Vertex": (413, "Prompt is too long", "overflow"),
    "A07": (
        400,
        anthropic(
            "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648, decrease "
            "input length or `max_tokens` and try again"
        ),
        "overflow",
    ),
    "A08": (400, anthropic("Could not process image"), "poison"),
    "A08 of a format": (
        400,
        anthropic("messages.11.content.8.image.source: Image format image/png not supported"),
        "poison",
    ),
    "A09": (529, anthropic("Overloaded", "overloaded_error"), "transient"),
    "G01": (
        400,
        {
            "error": {
                "code": 400,
                "message": "Unable to submit request because Thought signature is not valid..",
                "status": "INVALID_ARGUMENT",
            }
        },
        "foreign_opaque",
    ),
    "G02": (
        429,
        {
            "error": {
                "code": 429,
                "message": "You exceeded your current quota, please check your plan.",
                "status": "RESOURCE_EXHAUSTED",
                "details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "26s"}],
            }
        },
        "transient",
    ),
    "L01": (
        409,
        ("Cannot send a new message: Another request is currently being processed for this "
        "conversation."),
        "busy",
    ),
    "K01": (400, "No conversation found with session ID: 1234", "stale_state"),
    "roles of a template": (
        400,
        openai("Conversation roles must alternate user/assistant/user/assistant/...", param=None),
        "shape",
    ),
    "a wrong key": (401, openai("Incorrect API key", code="invalid_api_key"), "terminal"),
    "an unknown model": (404, openai("The model `x` does not exist", code="model_not_found"),
                         "terminal"),
    "a broken server": (500, "<html>oops</html>", "transient"),
    "a proxy": (502, "", "transient"),
    "anything else": (400, openai("no"), "terminal"),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_every_known_error_has_its_class(name: str) -> None:
    status, body, want = LISTED[name]
    raw = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    failure = failure_of(status, {}, raw)
    assert failure.failure_class == want
    if isinstance(body, dict):
        assert failure.message == body["error"]["message"]
    elif body and not body.startswith("<"):
        assert failure.message == body


@pytest.mark.parametrize(
    ("error", "want"),
    [
        ({"type": INVALID, "code": "context_length_exceeded", "message": "x"}, "overflow"),
        ({"code": "server_error", "message": "An error occurred"}, "transient"),
        ({"type": "error", "code": None, "message": "An error occurred"}, "transient"),
        ({"type": "overloaded_error", "message": "Overloaded"}, "transient"),
        ({"type": INVALID, "message": "no"}, "terminal"),
        (None, "transient"),
        ("broken", "transient"),
    ],
)
def test_errors_in_a_stream_have_a_class(error: Any, want: FailureClass) -> None:
    assert failure_in_stream(error).failure_class == want


def test_a_code_outweighs_the_text() -> None:
    words = "Item with id 'rs_1' not found"
    assert classify(status=400, code="rate_limit_exceeded", message=words) == "transient"


def test_a_bare_404_means_lost_state_only_where_state_was_named() -> None:
    body = b'{"error": {"message": "not found"}}'
    assert failure_of(404, {}, body).failure_class == "terminal"
    assert failure_of(404, {}, body, names_state=True).failure_class == "stale_state"


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT",
          "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT",
          "date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "86400"}, 86_400.0),
        ({"retry-after": "604800"}, 604_800.0),
        ({"retry-after": "1e99"}, 366 * 86_400.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 366 * 86_400.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_time_to_wait_is_read(headers: dict[str, str], want: float | None) -> None:
    assert failure_of(429, headers, b"{}").retry_after == want


def test_the_time_to_wait_may_be_in_the_body() -> None:
    assert failure_of(429, {}, msgspec.json.encode(LISTED["G02"][1])).retry_after == 26.0


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("Please try again in 20s.", 20.0),
        ("Please try again in 500ms. Visit https://x", 0.5),
        ("Please try again in 6m0.5s.", 360.5),
        ("try again in 1h2m3s", 3723.0),
        ("Please retry in 20 seconds", 20.0),
        ("Please try again in 2 minutes, 30 seconds.", 150.0),
        ("Please try again in a few seconds", None),
        ("Please try again later", None),
    ],
)
def test_the_time_to_wait_may_be_in_the_message(words: str, want: float | None) -> None:
    body = msgspec.json.encode({"error": {"message": words}})
    assert failure_of(429, {}, body).retry_after == want
    assert failure_in_stream({"message": words}).retry_after == want


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_a_fault_of_the_gateway(status: int) -> None:
    failure = failure_of(status, {}, b'{"error": {"message": "no"}}')
    assert (failure.status, failure.provider_code) == (502, "upstream_auth_failed")


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"[1]", b'"x"', b"\xff", b"{", b'{"error": null}',
             b'{"error": []}', b'{"error": {"message": {}}}', b'{"detail": "no"}'],
)  # fmt: skip
def test_any_body_is_read(body: bytes) -> None:
    assert failure_of(500, {}, body).failure_class == "transient"


@pytest.mark.parametrize(
    ("status", "said", "want"),
    [
        (400, {"message": "x", "code": "invalid_image_url"}, "poison"),
        (400, {"message": "Error while downloading https://a.example/b.png."}, "poison"),
        (502, {"message": "Could not fetch the model's weights"}, "transient"),
        (404, {"message": "No such File object: file-abc"}, "poison"),
        (400, {"message": "The file 'file-abc' has expired."}, "poison"),
        (400, {"message": "Nope.", "param": "input[3].content[1].image_url"}, "poison"),
        (400, {"message": "messages.11.content.8.image.source: wrong"}, "poison"),
        (400, {"message": "Nope.", "param": "tools[0].name"}, "terminal"),
        (
            400,
            {"message": "Too long.", "code": "string_above_max_length",
             "param": "input[1].content[0].text"},
            "poison",
        ),
        (400, {"message": "Too long.", "code": "string_above_max_length",
               "param": "input[1].call_id"}, "shape"),
        (400, {"message": "the request exceeds the available context size"}, "overflow"),
        (400, {"message": "Input is too long for requested model."}, "overflow"),
        (413, {"message": "Request Entity Too Large"}, "overflow"),
        (
            429,
            {"message": "Request too large for m in organization o on tokens per min (TPM): Limit "
             "10, Requested 12.", "code": "rate_limit_exceeded"},
            "overflow",
        ),
    ],
)  # fmt: skip
def test_errors_about_one_item_or_its_length(
    status: int, said: dict[str, str], want: FailureClass
) -> None:
    body = json.dumps({"error": {"type": "invalid_request_error", **said}}).encode()
    assert failure_of(status, {}, body).failure_class == want


def test_an_overflow_without_a_code_gets_the_usual_one() -> None:
    said = {"message": "This endpoint's maximum context length is 8192 tokens.", "code": 400}
    failure = failure_of(400, {}, json.dumps({"error": said}).encode())
    assert (failure.failure_class, failure.provider_code) == ("overflow", "context_length_exceeded")
    other = failure_of(400, {}, json.dumps({"error": {"message": "no"}}).encode())
    assert other.provider_code is None


_TOO_LONG = (
    "Please reduce the length of the messages or completion.",
    "too many tokens: the prompt cannot exceed 4081, received 4200",
    "`inputs` tokens + `max_new_tokens` must be <= 2048",
    "`inputs` must have less than 4096 tokens. Given: 5000",
    "The maximum prompt length is 131072 but the request contains 537812 tokens.",
    "the model is loaded with context length of only 4096 tokens, which is not enough",
    "Your request exceeded model token limit: 8192",
    "Prompt exceeds max length",
    "Range of input length should be [1, 30720]",
    "invalid params, context window exceeds limit",
    "prompt token count of 130000 exceeds the limit of 128000",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "The decoder prompt is longer than the maximum model length of 4096.",
    "Input length 5000 exceeds maximum allowed token size 4096",
    "message too long, max 32000 tokens",
)
_MEDIA = (
    "Invalid MIME type. Only image types are supported.",
    "At most 0 image(s) may be provided in one prompt.",
    "No endpoints found that support image input",
    "The PDF specified was not valid.",
    "A maximum of 100 PDF pages may be provided.",
    "Unsupported MIME type: application/zip",
    "Too many images in request. Max is 50.",
    "Files [file-1] were not found",
    "The model does not support file inputs",
    "cannot identify image file",
    "unknown variant `image_url`, expected `text`",
    "404 Client Error: Not Found for url: https://x.test/a.png",
    "Expected a supported file type: .pdf but got .docx",
)
_SEALED = (
    "Encrypted content is not supported with this model.",
    "Could not decrypt the provided encrypted_content.",
    "The encrypted reasoning could not be decoded",
    "reasoning items are not supported",
    "Invalid value: 'reasoning'. Supported values are: 'message'.",
)
_ORDER = (
    "System message must be at the beginning.",
    "System role not supported",
    "Unexpected role 'system' after role 'assistant'",
    "Please ensure that multiturn requests alternate between user and model.",
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        *((words, "overflow") for words in _TOO_LONG),
        *((words, "poison") for words in _MEDIA),
        *((words, "foreign_opaque") for words in _SEALED),
        *((words, "shape") for words in _ORDER),
        ("max_tokens is too large: this model has at most 4096 completion tokens", "terminal"),
        ("Invalid schema for function 'image': not an object", "terminal"),
        ("temperature must be at most 2", "terminal"),
    ],
)
def test_many_texts_have_one_meaning(message: str, expected: str) -> None:
    assert classify(status=400, message=message) == expected


def test_a_rate_limit_of_tokens_is_no_overflow() -> None:
    said = "Rate limit reached: too many tokens per min, limit 30000"
    assert classify(status=429, message=said) == "transient"


@pytest.mark.parametrize(
    ("message", "param", "expected"),
    [
        ("The response resp_1 has expired", None, "stale_state"),
        ("Extra inputs are not permitted", "previous_response_id", "stale_state"),
        ("temperature must be at most 2", "temperature", "terminal"),
    ],
)
def test_an_unclear_refusal_of_a_request_with_state_is_about_the_state(
    message: str, param: str | None, expected: str
) -> None:
    body = json.dumps(openai(message, param=param)).encode()
    assert failure_of(400, {}, body, names_state=True).failure_class == expected


@pytest.mark.parametrize("status", [400, 422])
def test_a_rejected_request_is_not_retried_whatever_its_type_claims(status: int) -> None:
    body = b'{"error": {"message": "bad request", "type": "server_error"}}'
    assert failure_of(status, {}, body).failure_class == "terminal"


def test_an_unclear_refusal_without_state_is_terminal() -> None:
    body = json.dumps(openai("The response resp_1 has expired", param=None)).encode()
    assert failure_of(400, {}, body).failure_class == "terminal"


@pytest.mark.parametrize(
    "message",
    [
        "context deadline exceeded",
        "rpc error: deadline exceeded: context canceled",
        "request timed out: exceeded the limit while waiting for context",
    ],
)
def test_a_timeout_is_no_overflow(message: str) -> None:
    assert classify(status=500, message=message) == "transient"


def test_a_long_error_is_searched_at_its_beginning_and_its_end_only() -> None:
    middle, end = (f"{'y' * 100_000}{text}" for text in (" no image input! ", "no image input!"))
    for message, expected in (
        (f"{middle}{'y' * 100_000}", ("terminal", "transient")),
        (f"{middle}{end}", ("poison", "poison")),
    ):
        body = json.dumps(openai(message)).encode()
        failures = failure_of(400, {}, body), failure_in_stream({"message": message})
        assert tuple(failure.failure_class for failure in failures) == expected
        assert all(len(failure.message) < 5000 for failure in failures)
    long = json.dumps(openai("no", code="c" * 100_000, param="p" * 100_000)).encode()
    failure = failure_of(400, {}, long)
    assert max(len(failure.provider_code or ""), len(failure.param or "")) < 10_000
