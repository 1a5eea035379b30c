"""Which failures may be about the input: codes and statuses decide, words never do."""

import json
from typing import Any

import pytest

from holdfast.providers.cli_agents.failures import agent_failure
from holdfast.providers.errors import failure_in_stream, failure_of

Json = dict[str, Any]


def openai(message: str, **more: Any) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None,
                      "code": None, **more}}  # fmt: skip


REFUSED: dict[str, tuple[int, Any]] = {
    "openai": (
        400,
        openai(
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
            code="invalid_prompt",
        ),
    ),
    "openai without a code": (
        400,
        openai("Your request was rejected as a result of our safety system."),
    ),
    "azure": (
        400,
        openai(
            "The response was filtered due to the prompt triggering Azure OpenAI's content "
            "management policy. Please modify your prompt and retry.",
            code="content_filter",
            param="prompt",
        ),
    ),
    "azure nested": (
        400,
        openai("Bad request.", code="400", innererror={"code": "ResponsibleAIPolicyViolation"}),
    ),
    "anthropic": (
        400,
        {"type": "error", "error": {"type": "invalid_request_error",
                                    "message": "Output blocked by content filtering policy"}},
    ),
    "gemini": (
        400,
        [{"error": {"code": 400, "status": "INVALID_ARGUMENT",
                    "message": "Prompt was blocked: PROHIBITED_CONTENT"}}],
    ),
    "mistral": (
        403,
        {"object": "error", "message": "Request blocked by the input guardrail: violence",
         "type": "guardrail", "code": "guardrail_violation"},
    ),
    "qwen": (
        400,
        openai("Input data may contain inappropriate content.", code="data_inspection_failed"),
    ),
    "vllm": (
        400,
        {"object": "error", "message": "The decoder prompt cannot be empty",
         "type": "BadRequestError", "param": None, "code": 400},
    ),
    "openai, limited": (
        403,
        openai("Invalid prompt: we've limited access to this content for safety reasons."),
    ),
    "openai, moderation": (
        403,
        openai("Your request was rejected by the safety system. safety_violations=[violence]."),
    ),
    "azure api management": (
        403,
        {"statusCode": 403, "message": "Request failed content safety check."},
    ),
    "anthropic, usage policy": (
        403,
        {"type": "error", "error": {"type": "permission_error",
                                    "message": "This appears to violate our Usage Policy."}},
    ),
    "gemini, practices": (
        403,
        [{"error": {"code": 403, "status": "PERMISSION_DENIED",
                    "message": "This prompt contains sensitive words that violate Google's "
                               "Responsible AI practices."}}],
    ),
    "gemini, model armor": (
        403,
        [{"error": {"code": 403, "message": "Blocked by Model Armor Floor Setting: the prompt "
                                            "violated Responsible AI Safety settings."}}],
    ),
    "mistral, moderation": (
        403,
        {"object": "error", "message": "Input rejected by moderation: violence_and_threats",
         "type": "invalid_request_error", "code": "1800"},
    ),
    "mistral, legal": (
        451,
        {"object": "error", "message": "The content was flagged by the moderation service."},
    ),
    "vllm behind a guardrail": (
        403,
        {"object": "error", "message": "Guardrail violation: prompt injection detected",
         "type": "PermissionDeniedError", "code": 403},
    ),
    "openrouter": (
        403,
        {"error": {"code": 403, "message": "x/y requires moderation on Z. Your input was flagged "
                                           'for "harassment". No credits were charged.',
                   "metadata": {"reasons": ["harassment"], "flagged_input": "..."}}},
    ),
    "openrouter, by its metadata": (
        403,
        {"error": {"code": 403, "message": "Forbidden",
                   "metadata": {"reasons": ["harassment"], "flagged_input": "..."}}},
    ),
    "xai": (
        403,
        {"code": "The caller does not have permission to execute the specified operation",
         "error": "Content violates usage guidelines. Team: t, API key ID: k, Model: grok-4, "
                  "Failed check: SAFETY_CHECK_TYPE_BIO"},
    ),
    "a 451 with a code": (451, {"error": {"message": "blocked", "code": "censorship_blocked"}}),
    "no place": (422, openai("The input could not be processed.")),
    "too large": (413, openai("Payload Too Large")),
    "too long": (400, openai("This model's maximum context length is 8192 tokens.",
                             code="context_length_exceeded", param="messages")),
}  # fmt: skip


KNOWN_CODES = {
    "invalid_prompt", "content_filter", "ResponsibleAIPolicyViolation", "guardrail_violation",
    "data_inspection_failed", "censorship_blocked", "context_length_exceeded",
}  # fmt: skip


def status_body_code(body: Any) -> str | None:
    """Return the most precise code of an error."""
    error = body[0] if isinstance(body, list) else body
    error = error["error"] if isinstance(error.get("error"), dict) else error
    code: str | None = (error.get("innererror") or error).get("code")
    return code


