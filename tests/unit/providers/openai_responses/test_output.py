"""Answers of Responses servers: unique ids, marked encrypted content, unchanged bytes otherwise."""

from typing import Any

import msgspec
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.model.items import read_item
from holdfast.core.model.session import Usage
from holdfast.core.openai.chat import plain_text
from holdfast.ports.provider import Answer, ModelEvent
from holdfast.providers.items.ids import IdAllocator
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.openai_responses.output import ResponsesOutput, whole_events
from holdfast.providers.openai_responses.whole_response import MAX_OUTPUT_ITEMS

Json = dict[str, Any]
MAKER = SealOwner("p", "a", "m")
LONG = "0123456789abcdef"


def an_output(*taken: str) -> ResponsesOutput:
    count = iter(range(70, 100))
    return ResponsesOutput(
        IdAllocator(lambda prefix: f"{prefix}_{next(count)}", lambda call_id: call_id in taken),
        MAKER,
    )


def whole(*items: Json, **more: Any) -> bytes:
    value = {"id": "resp_1", "status": "completed", "output": list(items), **more}
    return msgspec.json.encode(value)


def answered(*items: Json, taken: tuple[str, ...] = ()) -> list[Json]:
    answer = an_output(*taken).whole(whole(*items)).answer
    return [msgspec.json.decode(body) for body in answer.items]


def a_call(call_id: str, **more: Any) -> Json:
    return {"id": f"fc_{LONG}", "type": "function_call", "call_id": call_id, "name": "f",
            "arguments": "{}", **more}  # fmt: skip


def test_items_with_unique_ids_keep_their_bytes() -> None:
    part = b'{"type":"output_text", "text":"a", "annotations": []}'
    said = b'"role":"assistant", "status":"completed", "content":[ %s ]' % part
    body = b'{ "type":"message", "id":"msg_%s", %s, "x":"\\u00e9" }' % (LONG.encode(), said)
    answer = an_output().whole(b'{"status":"completed","output":[%s]}' % body).answer
    assert answer.items == [body]


def a_text(text: str = "Sunny.", **more: Any) -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], **more.pop("part", {})}
    return {"id": f"msg_{LONG}", "type": "message", "role": "assistant", "status": "completed",
            "content": [part], **more}  # fmt: skip


@pytest.mark.parametrize(
    "item",
    [
        a_text(),
        a_text(""),
        a_text("\u00fcml\u00e4ut \u2603"),
        a_text(" a\r\nb \0 e\u0301 "),
        a_text(part={"logprobs": [], "annotations": [{"type": "url_citation"}]}),
        a_text(status="incomplete", phase="final", name=7),
    ],
)
def test_one_text_is_read_once_and_exactly_as_the_log_reads_it(item: Json) -> None:
    answer = an_output().whole(whole(item)).answer
    assert answer.plain is not None
    assert answer.items[0] is answer.plain.item.body
    assert [answer.plain.item] == [read_item(body) for body in answer.items]
    assert answer.plain.text == plain_text(answer.items)


@pytest.mark.parametrize(
    "item",
    [
        a_text(id="1"),
        a_text(id=f"msg_{LONG}\0"),
        a_text(role="user"),
        a_text(part={"logprobs": [{"token": "a"}]}),
        a_text(part={"type": "refusal", "refusal": "No."}),
        a_text(content=[]),
        a_text(content=[a_text()["content"][0]] * 2),
        a_text(encrypted_content="x"),
        a_call(f"call_{LONG}"),
    ],
)
def test_any_other_item_is_left_to_the_general_reader(item: Json) -> None:
    assert an_output().whole(whole(item)).answer.plain is None


def test_several_items_are_left_to_the_general_reader() -> None:
    answer = an_output().whole(whole(a_text(), a_text(id=f"other_{LONG}"))).answer
    assert answer.plain is None
    assert len(answer.items) == 2


def test_short_ids_are_replaced() -> None:
    first, second = answered(a_call("call_1", id="1"), a_call("call_1", id="2"))
    assert first["id"] != second["id"]
    assert first["call_id"] != second["call_id"]
    assert not {first["call_id"], second["call_id"]} & {"call_1"}


def test_a_call_id_of_the_session_is_not_used_twice() -> None:
    [call] = answered(a_call(f"call_{LONG}"), taken=(f"call_{LONG}",))
    assert call["call_id"] == "call_70"


@pytest.mark.parametrize("call_id", ["call_1", f"call_{LONG}"])
def test_the_output_of_a_hosted_call_keeps_its_pair(call_id: str) -> None:
    output = {"id": f"sho_{LONG}", "type": "shell_call_output", "call_id": call_id}
    call, answer = answered(a_call(call_id, type="shell_call"), output)
    assert call["call_id"] == answer["call_id"]


