"""Long requests are compared off the event loop."""

import asyncio
import threading

import pytest

from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.items import message
from holdfast.engine.turns.input_matching import INLINE_ITEMS, match_stored_history
from holdfast.ports.provider import ModelCall
from tests.in_process import ScriptedModel, open_gateway


@pytest.mark.parametrize(("count", "is_free"), [(INLINE_ITEMS, False), (INLINE_ITEMS + 1, True)])
async def test_other_work_goes_on_while_a_long_request_is_compared(
    count: int, is_free: bool
) -> None:
    items = [message("user", f"message {number}") for number in range(count)]
    async with open_gateway() as gateway:
        others: list[bool] = []
        asyncio.get_running_loop().call_soon(others.append, True)
        matched = await match_stored_history(gateway.engine.read, DEFAULT_TENANT, items)
        assert bool(others) is is_free
        assert len(matched.items) == count


async def test_a_long_history_is_recognised_like_a_short_one() -> None:
    history = [
        {"role": role, "content": f"{role} {number}"}
        for number in range(INLINE_ITEMS)
        for role in ("user", "assistant")
    ]
    async with open_gateway() as gateway:
        await gateway.respond([*history, {"role": "user", "content": "one"}])
        await gateway.respond([
            *history, {"role": "user", "content": "one"},
            {"role": "assistant", "content": "re:one"}, {"role": "user", "content": "two"},
        ])  # fmt: skip
        assert (await gateway.log(view="log"))[len(history) :] == [
            "one", "re:one", "two", "re:two",
        ]  # fmt: skip


class _ThreadModel(ScriptedModel):
    """Notes in which thread a call was checked."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def check(self, call: ModelCall) -> None:
        self.threads.append(threading.get_ident())


async def test_long_requests_are_checked_off_the_event_loop() -> None:
    model = _ThreadModel()
    async with open_gateway(model) as gateway:
        for count in (1, INLINE_ITEMS + 1):
            items = [{"role": "user", "content": f"message {n}"} for n in range(count)]
            assert (await gateway.respond(items, None)).status_code == 200
    assert [thread == threading.get_ident() for thread in model.threads] == [True, False]
