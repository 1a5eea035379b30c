"""Helpers of tests about approvals: tools that need one, and what clients see."""

import json
from typing import Any

import httpx

from tests.in_process import RunningGateway
from tests.tools.toolboxes import RecordingTools


def guarded_tools() -> RecordingTools:
    """Return a toolbox whose only tool needs an approval."""
    tools = RecordingTools()
    tools.approved = {"echo"}
    return tools


async def pending_approvals(gateway: RunningGateway) -> list[dict[str, Any]]:
    """Return the approval requests that wait for an answer."""
    data: list[dict[str, Any]] = (await gateway.client.get("/v1/approvals")).json()["data"]
    return data


def chat_text(reply: httpx.Response) -> str:
    """Return the text of a chat answer as a client shows it, streamed or not."""
    assert reply.status_code == 200, reply.text
    if not reply.text.startswith("data: "):
        content: str = reply.json()["choices"][0]["message"]["content"]
        return content
    chunks = [
        json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")
    ]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
