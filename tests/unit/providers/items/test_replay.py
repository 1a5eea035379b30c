"""Histories as input of a stateless Responses server, and the ids that we allocate."""

from typing import Any

import msgspec
import pytest

from holdfast.providers.items.ids import IdAllocator, call_id_of, fitting_call_id
from holdfast.providers.items.replay import Replay
from holdfast.providers.items.seal_owner import SealOwner, account_of

Json = dict[str, Any]
MAKER = SealOwner("openai", "acct", "gpt-5.4")


def shown(*items: Json, allows_opaque: bool = True) -> list[Json]:
    replay = Replay(owner=MAKER, is_opaque_allowed=allows_opaque)
    bodies = [msgspec.json.encode(item) for item in items]
    return [msgspec.json.decode(body) for body in replay.items(bodies)]


def said(text: str, **more: Any) -> Json:
    return {"type": "message", "role": "assistant", "content": text, **more}


def sealed(content: str = MAKER.mark("gAAA"), **more: Any) -> Json:
    return {"type": "reasoning", "summary": [], "encrypted_content": content, **more}


def test_ids_are_left_out_and_everything_else_is_kept() -> None:
    message = said("x", id="msg_1", status="completed", vendor={"a": [1]})
    [item] = shown(message)
    assert item == {k: v for k, v in message.items() if k != "id"}


def test_items_that_need_no_change_keep_their_bytes() -> None:
    body = b'{ "role": "user",  "content": "\\u00e9" }'
    [item] = Replay(owner=MAKER).items([body])
    assert bytes(item) == body


def test_items_that_are_only_understood_with_their_id_keep_it() -> None:
    call = {"type": "computer_call", "id": "cu_1", "call_id": "c", "action": {}}
    assert shown(call) == [call]


def test_encrypted_reasoning_goes_back_to_its_owner() -> None:
    [reasoning, _] = shown(sealed(id="rs_1"), said("x"))
    assert reasoning["encrypted_content"] == "gAAA"
    assert "id" not in reasoning


@pytest.mark.parametrize(
    "other",
    [
        SealOwner("azure", "acct", "gpt-5.4"),
        SealOwner("openai", "other", "gpt-5.4"),
        SealOwner("openai", "acct", "gpt-5.5"),
    ],
)
def test_encrypted_reasoning_goes_to_nobody_else(other: SealOwner) -> None:
    assert shown(sealed(other.mark("gAAA")), said("x")) == [said("x")]


def test_encrypted_content_of_unknown_owners_is_not_sent() -> None:
    assert shown(sealed("gAAA"), said("x")) == [said("x")]


def test_no_encrypted_content_is_sent_after_a_refusal() -> None:
    assert shown(sealed(), said("x"), allows_opaque=False) == [said("x")]


@pytest.mark.parametrize(
    "items",
    [
        [sealed(status="incomplete"), said("x")],
        [sealed(status="in_progress"), said("x")],
        [{"type": "reasoning", "id": "rs_1", "summary": []}, said("x")],
    ],
)
def test_unfinished_and_unencrypted_reasoning_is_not_sent(items: list[Json]) -> None:
    assert [item["type"] for item in shown(*items)] == ["message"]


def test_reasoning_without_its_result_is_not_sent() -> None:
    user = {"role": "user", "content": "y"}
    assert shown(sealed()) == []
    assert shown(sealed(), user) == [user]
    assert [i["type"] for i in shown(sealed(), said("x", status="incomplete"))] == ["message"]


def test_a_call_id_that_is_too_long_is_shortened_on_both_sides() -> None:
    long = "call_" + "x" * 80
    call, output = shown(
        {"type": "function_call", "call_id": long, "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": long, "output": "1"},
    )
    assert call["call_id"] == output["call_id"]
    assert len(call["call_id"]) <= 64


def test_references_are_resolved_from_the_history_or_left_out() -> None:
    again = shown(said("x", id="msg_1"), {"type": "item_reference", "id": "msg_1"})
    assert again == [said("x"), said("x")]
    assert shown({"type": "item_reference", "id": "msg_9"}) == []


def test_an_account_name_does_not_reveal_its_key() -> None:
    account = account_of("https://x/v1", "sk-secret")
    assert "secret" not in account
    assert account == account_of("https://x/v1/", "sk-secret")
    assert account != account_of("https://x/v1", "sk-other")
    assert account != account_of("https://y/v1", "sk-secret")


def new_names(*taken: str) -> IdAllocator:
    count = iter(range(70, 100))
    return IdAllocator(lambda prefix: f"{prefix}_{next(count)}", lambda call_id: call_id in taken)


def test_ids_that_look_unique_are_kept() -> None:
    names = new_names()
    assert names.item("message", "msg_0123456789abcdef", 0) == "msg_0123456789abcdef"
    assert names.call("call_0123456789abc", 0) == "call_0123456789abc"
    assert names.aliases() == {}


def test_counted_ids_are_replaced_the_same_each_time() -> None:
    names = new_names()
    assert names.item("message", "msg_1", 0) == names.item("", "msg_1", 0) == "msg_70"
    first, second = names.call("call_1", 0), names.call("call_1", 1)
    assert first != second
    assert names.call("call_1", 0) == first
    assert names.aliases() == {first: "call_1", second: "call_1"}


def test_a_call_id_that_the_session_has_is_replaced() -> None:
    names = new_names("call_0123456789abc")
    assert names.call("call_0123456789abc", 0) == "call_70"


def test_the_call_ids_of_a_history_are_found() -> None:
    items = [b'{"type":"function_call","call_id":"a"}', b'{"role":"user","content":"call_id"}']
    assert [call_id_of(body) for body in items] == ["a", None]
    assert fitting_call_id("a", 40) == "a"


def test_several_reasoning_items_are_sent_with_their_result_or_not_at_all() -> None:
    thought = sealed("gAAA")
    assert shown(sealed(), sealed(), said("x")) == [thought, thought, said("x")]
    torn = said("x", status="incomplete")
    assert shown(sealed(), sealed(), torn) == [torn]
    asked = {"type": "message", "role": "user", "content": "x"}
    assert shown(sealed(), sealed(), asked) == [asked]


def test_ids_that_are_kept_are_unique_and_fit() -> None:
    hosted = [{"type": "image_generation_call", "id": name} for name in ("ig_1", "ig_1", "x" * 80)]
    kept = [item["id"] for item in shown(*hosted)]
    assert kept[0] == "ig_1"
    assert len(set(kept)) == 3
    assert all(len(name) <= 64 for name in kept)
    assert kept == [item["id"] for item in shown(*hosted, said("x"))[:3]]


def test_an_encrypted_summary_of_another_owner_is_left_out() -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAother"}
    own = {"type": "compaction", "encrypted_content": MAKER.mark("gAAA")}
    assert shown(foreign, own) == [{**own, "encrypted_content": "gAAA"}]


def test_the_plainest_form_has_only_messages_calls_and_outputs() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    items = [sealed(), {"type": "web_search_call", "id": "ws_1"}, call, output, said("x")]
    bodies = [msgspec.json.encode(item) for item in items]
    written = Replay(owner=MAKER, is_plain=True).write(bodies)
    assert [msgspec.json.decode(body) for body in written.items] == [call, output, said("x")]
    assert written.sources == [2, 3, 4]


def test_a_leading_id_is_removed_without_parsing_the_rest() -> None:
    body = b'{"id":"msg_1","type":"message", "role" : "assistant","content":"\\u00e9"}'
    [item] = Replay(owner=MAKER).items([body])
    assert bytes(item) == b'{"type":"message", "role" : "assistant","content":"\\u00e9"}'