def test_encrypted_content_is_marked_in_events_and_in_the_answer() -> None:
    item = {"id": f"rs_{LONG}", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
    output = an_output()
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    [event] = output.read("", msgspec.json.encode(done))
    assert isinstance(event, ModelEvent)
    assert event.data["item"]["encrypted_content"] == MAKER.mark("gAAA")
    end = {"type": "response.completed", "response": msgspec.json.decode(whole(item))}
    assert output.read("", msgspec.json.encode(end)) == []
    assert output.finished is not None
    [kept] = output.finished.answer.items
    assert msgspec.json.decode(kept)["encrypted_content"] == MAKER.mark("gAAA")


def test_a_terminal_event_without_items_keeps_the_streamed_items() -> None:
    output = an_output()
    done = {"type": "response.output_item.done", "output_index": 0, "item": a_call("call_1")}
    output.read("", msgspec.json.encode(done))
    end = b'{"type":"response.completed","response":{"id":"resp_1"}}'
    output.read("response.completed", end)
    assert output.finished is not None
    answer: Answer = output.finished.answer
    assert len(answer.items) == 1


def heard(output: ResponsesOutput, *events: Json) -> list[str]:
    """Read events and an end without items; return the types of the resulting events."""
    end = {"type": "response.completed", "response": {"id": "resp_1", "output": []}}
    told = [one for event in (*events, end) for one in output.read("", msgspec.json.encode(event))]
    return [one.type.removeprefix("response.") for one in told]


def an_event(kind: str, **more: Any) -> Json:
    return {"type": f"response.{kind}", "output_index": 0, "item_id": f"x_{LONG}", **more}


def added(**item: Any) -> Json:
    return an_event("output_item.added", item={"id": f"x_{LONG}", **item})


@pytest.mark.parametrize(
    ("events", "item"),
    [
        (
            [
                added(type="message", role="assistant", status="in_progress", content=[]),
                an_event("output_text.delta", content_index=0, delta="good "),
                an_event("output_text.delta", content_index=0, delta="day"),
            ],
            {"type": "message", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "good day", "annotations": [],
                          "logprobs": []}]},
        ),
        (
            [
                an_event("output_text.delta", delta="goo"),
                an_event("output_text.done", text="good day"),
                an_event("refusal.delta", content_index=1, delta="but no"),
            ],
            {"type": "message", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "good day", "annotations": [],
                          "logprobs": []}, {"type": "refusal", "refusal": "but no"}]},
        ),
        (
            [
                added(type="reasoning", summary=[], encrypted_content="not the last"),
                an_event("reasoning_summary_text.delta", summary_index=0, delta="first"),
                an_event("reasoning_summary_text.delta", summary_index=1, delta="sec"),
                an_event("reasoning_summary_text.delta", summary_index=1, delta="ond"),
                an_event("reasoning_text.delta", content_index=0, delta="hm"),
            ],
            {"type": "reasoning",
             "summary": [{"type": "summary_text", "text": "first"},
                         {"type": "summary_text", "text": "second"}],
             "content": [{"type": "reasoning_text", "text": "hm"}]},
        ),
        (
            [
                added(type="function_call", call_id=f"call_{LONG}", name="look", arguments=""),
                an_event("function_call_arguments.delta", delta='{"a"'),
                an_event("function_call_arguments.delta", delta=": 1}"),
            ],
            {"type": "function_call", "status": "completed", "call_id": f"call_{LONG}",
             "name": "look", "arguments": '{"a": 1}'},
        ),
        (
            [an_event("custom_tool_call_input.done", input="all of it", name="sed")],
            {"type": "custom_tool_call", "status": "completed", "call_id": "call_70",
             "name": "sed", "input": "all of it"},
        ),
    ],
    ids=["text", "refusal", "reasoning", "call", "custom-call"],
)  # fmt: skip
def test_unfinished_items_are_rebuilt_from_their_events(events: list[Json], item: Json) -> None:
    output = an_output()
    kinds = heard(output, *events)
    assert output.finished is not None
    assert [msgspec.json.decode(one) for one in output.finished.answer.items] == [
        {"id": f"x_{LONG}", **item}
    ]
    assert kinds[-1] == "output_item.done"
    assert len(kinds) == len(events) + 1


def test_items_without_content_or_name_are_dropped() -> None:
    output = an_output()
    heard(
        output,
        added(type="message", role="assistant", content=[]),
        an_event("function_call_arguments.delta", output_index=1, item_id="y", delta="{}"),
    )
    assert output.finished is not None
    assert output.finished.answer.items == []


