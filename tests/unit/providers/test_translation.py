"""Requests and answers translated into the other API: golden pairs, both ways."""

from typing import Any

import msgspec
import pytest

from holdfast.core.errors import ProviderFailure, UnsupportedByUpstream
from holdfast.ports.provider import Answer
from holdfast.providers.items.ids import IdAllocator
from holdfast.providers.openai_chat.input import (
    MISSING_TURN,
    ChatForm,
    ChatInputWriter,
    TranslationCache,
)
from holdfast.providers.openai_chat.messages import UNSUPPORTED_PART
from holdfast.providers.openai_chat.output import ChatOutput, DuplicateChunkFilter
from holdfast.providers.openai_chat.params import to_chat_params
from holdfast.providers.openai_responses.params import to_responses_params
from tests.unit.providers.chat_upstream import check

Json = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def raw(fields: Json) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


PAIRS: list[tuple[Json, Json]] = [
    ({"max_output_tokens": 9}, {"max_tokens": 9}),
    ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
    ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA,
                             "strict": True}}},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
    ),
    (
        {"text": {"format": {"type": "json_object"}}},
        {"response_format": {"type": "json_object"}},
    ),
    (
        {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}],
         "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": False},
        {"tools": [{"type": "function",
                    "function": {"name": "f", "parameters": SCHEMA, "strict": True}}],
         "tool_choice": {"type": "function", "function": {"name": "f"}},
         "parallel_tool_calls": False},
    ),
    (
        {"tools": [{"type": "custom", "name": "c",
                    "format": {"type": "grammar", "syntax": "lark", "definition": "d"}}],
         "tool_choice": "required"},
        {"tools": [{"type": "custom", "custom": {"name": "c", "format": {
            "type": "grammar", "grammar": {"syntax": "lark", "definition": "d"}}}}],
         "tool_choice": "required"},
    ),
    (
        {"tools": [{"type": "custom", "name": "c"}],
         "tool_choice": {"type": "allowed_tools", "mode": "auto",
                         "tools": [{"type": "custom", "name": "c"}]}},
        {"tools": [{"type": "custom", "custom": {"name": "c"}}],
         "tool_choice": {"type": "allowed_tools", "allowed_tools": {
             "mode": "auto", "tools": [{"type": "custom", "custom": {"name": "c"}}]}}},
    ),
    ({"temperature": 0.5, "top_p": 0.9, "user": "u", "service_tier": "flex"},
     {"temperature": 0.5, "top_p": 0.9, "user": "u", "service_tier": "flex"}),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 2},
     {"logprobs": True, "top_logprobs": 2}),
    ({"vendor_word": {"x": 1}}, {"vendor_word": {"x": 1}}),
]  # fmt: skip


@pytest.mark.parametrize(("responses", "chat"), PAIRS)
def test_fields_have_the_same_meaning_in_both_apis(responses: Json, chat: Json) -> None:
    assert to_chat_params(raw(responses), "llama", "u").params == chat
    assert to_responses_params(raw(chat), "u") == responses


def test_newer_models_get_max_completion_tokens() -> None:
    params = to_chat_params(raw({"max_output_tokens": 9}), "openai/gpt-5.4", "u").params
    assert params == {"max_completion_tokens": 9}
    assert to_responses_params(raw({"max_completion_tokens": 9}), "u") == {"max_output_tokens": 9}


SILENT: Json = {
    "truncation": "disabled", "max_tool_calls": None, "prompt": None, "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"], "tool_choice": "auto", "parallel_tool_calls": True,
    "tools": [], "text": {"format": {"type": "text"}}, "stream_options": {},
    "reasoning": {"effort": None, "summary": "auto"}, "instructions": "x", "client_metadata": {},
}  # fmt: skip


def test_default_values_are_left_out() -> None:
    assert to_chat_params(raw(SILENT), "llama", "u").params == {}
    silent = {
        "n": 1, "stop": None, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0,
        "modalities": ["text"], "functions": [], "stream_options": {"include_usage": True},
        "seed": None, "logprobs": False,
    }  # fmt: skip
    assert to_responses_params(raw(silent), "u") == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
         "tool_choice"),
        ({"tools": [{"type": "custom", "name": "c"}], "tool_choice": {"type": "mcp"}},
         "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ],
)  # fmt: skip
def test_fields_without_a_chat_counterpart_are_refused_by_name(fields: Json, param: str) -> None:
    with pytest.raises(UnsupportedByUpstream) as caught:
        to_chat_params(raw(fields), "llama", "u")
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"stop": ["x"]}, "stop"),
        ({"seed": 1}, "seed"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"audio": {"voice": "v"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
    ],
)
def test_fields_without_a_responses_counterpart_are_refused_by_name(
    fields: Json, param: str
) -> None:
    with pytest.raises(UnsupportedByUpstream) as caught:
        to_responses_params(raw(fields), "u")
    assert caught.value.param == param


