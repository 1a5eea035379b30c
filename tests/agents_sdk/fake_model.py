"""A model for the SDK with scripted answers that records its inputs."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from agents import Agent, Model, ModelResponse, Usage
from agents.items import TResponseInputItem, TResponseOutputItem, TResponseStreamEvent
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

Output = list[TResponseOutputItem]
Answer = str | Output | Exception
Answering = Callable[[list[TResponseInputItem]], Answer]

_numbers = itertools.count()


def says(text: str, *, item_id: str | None = None) -> ResponseOutputMessage:
    """Return an assistant's message."""
    return ResponseOutputMessage(
        id=item_id or f"msg_{next(_numbers)}",
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(type="output_text", text=text, annotations=[])],
    )


def calls(name: str, arguments: str = "{}", *, call_id: str | None = None) -> Output:
    """Return a call of a tool."""
    number = next(_numbers)
    return [
        ResponseFunctionToolCall(
            id=f"fc_{number}",
            type="function_call",
            name=name,
            arguments=arguments,
            call_id=call_id or f"call_{number}",
        )
    ]


def echo(asked: list[TResponseInputItem]) -> str:
    """Answer with the user's last text."""
    return f"answer to {text_of(asked[-1])}"


def text_of(item: Any) -> str:
    """Return a short text for an item of the SDK."""
    if item.get("type") in ("function_call", "function_call_output"):
        return f"{item['type']} {item['call_id']}"
    content = item["content"]
    return content if isinstance(content, str) else str(content[0]["text"])


def texts_of(items: Iterable[Any]) -> list[str]:
    """Return short texts for items."""
    return [text_of(item) for item in items]


class FakeModel(Model):
    """Answers with `answers` in order, or with a function of its input."""

    def __init__(self, answers: Sequence[Answer] | Answering = echo) -> None:
        self._answers = answers
        self.asked: list[list[TResponseInputItem]] = []
        self.gates: list[asyncio.Event] = []
        """Each of the next calls waits for its own event before it is answered."""
        self.arrivals: asyncio.Queue[int] = asyncio.Queue()

    async def _answer(self, given: str | list[TResponseInputItem]) -> Output:
        asked = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        self.asked.append(asked)  # type: ignore[arg-type] # a plain message, as the SDK writes it
        number = len(self.asked) - 1
        self.arrivals.put_nowait(number)
        if number < len(self.gates):
            await self.gates[number].wait()
        answers = self._answers
        answer = answers(self.asked[number]) if callable(answers) else answers[number]
        if isinstance(answer, Exception):
            raise answer
        return [says(answer)] if isinstance(answer, str) else answer

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        """Return the next answer."""
        output = await self._answer(input)
        return ModelResponse(output=output, usage=Usage(), response_id=f"resp_{next(_numbers)}")

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002
        *_: Any,
        **__: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Stream only the terminal event of the next answer."""
        response = Response(
            id=f"resp_{next(_numbers)}",
            created_at=0,
            model="fake",
            object="response",
            output=await self._answer(input),
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=False,
        )
        yield ResponseCompletedEvent(
            type="response.completed", response=response, sequence_number=0
        )


def agent_of(model: Model, **more: Any) -> Agent[Any]:
    """Return an agent with that model."""
    return Agent(name="tester", model=model, **more)
