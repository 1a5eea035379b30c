"""The catalogue of errors that real providers send: status, code, text and source.

Each text exists once, here; validators raise it and rules inject it. Placeholders in braces are
filled from the call. `source` names the public report of the error.
"""

from dataclasses import dataclass
from typing import Literal

Shape = Literal["openai", "anthropic", "gemini", "letta", "behaviour"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One error of the catalogue."""

    id: str
    provider: str
    when: str
    source: str
    status: int
    shape: Shape
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


def _responses(
    number: str, when: str, source: str, message: str, *, status: int = 400, **rest: str | None
) -> CatalogueEntry:
    return CatalogueEntry(
        id=number,
        provider="openai-responses",
        when=when,
        source=source,
        status=status,
        shape="openai",
        message=message,
        param=rest.get("param", "input"),
        code=rest.get("code"),
    )


def _behaviour(number: str, provider: str, when: str, source: str, message: str) -> CatalogueEntry:
    return CatalogueEntry(
        id=number,
        provider=provider,
        when=when,
        source=source,
        status=200,
        shape="behaviour",
        message=message,
    )


def _chat(number: str, when: str, source: str, message: str, **rest: str | None) -> CatalogueEntry:
    return CatalogueEntry(
        id=number,
        provider="openai-chat",
        when=when,
        source=source,
        status=429 if number in {"C04", "C05"} else 400,
        shape="openai",
        message=message,
        type=rest.get("type") or "invalid_request_error",
        param=rest.get("param"),
        code=rest.get("code"),
    )


def _anthropic(number: str, when: str, source: str, message: str, **rest: str) -> CatalogueEntry:
    return CatalogueEntry(
        id=number,
        provider="anthropic",
        when=when,
        source=source,
        status=529 if number == "A09" else 400,
        shape="anthropic",
        message=message,
        type=rest.get("type", "invalid_request_error"),
    )


OVERFLOW = (
    "Your input exceeds the context window of this model. Please adjust your input and try again."
)
SERVER_FAILURE = (
    "An error occurred while processing your request. You can retry your request, or contact us "
    "through our help center at help.openai.com if the error persists. Please include the request "
    "ID {request_id} in your message."
)

_LISTED = (
    _responses(
        "R01",
        "replayed item id that was not stored",
        "openclaw#12885, openclaw#88499",
        "Item with id '{id}' not found. Items are not persisted when `store` is set to false. "
        "Try again with `store` set to true, or remove this item from your input.",
        status=404,
    ),
    _responses(
        "R02",
        "previous_response_id unknown, expired or of another account",
        "maximhq/bifrost#2441, lmstudio-bug-tracker#1188",
        "Previous response with id '{id}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    ),
    _responses(
        "R03",
        "reasoning item without its successor",
        "continuedev/continue#8933",
        "Item '{id}' of type 'reasoning' was provided without its required following item.",
    ),
    _responses(
        "R04",
        "function call without its output",
        "vybestack/llxprt-code#61",
        "No tool output found for function call {id}.",
    ),
    _responses(
        "R05",
        "function call output without its call",
        "openai-agents-python#4827, earendil-works/pi#4570",
        "No tool call found for function call output with call_id {id}.",
    ),
    _responses(
        "R06",
        "duplicate item id",
        "OpenRouterTeam/ai-sdk-provider#254",
        "Duplicate item found with id {id}. Remove duplicate items from your input and try again.",
    ),
    _responses(
        "R07",
        "encrypted reasoning of another model, provider or account",
        "openai/codex#17541, smallmain/vscode-unify-chat-provider#178",
        "The encrypted content for item {id} could not be verified. Reason: Encrypted content "
        "could not be decrypted or parsed.",
        param=None,
        code="invalid_encrypted_content",
    ),
    _responses(
        "R08",
        "conversation in use (400, so SDKs do not retry it)",
        "paulgmiller/careme#379",
        "Another process is currently operating on this conversation. Please retry in a few "
        "seconds.",
        param="conversation",
        code="conversation_locked",
    ),
    _responses(
        "R09",
        "call_id or item id too long",
        "AnswerDotAI/fastllm#45",
        "Invalid '{field}': string too long. Expected a string with maximum length 64, but got a "
        "string with length {length} instead.",
        param="{field}",
        code="string_above_max_length",
    ),
    _responses(
        "R10",
        "context overflow, before output",
        "opencode#6071, dyad-sh/dyad#1672",
        OVERFLOW,
        code="context_length_exceeded",
    ),
    _behaviour(
        "R11",
        "openai-responses",
        "context overflow as a stream event after HTTP 200",
        "opencode#6071",
        OVERFLOW,
    ),
    _behaviour(
        "R12",
        "openai-responses",
        "server failure in mid-stream",
        "openai/codex#18952, openai/codex#37652",
        SERVER_FAILURE,
    ),
    _behaviour(
        "R13",
        "openai-responses",
        "stream closes without response.completed",
        "theimaginaryfoundation/what-iff#132",
        "end of stream or reset after k events",
    ),
    _behaviour(
        "R14",
        "openai-responses",
        "response.incomplete, cancelled, or queued for ever",
        "theimaginaryfoundation/what-iff#132",
        "a terminal event other than response.completed",
    ),
    _behaviour(
        "R15",
        "openai-responses",
        "previous_response_id accepted and ignored",
        "openclaw#37765, Blaizzy/mlx-vlm#1046",
        "a normal answer without memory",
    ),
    _behaviour(
        "R16",
        "openai-responses",
        "earlier assistant items of a conversation silently unlinked",
        "openai-agents-python#3123",
        "items.list returns [u, u, u, a]",
    ),
    _responses(
        "R17",
        "conversation unknown, expired or deleted",
        "Azure/azure-sdk-for-net#59964",
        "Conversation with id '{id}' not found.",
        status=404,
        param=None,
    ),
    _chat(
        "C01",
        "tool_calls without tool messages",
        "langchain#27216",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: {id}",
        param="messages.[{index}].role",
    ),
    _chat(
        "C02",
        "tool message without tool_calls",
        "AstrBot#7225, semantic-kernel#13608",
        "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        code="invalid_request_error",
    ),
    _chat(
        "C03",
        "tool call id too long",
        "vercel/ai#5171",
        "Invalid '{field}': string too long. Expected a string with maximum length 40, but got a "
        "string with length {length} instead.",
        param="{field}",
        code="string_above_max_length",
    ),
    _chat(
        "C04",
        "quota exhausted (429 that a retry does not help)",
        "alexrudall/ruby-openai#501",
        "You exceeded your current quota, please check your plan and billing details. For more "
        "information on this error, read the docs: "
        "https://platform.openai.com/docs/guides/error-codes/api-errors.",
        type="insufficient_quota",
        code="insufficient_quota",
    ),
    _chat(
        "C05",
        "rate limited (429 that a retry helps)",
        "no public report; wording from experience",
        "Rate limit reached for {model} in organization {organization} on tokens per min (TPM): "
        "Limit {limit}, Used {used}, Requested {requested}. Please try again in {seconds}s.",
        type="tokens",
        code="rate_limit_exceeded",
    ),
    _behaviour(
        "C06",
        "openai-chat",
        "stream ends without finish_reason and [DONE]",
        "CommandCodeAI/command-code#785",
        "clean end in the middle of tool call arguments",
    ),
    _chat(
        "C07",
        "context overflow (router)",
        "refly-ai/refly#1177",
        "This endpoint's maximum context length is {limit} tokens. However, you requested about "
        "{requested} tokens ({requested} of text input). Please reduce the length of either one, "
        'or use the "middle-out" transform to compress your prompt automatically.',
    ),
    _anthropic(
        "A01",
        "tool_use without tool_result",
        "claude-code#9346",
        "messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately "
        "after: {id}. Each `tool_use` block must have a corresponding `tool_result` block in the "
        "next message.",
    ),
    _anthropic(
        "A02",
        "tool_result without tool_use",
        "openclaw#7865, openclaw#13020",
        "messages.{index}.content.{part}: unexpected `tool_use_id` found in `tool_result` blocks: "
        "{id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous "
        "message.",
    ),
    _anthropic(
        "A03",
        "duplicate tool_use id",
        "claude-code#28515",
        "messages.{index}.content.{part}: `tool_use` ids must be unique",
    ),
    _anthropic(
        "A04",
        "foreign or missing signature of a thinking block",
        "openclaw#120596",
        "messages.{index}.content.{part}: Invalid `signature` in `thinking` block",
    ),
    _anthropic(
        "A05",
        "thinking block altered",
        "openclaw#107221",
        "messages.{index}.content.{part}: `thinking` or `redacted_thinking` blocks in the latest "
        "assistant message cannot be modified. These blocks must remain as they were in the "
        "original response.",
    ),
    _anthropic(
        "A06",
        "overflow",
        "boldsoftware/exe.dev#62",
        "prompt is too long: {used} tokens > {limit} maximum",
    ),
    _anthropic(
        "A07",
        "input and max_tokens overflow together",
        "claude-code#408",
        "input length and `max_tokens` exceed context limit: {used} + {requested} > {limit}, "
        "decrease input length or `max_tokens` and try again",
    ),
    _anthropic(
        "A08",
        "bad image",
        "claude-code#56016, claude-code#42399",
        "Could not process image",
    ),
    _anthropic(
        "A09",
        "overloaded, before output",
        "claude-code#35792",
        "Overloaded",
        type="overloaded_error",
    ),
    _behaviour(
        "A10",
        "anthropic",
        "overloaded, as an SSE error event after 200",
        "Doriandarko/claude-engineer#161",
        "Overloaded",
    ),
    CatalogueEntry(
        id="G01",
        provider="gemini",
        when="foreign thought signature",
        source="NoeFabris/opencode-antigravity-auth#368",
        status=400,
        shape="gemini",
        type="INVALID_ARGUMENT",
        message="Unable to submit request because Thought signature is not valid.. Learn more: "
        "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini",
    ),
    CatalogueEntry(
        id="G02",
        provider="gemini",
        when="quota with RetryInfo",
        source="RooCodeInc/Roo-Code#3883",
        status=429,
        shape="gemini",
        type="RESOURCE_EXHAUSTED",
        message="You exceeded your current quota, please check your plan and billing details. ...",
    ),
    CatalogueEntry(
        id="L01",
        provider="letta",
        when="conversation busy",
        source="letta-ai/lettabot#123",
        status=409,
        shape="letta",
        message="Cannot send a new message: Another request is currently being processed for this "
        "conversation.",
    ),
)

CATALOGUE = {listed.id: listed for listed in _LISTED}