def messages(
    *items: Json, instructions: str | None = None, is_strict: bool = True, alternates: bool = False
) -> list[Json]:
    cache = ChatInputWriter(TranslationCache())
    history = [msgspec.json.encode(item) for item in items]
    if is_strict:
        check(cache.translations, history)
    form = ChatForm("u", alternates=alternates)
    written = cache.write(history, form, instructions=instructions)
    sent: list[Json] = msgspec.json.decode(b"[%b]" % b"".join(written.pieces))
    return sent


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], "id": "msg_1"}


def call(name: str, call_id: str) -> Json:
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": "{}"}


def output(call_id: str, said: Any) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def test_a_conversation_with_tools_as_messages() -> None:
    shown = messages(
        user("hi"), {"type": "reasoning", "summary": []}, assistant("let me see"),
        call("f", "callone01"), call("g", "calltwo02"),
        output("callone01", "1"), output("calltwo02", "2"),
        assistant("done"), user("thanks"),
        instructions="be kind",
    )  # fmt: skip
    calls = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for one, name in (("callone01", "f"), ("calltwo02", "g"))
    ]
    assert shown == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "let me see", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "callone01", "content": "1"},
        {"role": "tool", "tool_call_id": "calltwo02", "content": "2"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ]


def test_two_messages_of_one_speaker_become_one() -> None:
    picture = {"type": "input_image", "image_url": "http://x/y.png", "detail": "low"}
    shown = messages(user("a"), user("b"), {"role": "user", "content": [picture]})
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"}}
    text = {"type": "text", "text": "a\n\nb"}
    assert shown == [{"role": "user", "content": [text, image]}]


def test_parts_of_every_kind() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]
    [shown] = messages({"role": "user", "content": parts})
    assert shown["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "file", "file": {"filename": "a.pdf",
                                  "file_data": "data:application/pdf;base64,AA"}},
        parts[3],
    ]  # fmt: skip


def test_other_calls_become_functions_of_their_name() -> None:
    shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed",
             "action": {"command": ["ls"]}}  # fmt: skip
    result = {"type": "local_shell_call_output", "call_id": "c1", "output": "a b"}
    made, answered = messages(shell, result)
    function = made["tool_calls"][0]["function"]
    assert function == {"name": "local_shell", "arguments": '{"action":{"command":["ls"]}}'}
    assert answered["content"] == "a b"


def test_a_call_id_that_is_too_long_is_shortened_on_both_sides() -> None:
    long = "call_" + "x" * 60
    made, answered = messages(call("f", long), output(long, "1"))
    assert made["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert len(answered["tool_call_id"]) <= 40


def test_a_reference_is_resolved_from_the_history() -> None:
    shown = messages(
        user("a"), assistant("b"), user("c"), {"type": "item_reference", "id": "msg_1"}
    )
    assert shown[-1] == {"role": "assistant", "content": "b"}
    assert messages(user("a"), {"type": "item_reference", "id": "msg_9"}) == messages(user("a"))


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "hologram"}, "input[0].type"),
        ({"role": "critic", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
         "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_file", "file_url": "u"}]},
         "input[0].content[0]"),
    ],
)  # fmt: skip
def test_items_that_chat_has_no_form_for_are_refused_by_name(item: Json, param: str) -> None:
    with pytest.raises(UnsupportedByUpstream) as caught:
        messages(item)
    assert caught.value.param == param


# ── answers ─────────────────────────────────────────────────────────────────────────────────


class Counted:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.count}"


def heard(*chunks: Json) -> tuple[list[str], Answer]:
    """Return the types of the events of chunks, and the answer."""
    output = ChatOutput(IdAllocator(Counted()))
    events = [event for chunk in chunks for event in output.read(chunk)]
    last, answer = output.end()
    return [event.type.removeprefix("response.") for event in (*events, *last)], answer


def chunk(delta: Json, finish: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def items_of(answer: Answer) -> list[Json]:
    return [msgspec.json.decode(body) for body in answer.items]


def test_text_becomes_a_whole_sequence_of_events() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
             "prompt_tokens_details": {"cached_tokens": 1}}  # fmt: skip
    kinds, answer = heard(
        chunk({"role": "assistant", "content": ""}), chunk({"content": "a"}),
        chunk({"content": "b"}), chunk({}, "stop"), {"choices": [], "usage": usage},
    )  # fmt: skip
    assert kinds == [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
    ]  # fmt: skip
    [item] = items_of(answer)
    assert item["content"][0]["text"] == "ab"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.cached_tokens) == (3, 1)


