"""A program that embeds the engine may store requests of its own format beside a gateway's."""

import pytest

from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.reset_policy import NEVER
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.settings import ContextSettings
from tests.in_process import open_gateway

ANSWER = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}


@pytest.mark.parametrize("raw", [b"", b"of its own", b'{"a":1}'])
async def test_requests_of_other_formats_are_no_errors_of_the_gateway(
    any_store_url: str, raw: bytes
) -> None:
    context = ContextSettings(mode="elide")
    async with open_gateway(store_url=any_store_url, context=context) as gateway:
        client = gateway.client
        session = await Holdfast(gateway.engine, DEFAULT_TENANT, NEVER).session("k")
        async with session.turn("hi", request=raw) as turn:
            turn.add("there")
            # An answer to an approval finds a turn that runs elsewhere.
            answered = await gateway.respond([ANSWER], headers={"X-On-Busy": "reject"})
        name = f"resp_{turn.id.removeprefix('turn_')}"
        child = await gateway.respond("on", None, previous_response_id=name)
        compact = await client.post(f"/v1/sessions/{session.id}/compact", json={})
        read = [
            await client.get(path)
            for path in (
                f"/v1/responses/{name}", f"/v1/responses/{name}/input_items", "/v1/usage",
                f"/v1/turns/{turn.id}", f"/v1/turns/{turn.id}/projection",
            )
        ]  # fmt: skip
        after = await gateway.respond("and on")
    assert answered.status_code == 404
    assert answered.json()["error"]["code"] == "approval_not_found"
    assert child.status_code == 400
    assert child.json()["error"]["code"] == "previous_response_not_found"
    assert [reply.status_code for reply in (compact, after)] == [200, 200]
    assert [reply.status_code for reply in read] == [404, 404, 200, 200, 404]