def test_items_without_events_get_them_at_the_end() -> None:
    output = an_output()
    part = {"type": "output_text", "text": "good day", "annotations": []}
    said = {"id": f"msg_{LONG}", "type": "message", "role": "assistant", "content": [part]}
    end = {"type": "response.completed", "response": {"id": "resp_1", "output": [said]}}
    told = output.read("", msgspec.json.encode(end))
    [delta] = [one for one in told if one.type.endswith(".delta")]
    assert isinstance(delta, ModelEvent)
    assert delta.data["delta"] == "good day"
    assert told[-1].type == "response.output_item.done"


@pytest.mark.parametrize(
    ("status", "code"),
    [("queued", "upstream_unfinished"), ("in_progress", "upstream_unfinished"),
     ("cancelled", "upstream_cancelled"), ("failed", "server_error")],
)  # fmt: skip
def test_an_incomplete_response_status_is_a_failure(status: str, code: str) -> None:
    error = {"code": "server_error", "message": "x"} if status == "failed" else None
    with pytest.raises(ProviderFailure) as caught:
        an_output().whole(whole(status=status, error=error))
    assert caught.value.provider_code == code


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"{", b'{"output": 5}'])
def test_an_invalid_response_is_a_failure(data: bytes) -> None:
    with pytest.raises(ProviderFailure):
        an_output().whole(data)


def test_a_repeated_event_is_dropped() -> None:
    output = an_output()

    def heard(number: int | None) -> int:
        value = {"type": "response.output_text.delta", "delta": "ha", "sequence_number": number}
        return len(output.read("", msgspec.json.encode(value)))

    assert [heard(n) for n in (1, 2, 2, 3)] == [1, 1, 0, 1]
    assert [heard(None) for _ in range(2)] == [1, 1]


def test_events_without_numbers_are_never_dropped() -> None:
    output = an_output()
    value = b'{"type":"response.output_text.delta","delta":"ha","sequence_number":0}'
    assert [len(output.read("", value)) for _ in range(3)] == [1, 1, 1]


def test_an_item_without_a_type_is_a_failure() -> None:
    with pytest.raises(ProviderFailure) as caught:
        answered({"foo": 1})
    assert caught.value.provider_code == "upstream_broken_answer"


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
@pytest.mark.parametrize("given", [{}, {"call_id": None}, {"call_id": ""}])
def test_a_call_without_an_id_gets_one(kind: str, given: Json) -> None:
    call = {"id": f"fc_{LONG}", "type": kind, "name": "f", "arguments": "{}", **given}
    [own] = answered(call)
    assert own["call_id"].startswith("call_")


def test_a_whole_answer_gives_all_events() -> None:
    said = {"type": "output_text", "text": "hello", "annotations": []}
    message = {"id": f"msg_{LONG}", "type": "message", "role": "assistant", "content": [said]}
    events = whole_events([msgspec.json.encode(message)])
    assert [event.type.removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert events[2].data["delta"] == "hello"


FULL = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 12,
}
NO_WRITES = {"cached_tokens": 3, "cache_write_tokens": 0}


@pytest.mark.parametrize(
    ("told", "kept", "counted"),
    [
        (FULL, {**FULL, "input_tokens_details": NO_WRITES}, Usage(7, 3, 5, 2)),
        (
            {**FULL, "cost": 0.25},
            {**FULL, "cost": 0.25, "input_tokens_details": NO_WRITES},
            Usage(7, 3, 5, 2),
        ),
        (
            {**FULL, "input_tokens_details": None, "output_tokens": "five"},
            {
                **FULL,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": 0,
            },
            Usage(7, 0, 0, 2),
        ),
        (None, None, None),
        ({}, None, Usage()),
    ],
    ids=["in full", "with more", "with less", "none", "empty"],
)
def test_usage_is_kept_and_its_missing_details_are_zero(
    told: Any, kept: Any, counted: Usage | None
) -> None:
    answer = an_output().whole(whole(usage=told)).answer
    assert answer.usage == counted
    assert (answer.usage_detail and msgspec.json.decode(answer.usage_detail)) == kept


def test_an_answer_of_too_many_items_is_refused() -> None:
    items = [{"type": "message", "role": "assistant", "content": []}] * (MAX_OUTPUT_ITEMS + 1)
    with pytest.raises(ProviderFailure) as failed:
        an_output().whole(whole(*items))
    assert failed.value.provider_code == "upstream_answer_too_long"
