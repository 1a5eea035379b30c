"""Any log, compacted twice at any size, is a request that the strict simulator accepts."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.compaction.budget import TokenBudget, plan_compaction
from holdfast.core.compaction.records import (
    SUMMARY_OPENING,
    CompactionRecord,
    Elision,
    InForce,
    RecordHead,
    Shown,
    show,
)
from holdfast.core.compaction.summary_prompts import elision_note, with_first_request
from holdfast.core.compaction.token_estimate import DEFAULT_SCALE, estimate_tokens
from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem
from holdfast.core.projection.project import project
from holdfast.providers.items.replay import _Head, _with_successors
from holdfast.providers.openai_chat.input import ChatForm, ChatInputWriter, TranslationCache
from holdfast.simulator.apis.chat_input import read_messages
from holdfast.simulator.apis.responses_input import (
    _check_pairs,
    _check_reasoning,
    read_response_input,
)
from holdfast.simulator.state.scenario import Scenario
from holdfast.simulator.state.world import World
from tests.properties.test_projection import logs
from tests.properties.test_valid_requests import (
    CHATS,
    MODELS,
    RESPONSES,
    called,
    responses_input,
)
from tests.properties.test_valid_requests import logs as makers_logs

SESSION = SessionId("s")


def records_of(log: list[StoredItem], shown: Shown, room: TokenBudget) -> Shown | None:
    """Return the records after one more compaction."""
    made = plan_compaction(show(_kept(log, shown), shown), room)
    if made is None:
        return None
    compaction, head = shown.compaction, shown.in_force.compaction
    elisions = shown.elisions
    if made.to_seq:
        text = with_first_request(made, elision_note(made, 200), 100)
        compaction = CompactionRecord(
            id="c", mode="elide", reason="budget", text=text, keeps=made.keeps
        )
        head = RecordHead(SESSION, 1, "compaction", 1, made.to_seq, None, 10**6)
    if made.cuts:
        elisions = (*elisions, Elision(id="e", reason="budget", cuts=made.cuts))
    return Shown(InForce(compaction=head), compaction, elisions)


def _kept(log: list[StoredItem], shown: Shown) -> list[StoredItem]:
    head, keeps = shown.in_force.compaction, shown.compaction.keeps if shown.compaction else ()
    covered = head.to_seq if head is not None else 0
    return [item for item in log if item.seq > covered or item.seq in keeps]


def accept(request: list[bytes]) -> None:
    """Check a request as the simulator does, once it has been written for a provider.

    Reasoning that somebody else's word follows is left out there: who said what is in the bytes.
    """
    heads = [msgspec.json.decode(body, type=_Head) for body in request]
    items: list[Any] = [msgspec.json.decode(request[place]) for place in _with_successors(heads)]
    _check_reasoning(items)
    _check_pairs(items)


@settings(deadline=None)
@given(logs(), st.integers(0, 120), st.integers(0, 120), st.booleans(), st.booleans())
def test_a_log_compacted_twice_projects_to_a_valid_request(
    log: list[StoredItem], first: int, second: int, elides: bool, is_whole: bool
) -> None:
    shown = Shown(InForce())
    whole = project(show(log, shown))
    accept(whole)
    turn = log[-1].turn_number if log else 1
    for tokens in (first, second):
        room = TokenBudget(
            tokens=tokens, scale=DEFAULT_SCALE, turn_number=turn, summary_tokens=5,
            elides_first=elides, is_whole=is_whole,
        )  # fmt: skip
        after = records_of(log, shown, room)
        if after is None:
            continue
        shown = after
        request = project(show(_kept(log, shown), shown))
        accept(request)
        _begins_with_its_first_request(log, request)


def compacted_twice(
    log: list[StoredItem], sizes: tuple[int, int], *, elides: bool, is_whole: bool
) -> list[StoredItem]:
    """Return a log as it is shown after two compactions, as far as they are possible."""
    shown = Shown(InForce())
    for tokens in sizes:
        room = TokenBudget(
            tokens=tokens, scale=DEFAULT_SCALE, turn_number=log[-1].turn_number if log else 1,
            summary_tokens=5, elides_first=elides, is_whole=is_whole,
        )  # fmt: skip
        shown = records_of(log, shown, room) or shown
    return show(_kept(log, shown), shown)


sizes = st.tuples(st.integers(0, 120), st.integers(0, 120))


@pytest.mark.parametrize("profile", RESPONSES)
@given(
    log=makers_logs(), sizes=sizes, model=st.sampled_from(MODELS), elides=st.booleans(),
    is_whole=st.booleans(),
)  # fmt: skip
@settings(max_examples=40)
def test_a_responses_server_takes_any_log_compacted_twice(
    profile: Any, log: list[StoredItem], sizes: tuple[int, int], model: str, elides: bool,
    is_whole: bool,
) -> None:  # fmt: skip
    history = project(compacted_twice(log, sizes, elides=elides, is_whole=is_whole))
    sent = responses_input(history, model)
    world = World(Scenario(profile=profile))
    asked = read_response_input(world, called(world, "responses", {"model": model, "input": sent}))
    assert asked.items == sent


@pytest.mark.parametrize("profile", CHATS)
@given(log=makers_logs(), sizes=sizes, elides=st.booleans(), is_whole=st.booleans())
@settings(max_examples=40)
def test_a_chat_server_takes_any_log_compacted_twice(
    profile: Any, log: list[StoredItem], sizes: tuple[int, int], elides: bool, is_whole: bool
) -> None:
    world = World(Scenario(profile=profile))
    form = ChatForm(upstream="u", alternates=world.profile.strict_alternation)
    history = project(compacted_twice(log, sizes, elides=elides, is_whole=is_whole))
    written = ChatInputWriter(TranslationCache()).write(history, form, instructions="be kind")
    sent = msgspec.json.decode(b"[%b]" % b"".join(written.pieces))
    read_messages(world, called(world, "chat", {"model": "m", "messages": sent}))
    assert sent[0]["content"].startswith("be kind"), "instructions are always there"


def _begins_with_its_first_request(log: list[StoredItem], request: list[bytes]) -> None:
    asked = [
        msgspec.json.decode(item.body)["content"]
        for item in log
        if item.kind == "message" and msgspec.json.decode(item.body)["role"] == "user"
    ]
    if asked:
        assert asked[0] in b"".join(request).decode()


@settings(deadline=None)
@given(logs(), st.integers(0, 200))
def test_a_compaction_is_made_only_where_it_shows_less(log: list[StoredItem], tokens: int) -> None:
    room = TokenBudget(tokens=tokens, scale=DEFAULT_SCALE, turn_number=99, summary_tokens=5)
    made = plan_compaction(log, room)
    if made is not None:
        assert made.tokens_after < made.tokens_before
        assert made.tokens_before == estimate_tokens([item.body for item in log], {})
        before = [item for item in log if item.seq <= made.to_seq]
        behind = [item for item in log if item.seq > made.to_seq]
        called = {item.call_id for item in before if item.kind.endswith("_call")}
        assert not called & {item.call_id for item in behind if item.kind.endswith("_output")}
        assert not (before and behind) or before[-1].kind != "reasoning"


@given(st.text(), st.integers(0, 50))
def test_a_quoted_request_survives_any_number_of_summaries(text: str, rounds: int) -> None:
    asked = "the very first request"
    body = msgspec.json.encode({"type": "message", "role": "user", "content": asked})
    items = [StoredItem("s", 1, 1, "message", None, None, b"", False, body)]
    for number in range(min(rounds, 5)):
        made = plan_compaction(
            items, TokenBudget(tokens=1, scale=DEFAULT_SCALE, turn_number=9, is_whole=True)
        )
        if made is None:
            break
        told = with_first_request(made, f"{number} {text}", 100)
        assert told.count(asked) >= 1
        head = RecordHead(SESSION, 1, "compaction", 1, number + 1, None, 10**6)
        compaction = CompactionRecord(id="c", mode="elide", reason="asked", text=told)
        shown = show([], Shown(InForce(compaction=head), compaction))
        assert SUMMARY_OPENING in msgspec.json.decode(shown[0].body)["content"][0]["text"]
        more = msgspec.json.encode({"type": "message", "role": "user", "content": "m" * 900})
        items = [*shown, StoredItem("s", number + 2, 5, "message", None, None, b"", False, more)]