@pytest.mark.parametrize(("status", "body"), REFUSED.values(), ids=REFUSED)
def test_a_refused_prompt_is_recognised(status: int, body: Any) -> None:
    failure = failure_of(status, {}, json.dumps(body).encode())
    assert failure.may_refuse_input
    assert failure.failure_class in ("terminal", "overflow")
    assert failure.status in (400, 413, 422)
    has_code = status_body_code(body) in KNOWN_CODES or "metadata" in json.dumps(body)
    assert failure.refuses_content is has_code


VISIBLE: dict[str, tuple[int, Any]] = {
    "key": (401, openai("Incorrect API key provided: sk-1.", code="invalid_api_key")),
    "key as 400": (400, openai("API key not valid. Please pass a valid API key.")),
    "model": (404, openai("The model `x` does not exist.", code="model_not_found")),
    "model as 400": (400, openai("The model `x` does not exist.", code="model_not_found")),
    "parameter": (
        400,
        openai("Unsupported value: 'temperature' does not support 0.1.", param="temperature"),
    ),
    "parameter by text": (400, openai("Unrecognized request argument supplied: foo")),
    "tools": (400, openai("Invalid schema for function 'f'.", param="tools[0].function")),
    "output limit": (400, openai("max_tokens is too large: 999999.")),
    "one item": (400, openai("Invalid 'input[3].content'.", param="input[3].content")),
    "one image": (400, openai("You uploaded an unsupported image.", code="invalid_image")),
    "an image's policy": (
        400,
        openai("The image was rejected by our safety system.",
               code="image_content_policy_violation"),
    ),
    "state": (
        400,
        openai("Previous response with id 'r' not found.", code="previous_response_not_found"),
    ),
    "rate limit": (429, openai("Rate limit reached.", code="rate_limit_exceeded")),
    "quota": (429, openai("You exceeded your current quota.", code="insufficient_quota")),
    "server": (500, openai("The server had an error.")),
    "firewall": (403, openai("Your request was blocked.")),
    "permission": (403, openai("You do not have permission to use this model.")),
    "key as 403": (403, openai("Your API key was blocked.", code="invalid_api_key")),
    "scopes": (403, openai("Missing scopes: model.request. Check your content access policy.")),
    "network policy": (403, openai("Request blocked by the network policy of your organization.")),
    "conditional access": (403, openai("Access was blocked by Conditional Access policies.")),
    "account": (
        403,
        openai("Your account was suspended because it violated our usage policies."),
    ),
    "access": (
        403,
        openai("Your access was terminated due to violation of our policies."),
    ),
    "country": (
        403,
        openai("Country, region, or territory not supported.",
               code="unsupported_country_region_territory"),
    ),
    "content permission": (403, openai("The caller does not have permission to view content.")),
    "legal": (451, openai("Unavailable For Legal Reasons")),
    "blocked by a rate limit": (429, openai("Request blocked: too many requests.")),
    "blocked by a failure": (503, openai("The request was blocked by an internal policy error.")),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body"), VISIBLE.values(), ids=VISIBLE)
def test_other_failures_leave_the_input_visible(status: int, body: Any) -> None:
    failure = failure_of(status, {}, json.dumps(body).encode())
    assert not failure.refuses_content
    assert failure.may_refuse_input is (status == 400)
    assert failure.may_fail_on_input is (status == 500)


@pytest.mark.parametrize(
    "error",
    [
        {"code": "invalid_prompt", "message": "Invalid prompt."},
        {"code": "content_filter", "message": "filtered"},
        {"type": "invalid_request_error",
         "message": "Output blocked by content filtering policy"},
    ],
)  # fmt: skip
def test_a_refusal_inside_a_stream_is_recognised_and_not_retried(error: Json) -> None:
    failure = failure_in_stream(error)
    assert failure.may_refuse_input
    assert failure.refuses_content is ("code" in error)
    assert failure.failure_class == "terminal"
    assert failure.status == 400


def test_a_broken_stream_leaves_the_input_visible() -> None:
    failure = failure_in_stream({"code": "server_error", "message": "The server had an error."})
    assert not failure.refuses_content
    assert not failure.may_refuse_input
    assert failure.may_fail_on_input


@pytest.mark.parametrize("status", [None, 400, 403])
def test_a_refusal_that_an_agent_reports_is_recognised(status: int | None) -> None:
    text = "API Error: unable to respond to this request, which appears to violate our Usage Policy"
    failure = agent_failure(text, status)
    assert failure.may_refuse_input
    assert failure.failure_class == "terminal"


def test_an_agent_without_a_login_leaves_the_input_visible() -> None:
    assert not agent_failure("You do not have access to this model.", 403).may_refuse_input
