"""Servers that are nearly compatible: what they leave out or say otherwise costs nobody a word."""

from typing import Any

import pytest

from tests.integration.odd_server import Reply, odd_server
from tests.integration.test_heals import QUICK
from tests.integration.upstream_house import open_upstream_house

Json = dict[str, Any]


def _deltas(kind: str) -> list[Json]:
    """Return a stream that only ever shows what is added, and an end that shows nothing."""
    item: Json = {"id": "m1", "type": "message", "role": "assistant", "content": []}
    at = {"output_index": 0, "item_id": "m1", "content_index": 0}
    return [
        {"type": "response.created", "response": {"id": "r1", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": f"response.{kind}.delta", **at, "delta": "good "},
        {"type": f"response.{kind}.delta", **at, "delta": "day"},
        {"type": "response.completed", "response": {"id": "r1", "output": []}},
    ]


@pytest.mark.parametrize("kind", ["output_text", "refusal"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_what_was_streamed_is_in_the_log_though_the_server_never_showed_it_whole(
    kind: str, path: str
) -> None:
    def say(_: str, body: Json) -> Reply:
        return _deltas(kind)

    async with (
        odd_server(say) as server,
        open_upstream_house(server.upstream(), heals=QUICK) as house,
    ):
        asked: Json = {"input": "one"} if path == "/v1/responses" else {
            "messages": [{"role": "user", "content": "one"}]
        }  # fmt: skip
        answer = await house.post(path, stream=True, **asked)
        assert "good " in answer.text
        assert "day" in answer.text
        [session] = (await house.client.get("/v1/sessions")).json()["data"]
        items = (await house.client.get(f"/v1/sessions/{session['id']}/items")).json()["data"]
        [part] = items[-1]["content"]
        assert part.get("text", part.get("refusal")) == "good day"
        await house.respond("two", stream=True)
        assert "good day" in str(server.asked[-1]["input"])


@pytest.mark.parametrize("kind", ["output_text", "refusal"])
async def test_what_was_streamed_before_a_stream_broke_off_is_kept(kind: str) -> None:
    async with (
        odd_server(lambda path, body: _deltas(kind)[:-1]) as server,
        open_upstream_house(server.upstream(), heals=QUICK) as house,
    ):
        await house.post("/v1/responses", input="one", stream=True)
        [session] = (await house.client.get("/v1/sessions")).json()["data"]
        items = (await house.client.get(f"/v1/sessions/{session['id']}/items")).json()["data"]
        [part] = items[-1]["content"]
        assert (items[-1]["status"], part["type"]) == ("incomplete", kind)
        assert part.get("text", part.get("refusal")) == "good day"
