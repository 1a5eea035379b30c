"""The chunks of a chat completion, from the events of its response."""

import msgspec
import pytest

from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.response import ResponseFacts
from holdfast.core.openai.stream_events import CREATED, StreamEvent, lifecycle_event
from holdfast.http.formats.chat import ChatChunks

_REQUEST = TurnRequest(api="chat", model="m")
_RESPONSE = ResponseFacts(id="resp_1", request=_REQUEST, created_at=1.0, status="in_progress")


def _begun() -> ChatChunks:
    chunks = ChatChunks(_REQUEST)
    begin = chunks([lifecycle_event(CREATED, 0, _RESPONSE, "in_progress")])
    choice = msgspec.json.decode(begin.removeprefix(b"data: "))["choices"][0]
    assert choice["delta"] == {"role": "assistant", "content": "", "refusal": None}
    return chunks


@pytest.mark.parametrize(
    "kind",
    [
        "response.queued", "response.in_progress", "response.content_part.added",
        "response.content_part.done", "response.output_text.done", "response.mcp_call.completed",
    ],
)  # fmt: skip
def test_an_event_that_chat_does_not_have_is_not_even_decoded(kind: str) -> None:
    assert _begun()([StreamEvent(kind, 1, b"not JSON")]) == b""


def test_events_that_chat_has_are_written_between_those_that_it_does_not_have() -> None:
    spoken = b'{"delta":"hi","logprobs":[{"token":"hi"}]}'
    written = _begun()(
        [
            StreamEvent("response.content_part.added", 1, b"not JSON"),
            StreamEvent("response.output_text.delta", 2, spoken),
            StreamEvent("response.output_text.done", 3, b"not JSON"),
            StreamEvent("response.refusal.delta", 4, b'{"delta":"no"}'),
        ]
    )
    chunks = [msgspec.json.decode(line[6:]) for line in written.split(b"\n\n") if line]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"content": "hi"},
        {"refusal": "no"},
    ]