def test_interleaved_calls_stay_apart() -> None:
    def part(index: int, text: str, **more: Any) -> Json:
        return {"index": index, "function": {"arguments": text, **more}, "id": "call_1"}

    kinds, answer = heard(
        chunk({"tool_calls": [part(0, "", name="f")]}), chunk({"tool_calls": [part(0, '{"a"')]}),
        chunk({"tool_calls": [part(1, "{", name="g")]}), chunk({"tool_calls": [part(0, ":1}")]}),
        chunk({"tool_calls": [part(1, "}")]}), chunk({}, "tool_calls"),
    )  # fmt: skip
    one_call = [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    assert kinds == one_call * 2
    first, second = items_of(answer)
    assert (first["name"], first["arguments"]) == ("f", '{"a":1}')
    assert (second["name"], second["arguments"]) == ("g", "{}")
    assert first["call_id"] != second["call_id"]


def test_reasoning_and_refusals_are_items_of_their_own() -> None:
    kinds, answer = heard(
        chunk({"reasoning_content": "hm"}), chunk({"refusal": "no"}), chunk({}, "stop")
    )
    assert kinds[:3] == ["output_item.added", "content_part.added", "reasoning_text.delta"]
    thought, refused = items_of(answer)
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert refused["content"] == [{"type": "refusal", "refusal": "no"}]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter"), ("stop", None),
     ("content_filter: PROHIBITED_CONTENT", "content_filter"), ("MAX_TOKENS", "max_output_tokens"),
     ("tool_calls", None), ("eos", None)],
)  # fmt: skip
def test_why_a_completion_stopped(finish: str, reason: str | None) -> None:
    _, answer = heard(chunk({"content": "a"}), chunk({}, finish))
    assert answer.incomplete_reason == reason
    assert answer.status == ("incomplete" if reason else "completed")


@pytest.mark.parametrize("finish", [None, "error"])
def test_an_answer_without_an_end_is_a_failure(finish: str | None) -> None:
    with pytest.raises(ProviderFailure):
        heard(chunk({"content": "a"}), chunk({}, finish))


def test_an_error_among_the_chunks_is_a_failure() -> None:
    with pytest.raises(ProviderFailure, match="overloaded"):
        heard(chunk({"content": "a"}), {"error": {"message": "overloaded", "code": 502}})


def test_an_empty_answer_is_an_empty_message() -> None:
    _, answer = heard(chunk({"role": "assistant"}), chunk({}, "stop"))
    [item] = items_of(answer)
    assert item["content"][0]["text"] == ""


def test_only_a_repeated_first_chunk_marks_a_duplicating_server() -> None:
    def kept(*chunks: bytes) -> list[bytes]:
        doubling = DuplicateChunkFilter()
        return [chunk for chunk in chunks if not doubling.is_copy(chunk)]

    assert kept(b"r", b"r", b"ha", b"ha", b"ha", b"ha", b"end") == [b"r", b"ha", b"ha", b"end"]
    assert kept(b"r", b"ha", b"ha", b"end") == [b"r", b"ha", b"ha", b"end"]
    assert kept(b"r", b"r", b"x", b"ha", b"ha") == [b"r", b"x", b"ha", b"ha"]


def test_unsupported_content_is_refused_when_new_and_left_out_when_old() -> None:
    odd = {"type": "mcp_surprise", "data": 1}
    picture = {"type": "input_image", "file_id": "file-1"}
    seen = {"type": "message", "role": "user", "content": [picture]}
    for item in (odd, seen):
        with pytest.raises(UnsupportedByUpstream):
            messages(item)
    assert messages(odd, seen, is_strict=False) == [{"role": "user", "content": UNSUPPORTED_PART}]


def test_empty_texts_and_empty_messages_are_not_sent() -> None:
    nothing = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ""}]}
    system = {"type": "message", "role": "system", "content": ""}
    assert messages(user("a"), assistant(""), nothing, system) == messages(user("a"))


def test_roles_alternate_where_a_server_requires_it() -> None:
    system = {"type": "message", "role": "system", "content": "be kind"}
    shown = messages(
        assistant("hello"), user("a"), system, call("f", "c"), output("c", "1"), user("b"),
        instructions="first", alternates=True,
    )  # fmt: skip
    assert [(message["role"], message["content"]) for message in shown] == [
        ("system", "first"),
        ("user", MISSING_TURN),
        ("assistant", "hello"),
        ("user", "a\n\nbe kind"),
        ("assistant", None),
        ("tool", "1"),
        ("assistant", MISSING_TURN),
        ("user", "b"),
    ]
