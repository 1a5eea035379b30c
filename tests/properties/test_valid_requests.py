"""Any log, of any makers, cut anywhere, gives a request that a strict server takes.

The judge is the simulator's own validator, which shares nothing with the code that is judged.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.model.items import StoredItem, write_item
from holdfast.core.projection.project import continue_after, project, show
from holdfast.providers.items.replay import Replay, sent_ids
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.openai_chat.input import ChatForm, ChatInputWriter, TranslationCache
from holdfast.providers.openai_responses.adapter import EMPTY_INPUT
from holdfast.simulator.apis.chat_input import read_messages
from holdfast.simulator.apis.responses_input import (
    OUTPUT_OF,
    OUTPUTS,
    check_items,
    read_response_input,
)
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.profiles import PROFILES
from holdfast.simulator.state.scenario import Scenario
from holdfast.simulator.state.sealing import Owner, seal
from holdfast.simulator.state.world import World

Json = dict[str, Any]

MODELS = ("gpt-5.4", "o3")
MAKERS = {model: SealOwner("sim", "acct", model) for model in MODELS}
RESPONSES = [name for name, profile in PROFILES.items() if "responses" in profile.apis]
CHATS = [name for name, profile in PROFILES.items() if "chat" in profile.apis]

call_ids = st.sampled_from(["call_1", "call_2", "c" * 40, "c" * 41, "c" * 116, "a|b+c/d", "é"])
names = st.sampled_from(["ws_1", "ig_1", "x" * 80, "msg_1"])
texts = st.sampled_from(["", "hello", "one two", "\n"])


def parts(kind: str) -> st.SearchStrategy[Any]:
    text = texts.map(lambda said: {"type": kind, "text": said})
    picture = st.just({"type": "input_image", "image_url": "https://gone.example/a.png"})
    return st.lists(text if kind == "output_text" else text | picture, max_size=3)


def said(role: str) -> st.SearchStrategy[Json]:
    kind = "output_text" if role == "assistant" else "input_text"
    head = {"type": "message", "role": role}
    named = st.sampled_from([{}, {"id": "msg_1"}, {"id": "msg_2", "status": "incomplete"}])
    return st.builds(
        lambda what, more: {**head, **more, "content": what}, texts | parts(kind), named
    )


def sealed(kind: str) -> st.SearchStrategy[Json]:
    """Return an item of either maker, or of neither, or one that is not sealed at all."""
    blobs = [MAKERS[model].mark(seal(Owner("acct", model), "3")) for model in MODELS]
    return st.sampled_from([*blobs, *blobs, *blobs, "gAAAAAnobody", None]).map(
        lambda blob: {"type": kind, "id": f"{kind[:2]}_1", "summary": [], "encrypted_content": blob}
    )


odd = st.sampled_from(
    [None, "", 5, True, {}, [], [None], ["word"], {"a": 1}, [{"text": "x"}], [{"type": "text"}],
     [{"type": "output_text", "text": None}], [{"type": "input_text", "text": {"value": "x"}}],
     [{"type": "text", "text": "x"}], [{"type": "refusal", "refusal": "no"}],
     [{"type": "output_text", "text": "x", "annotations": []}]]
)  # fmt: skip
"""What servers and clients send in the place of a content, an output or arguments."""
odd_items = st.one_of(
    st.builds(
        lambda role, what: {"type": "message", "role": role, "content": what},
        st.sampled_from(["user", "assistant", "system"]), odd,
    ),
    st.sampled_from([{"type": "message", "role": "assistant"}, {"role": "user"}]),
    st.builds(
        lambda name, what, call_id: {
            "type": "function_call", "call_id": call_id, "name": name, "arguments": what
        },
        st.sampled_from([None, "", "a.b", "functions.f", "f()", "n" * 80, "é", 5]), odd, call_ids,
    ),
    st.builds(
        lambda name, what, call_id: {
            "type": "custom_tool_call", "call_id": call_id, "name": name, "input": what
        },
        st.sampled_from([None, "a.b", "f"]), odd, call_ids,
    ),
    st.builds(
        lambda kind, what, call_id: {"type": kind, "call_id": call_id, "output": what},
        st.sampled_from(["function_call_output", "custom_tool_call_output"]), odd, call_ids,
    ),
    call_ids.map(lambda call_id: {"type": "function_call", "call_id": call_id}),
    call_ids.map(lambda call_id: {"type": "function_call_output", "call_id": call_id}),
)  # fmt: skip

items = st.one_of(
    odd_items,
    odd_items,
    said("user"),
    said("assistant"),
    said("system"),
    st.builds(
        lambda kind, call_id, more: {
            "type": kind, "call_id": call_id, "name": "f", "arguments": "{}", **more
        },
        st.sampled_from(sorted(OUTPUT_OF)), call_ids, st.sampled_from([{}, {"id": "fc_1"}]),
    ),
    st.builds(
        lambda kind, call_id: {"type": kind, "call_id": call_id, "output": "done"},
        st.sampled_from(sorted(OUTPUTS)), call_ids,
    ),
    sealed("reasoning"),
    sealed("reasoning"),
    sealed("reasoning"),
    sealed("compaction"),
    names.map(lambda name: {"type": "web_search_call", "id": name, "status": "completed"}),
    names.map(lambda name: {"type": "image_generation_call", "id": name, "result": None}),
    names.map(lambda name: {"type": "item_reference", "id": name}),
)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> list[StoredItem]:
    """Return a log of any items, some of them torn, in turns that follow each other."""
    found: list[StoredItem] = []
    turn = 1
    for seq, value in enumerate(draw(st.lists(items, max_size=16)), 1):
        turn += draw(st.integers(0, 4)) == 0
        new = write_item(value)
        is_torn = draw(st.integers(0, 7)) == 0
        found.append(
            StoredItem(
                "s", seq, turn, new.kind, new.item_id, new.call_id, new.fingerprint, is_torn,
                new.body,
            )
        )  # fmt: skip
    return found


cuts = st.tuples(st.integers(0, 16), st.integers(0, 16)).map(sorted)


def cut_out(log: list[StoredItem], cut: list[int], *, is_compacted: bool) -> list[StoredItem]:
    """Return a part of a log; compacted, a summary stands for what was before it."""
    said = write_item({"type": "message", "role": "user", "content": "so far"})
    summary = StoredItem(
        "s", cut[0], 0, said.kind, None, None, said.fingerprint, False, said.body
    )  # fmt: skip
    return [*([summary] if is_compacted and cut[0] else []), *log[cut[0] : cut[1]]]


quarantines = st.frozensets(st.integers(1, 16), max_size=3)


def called(world: World, api: str, body: Json) -> Call:
    account = world.account("acct")
    return Call(
        number=1, api=api, operation="create", method="POST", path="/", query={}, headers={},
        raw=b"", body=body, parameters={}, account=account, ids=world.ids_for(account), now=1,
    )  # fmt: skip


def responses_input(history: list[bytes], model: str, **how: bool) -> list[Json]:
    written = Replay(owner=MAKERS[model], **how).items(history) or [msgspec.Raw(EMPTY_INPUT)]
    return [msgspec.json.decode(item) for item in written]


@pytest.mark.parametrize("profile", RESPONSES)
@given(
    log=logs(), cut=cuts, aside=quarantines, model=st.sampled_from(MODELS), plain=st.booleans(),
    is_compacted=st.booleans(),
)  # fmt: skip
@settings(max_examples=50)
def test_a_responses_server_takes_any_log(
    profile: Any, log: list[StoredItem], cut: list[int], aside: frozenset[int], model: str,
    plain: bool, is_compacted: bool,
) -> None:  # fmt: skip
    history = project(cut_out(log, cut, is_compacted=is_compacted), aside)
    sent = responses_input(history, model, is_plain=plain)
    world = World(Scenario(profile=profile))
    asked = read_response_input(world, called(world, "responses", {"model": model, "input": sent}))
    assert asked.items == sent
    _check_form(sent)


def _check_form(sent: list[Json]) -> None:
    """What life asks for besides: calls are answered at once, told apart, and nobody is silent."""
    made = Counter(item["call_id"] for item in sent if item["type"] in OUTPUT_OF)
    assert max(made.values(), default=1) == 1, "two calls go by one id"
    waiting: set[str] = set()
    for item in sent:
        if item["type"] in OUTPUT_OF:
            waiting.add(item["call_id"])
        elif item["type"] in OUTPUTS:
            waiting.remove(item["call_id"])
        elif item["type"] != "reasoning":
            assert not waiting, "something stands between a call and its output"
        if item["type"] == "message":
            assert item["content"], "a message says nothing"
            for part in item["content"] if isinstance(item["content"], list) else ():
                assert part.get("text", "media"), "a part says nothing"


@pytest.mark.parametrize("profile", CHATS)
@given(
    log=logs(), cut=cuts, aside=quarantines, told=st.sampled_from([None, "be kind"]),
    is_compacted=st.booleans(),
)  # fmt: skip
@settings(max_examples=50)
def test_a_chat_server_takes_any_log(
    profile: Any, log: list[StoredItem], cut: list[int], aside: frozenset[int], told: str | None,
    is_compacted: bool,
) -> None:  # fmt: skip
    world = World(Scenario(profile=profile))
    form = ChatForm(upstream="u", alternates=world.profile.strict_alternation)
    history = project(cut_out(log, cut, is_compacted=is_compacted), aside)
    written = ChatInputWriter(TranslationCache()).write(history, form, instructions=told)
    sent = msgspec.json.decode(b"[%b]" % b"".join(written.pieces))
    read_messages(world, called(world, "chat", {"model": "m", "messages": sent}))
    assert all(message["content"] or message.get("tool_calls") for message in sent)
    assert told is None or sent[0]["content"].startswith(told), "instructions are always there"
    named = [call["id"] for message in sent for call in message.get("tool_calls", ())]
    assert len(named) == len(set(named)), "two calls go by one id"


@given(log=logs(), aside=quarantines, covered=st.integers(0, 16))
def test_what_is_covered_and_what_is_new_are_the_whole(
    log: list[StoredItem], aside: frozenset[int], covered: int
) -> None:
    new = continue_after(log, covered, aside)
    if new is not None:
        assert [body for body in project(log, aside) if body in new][-len(new) :] == new or not new


@given(log=logs(), more=logs())
def test_what_was_sent_is_sent_again_as_it_was_when_the_log_grows(
    log: list[StoredItem], more: list[StoredItem]
) -> None:
    behind = log[-1].seq if log else 0
    turn = log[-1].turn_number + 1 if log else 1
    grown = [
        *log,
        *(
            msgspec.structs.replace(item, seq=behind + item.seq, turn_number=turn)
            for item in more
            if not item.call_id
        ),
    ]
    assert project(grown)[: len(project(log))] == project(log)


@given(log=logs())
def test_nothing_of_the_log_is_shown_twice_and_only_outputs_are_made_up(
    log: list[StoredItem],
) -> None:
    shown = show(log)
    places = [one.seq for one in shown if one.seq is not None]
    assert len(places) == len(set(places))
    for one in shown:
        assert one.seq is not None or msgspec.json.decode(one.body)["type"] in OUTPUTS


@given(log=logs(), covered=st.integers(0, 16), aside=quarantines)
@settings(max_examples=60)
def test_a_server_that_remembers_takes_what_is_new(
    log: list[StoredItem], covered: int, aside: frozenset[int]
) -> None:
    """What was told up to a model's last word, and then what is new to it, are one conversation."""
    told = log[:covered]
    is_inside = told and covered < len(log) and log[covered].turn_number == told[-1].turn_number
    if is_inside and told[-1].kind not in OUTPUT_OF:
        return  # a turn goes on where its calls are answered, and nowhere else
    new = continue_after(log, covered, aside)
    if not new:
        return
    last_turn = told[-1].turn_number if told else 0
    known = [
        one.body
        for one in show(told, aside)
        if not (one.seq is None and one.call is not None and one.call.turn_number == last_turn)
    ]
    replay = Replay(owner=MAKERS["gpt-5.4"])
    prior = [msgspec.json.decode(item) for item in replay.items(known)]
    written = replay.write(new, project(log, aside), sent_ids(known, new))
    sent = [msgspec.json.decode(item) for item in written.items]
    world = World(Scenario())
    call = called(world, "responses", {"model": "gpt-5.4"})
    assert check_items(world, call, prior, sent) == sent
