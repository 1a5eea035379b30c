"""Known failure modes of histories, streams and lifecycles, through the gateway."""

import asyncio
from typing import Any

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.transaction.commands import Accept, Command, Finish
from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.ports.store import Store
from holdfast.settings import ResetSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.in_process import ScriptedModel, open_gateway
from tests.integration.test_heals import told
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    read,
    text_of,
    upstream,
)

Json = dict[str, Any]
QUICK = HealSettings(first_pause_seconds=0.001)
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


async def only_session(gateway: UpstreamGateway) -> Json:
    [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
    value: Json = session
    return value


async def test_f39_a_stream_resumed_after_any_event_has_no_gap_and_nothing_twice() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            told_first = (await gateway.respond("one two three", stream=True))["events"]
            name = told_first[0]["response"]["id"]
            assert [e["sequence_number"] for e in told_first] == list(range(len(told_first)))
            for seen in range(len(told_first)):
                again = await gateway.client.get(
                    f"/v1/responses/{name}",
                    params={"stream": "true", "starting_after": str(seen)},
                )
                rest = read(again)["events"] if seen + 1 < len(told_first) else []
                assert rest == told_first[seen + 1 :]


class _Broken:
    """A store that takes nothing in."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[Any]) -> Any:
        """Refuse what would begin a turn."""
        if self.is_broken and isinstance(command, Accept):
            raise StoreUnavailable("the disk is full")
        return await self._store.submit(command)


async def test_f46_what_cannot_be_written_is_refused_before_the_model_is_called() -> None:
    stores: list[_Broken] = []

    def wrap(store: Store) -> Any:
        stores.append(_Broken(store))
        return stores[0]

    model = ScriptedModel()
    async with open_gateway(model, wrap=wrap) as gateway:
        refused = await gateway.respond("hi")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert model.calls == []
        stores[0].is_broken = False
        assert (await gateway.respond("hi")).status_code == 200
        assert await gateway.log() == ["hi", "re:hi"]


class _Unsure:
    """A store that does not say whether the first ends of runs were written."""

    def __init__(self, store: Store, *, is_written: bool, count: int) -> None:
        self._store = store
        self._is_written = is_written
        self._left = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[Any]) -> Any:
        """Carry a command out, or say that it is not known whether it was."""
        if isinstance(command, Finish) and self._left:
            self._left -= 1
            if self._is_written:
                await self._store.submit(command)
            raise StoreUnavailable("nobody knows")
        return await self._store.submit(command)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_written", [False, True])
async def test_f38_an_answer_whose_record_is_in_doubt_is_recorded_and_not_asked_for_again(
    is_written: bool, is_stream: bool
) -> None:
    def wrap(store: Store) -> Any:
        return _Unsure(store, is_written=is_written, count=2)

    model = ScriptedModel()
    async with open_gateway(model, wrap=wrap) as gateway:
        once = {"Idempotency-Key": "once"}
        answers = [await gateway.respond("hi", stream=is_stream, headers=once) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert all("re:hi" in answer.text for answer in answers)
        assert len(model.calls) == 1
        assert await gateway.log() == ["hi", "re:hi"]


async def test_f48_a_link_that_is_gone_hides_nothing_before_it() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            names = []
            parent: Json = {}
            for text in ("one", "two", "three"):
                made = await gateway.respond(text, None, **parent)
                names.append(made["id"])
                parent = {"previous_response_id": made["id"]}
            assert (await gateway.client.delete(f"/v1/responses/{names[1]}")).status_code == 200
            said = await gateway.respond("four", None, **parent)
            assert text_of(said) == "Messages seen: 7. Last text: four"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_f49_a_client_that_holds_two_messages_regenerates_and_overwrites_nothing(
    is_stream: bool,
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            for text in ("one", "two"):
                await gateway.chat(text, stream=is_stream)
            last: list[Json] = [
                {"role": "user", "content": "two"},
                {"role": "assistant", "content": "Messages seen: 3. Last text: two"},
            ]
            await gateway.chat(last, stream=is_stream)
            session = await only_session(gateway)
            path = f"/v1/sessions/{session['id']}/items"
            seen = (await gateway.client.get(path)).json()["data"]
            log = (await gateway.client.get(path, params={"view": "log"})).json()["data"]
            assert [item["role"] for item in seen if item["type"] == "message"] == [
                "user", "assistant", "user", "assistant",
            ]  # fmt: skip
            assert len(log) > len(seen)
            assert "Last text: one" in str(seen)


async def test_f64_after_a_pause_the_same_session_and_its_history_go_on() -> None:
    soon = ResetSettings(mode="idle", idle_minutes=1e-9)
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), reset=soon) as gateway:
            await gateway.respond("shall I delete it?")
            before = await only_session(gateway)
            said = await gateway.respond("yes")
            assert text_of(said) == "Messages seen: 3. Last text: yes"
            after = await only_session(gateway)
            assert (after["id"], after["generation"]) == (before["id"], 1)
            assert await told(gateway, "session.rolled_over") >= 1


async def test_f66_work_without_a_user_neither_refreshes_nor_resets() -> None:
    soon = ResetSettings(mode="idle", idle_minutes=1e-9, rollover="hard")
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), reset=soon) as gateway:
            await gateway.respond("one")
            before = await only_session(gateway)
            session_id = before["id"]
            for number in range(3):
                made = await gateway.respond(f"beat {number}", background=True)
                while made["status"] in ("queued", "in_progress"):
                    await asyncio.sleep(0)
                    made = (await gateway.client.get(f"/v1/responses/{made['id']}")).json()
                note = {"items": [{"role": "developer", "content": "note"}]}
                await gateway.client.post(f"/v1/sessions/{session_id}/items", json=note)
            after = await only_session(gateway)
            assert after["id"] == session_id
            assert after["last_user_activity_at"] == before["last_user_activity_at"]
            assert after["turn_count"] == 7


@pytest.mark.parametrize("mode", ["model", "elide"])
async def test_f67_no_cut_of_any_size_parts_a_call_from_its_output(mode: Any) -> None:
    with ProviderSimulator() as simulator:
        context = ContextSettings(mode=mode)
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=context
        ) as gateway:
            for number, threshold in enumerate((150, 250, 350, 450, 550, 650, 750, 850)):
                options = [{"type": "compaction", "compact_threshold": threshold}]
                more: Json = {"tools": TOOLS, "context_management": options}
                said = f"{number}: call look {{}} and call look {{}} " + "word " * 20
                first = await gateway.respond(said, **more)
                calls = [item for item in first["output"] if item["type"] == "function_call"]
                outputs = [
                    {
                        "type": "function_call_output",
                        "call_id": call["call_id"],
                        "output": f"seen {number} " + "z" * 300,
                    }
                    for call in calls
                ]
                assert len(outputs) == 2
                await gateway.respond(outputs, **more)
            assert {request.fault for request in simulator.requests()} == {None}
            assert await told(gateway, "session.compacted") >= 4
