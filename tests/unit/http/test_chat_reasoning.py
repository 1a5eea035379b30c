"""Readable reasoning in chat completions, whole, streamed and sent back."""

from typing import Any

from tests.in_process import ScriptedModel, open_gateway, said

Json = dict[str, Any]
THOUGHT = {
    "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]
}  # fmt: skip


def thinking(items: list[Json]) -> list[Json]:
    return [THOUGHT, said(f"answer {len(items)}")]


async def test_an_answer_has_its_reasoning() -> None:
    async with open_gateway(ScriptedModel(thinking)) as gateway:
        answer = await gateway.chat([{"role": "user", "content": "one"}])
        message = answer.json()["choices"][0]["message"]
        assert message["reasoning_content"] == "hm"


async def test_a_history_with_reasoning_is_recognised() -> None:
    async with open_gateway(ScriptedModel(thinking)) as gateway:
        first = (await gateway.chat([{"role": "user", "content": "one"}])).json()
        history = [{"role": "user", "content": "one"}, first["choices"][0]["message"]]
        await gateway.chat([*history, {"role": "user", "content": "two"}])
        log = await gateway.log(view="log")
        assert log.count("one") == 1
        assert log.count("answer 1") == 1
