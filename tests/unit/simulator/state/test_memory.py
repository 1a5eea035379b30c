"""The stored state of accounts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.simulator.state.memory import (
    Forgetting,
    ProviderAccount,
    ProviderConversation,
    StoredResponse,
    is_chosen,
)
from holdfast.simulator.state.scenario import ForgetSettings


def stored(number: int, parent: StoredResponse | None = None) -> StoredResponse:
    return StoredResponse(
        id=f"resp_{number}",
        model="m",
        created_at=number,
        response={"output": [{"id": f"msg_out_{number}"}]},
        input_items=[{"id": f"msg_in_{number}"}],
        parent=parent,
    )


def test_a_chain_is_listed_oldest_first() -> None:
    last = None
    for number in range(3):
        last = stored(number, last)
    assert last is not None
    ids = [item["id"] for item in last.context()]
    assert ids == [f"msg_{way}_{n}" for n in range(3) for way in ("in", "out")]


def test_deleting_a_response_deletes_its_items() -> None:
    account = ProviderAccount(key="k")
    account.keep(stored(1))
    account.keep(stored(2))
    assert account.forget_owner("resp_1")
    assert not account.forget_owner("resp_1")
    assert set(account.items) == {"msg_in_2", "msg_out_2"}
    assert account.forget_everything() == 1
    assert not account.items


def test_unlinking_removes_messages_with_their_reasoning_and_keeps_calls() -> None:
    items = [
        {"role": "user"},
        {"type": "reasoning", "id": "rs_1"},
        {"type": "function_call"},
        {"type": "function_call_output"},
        {"type": "reasoning", "id": "rs_2"},
        {"role": "assistant"},
    ]
    conversation = ProviderConversation(id="c", created_at=0, metadata={}, items=list(items))
    assert conversation.unlink_assistant_items() == 2
    assert conversation.items == items[:4]


@pytest.mark.parametrize(("age", "gone"), [(10, False), (11, True)])
def test_old_state_expires(age: int, gone: bool) -> None:
    forgetting = Forgetting(seed=1, settings=ForgetSettings(after_seconds=10))
    assert forgetting.has_forgotten(owner_id="x", created_at=100, now=100 + age) is gone


@given(st.floats(0, 1), st.integers(), st.text())
def test_chance_is_deterministic(chance: float, seed: int, name: str) -> None:
    assert is_chosen(chance, seed, name) == is_chosen(chance, seed, name)
    assert is_chosen(1.0, seed, name)
    assert not is_chosen(0.0, seed, name)
