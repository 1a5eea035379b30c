"""Files of chat messages: accepted by reference, loaded by the run, stored with the turn."""

import base64
from typing import Any

import msgspec
import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from tests.in_process import ScriptedModel
from tests.integration.chat_room import ChatRoom, open_chat_room

PNG = b"\x89PNG\r\n\x1a\n" + b"picture" * 10


def _parts(model: ScriptedModel, call: int = -1) -> list[dict[str, Any]]:
    """Return the parts of the messages that the model was shown."""
    items = [msgspec.json.decode(body) for body in model.calls[call].items]
    return [part for item in items for part in item["content"] if isinstance(part, dict)]


def _send(room: ChatRoom, kind: str, name: str, media_type: str, content: bytes | None) -> None:
    if kind == "slack":
        file = {"id": "F1", "name": name, "mimetype": media_type, "size": len(content or b"")}
        if content is not None:
            room.slack.files["F1"] = (name, media_type, content)
        room.slack.say("look", subtype="file_share", files=[file])
    else:
        if content is not None:
            room.telegram.files["F1"] = content
        file = {"file_id": "F1", "file_name": name, "mime_type": media_type}
        room.telegram.say("", caption="look", document=file)


@pytest.mark.parametrize("kind", ["slack", "telegram"])
async def test_a_picture_is_shown_to_the_model_and_loaded_once(kind: str) -> None:
    model = ScriptedModel()
    async with open_chat_room(kind, model) as room:
        _send(room, kind, "a.png", "image/png", PNG)
        await room.until(lambda: len(room.texts()) == 1)
        (image,) = [part for part in _parts(model) if part["type"] == "input_image"]
        assert image["image_url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
        simulator = room.slack if kind == "slack" else room.telegram
        simulator.say("and now?")
        await room.until(lambda: len(room.texts()) == 2)
        loads = [name for name, _ in simulator.calls if name in ("files.info", "getFile")]
        log = await _log(room, kind)
    assert sum(part["type"] == "input_image" for part in _parts(model)) == 1
    assert len(loads) == 1
    assert not any("xoxb" in body or "42:TEST" in body or "http" in body for body in log)


async def _log(room: ChatRoom, kind: str) -> list[str]:
    key = {"slack": "agent:main:slack:direct:U7", "telegram": "agent:main:telegram:direct:7"}[kind]
    view = await room.gateway.engine.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    items = await room.gateway.engine.read.context(view.session)
    listed = (await room.gateway.client.get(f"/v1/sessions/{view.session.id}/items")).json()
    assert not any("gateway" in item["type"] for item in listed["data"])
    return [item.body.decode() for item in items]


@pytest.mark.parametrize(
    ("name", "media_type", "content", "expected"),
    [
        ("notes.txt", "text/plain", b"buy milk", "[The file notes.txt:]\nbuy milk"),
        ("a.png", "image/png", None, "[The file a.png is missing: it could not be read.]"),
        ("big.png", "image/png", PNG * 20, "[The file big.png is missing: it "),
        ("a.bin", "application/zip", b"PK", "files of this type are not passed on"),
        ("fake.png", "image/png", b"<html>", "files of this type are not passed on"),
    ],
)
async def test_what_cannot_be_shown_is_named(
    name: str, media_type: str, content: bytes | None, expected: str
) -> None:
    model = ScriptedModel()
    async with open_chat_room("telegram", model, media_bytes=1000) as room:
        _send(room, "telegram", name, media_type, content)
        await room.until(lambda: len(room.texts()) == 1)
    texts = [part.get("text", "") for part in _parts(model)]
    assert any(expected in text for text in texts), texts
    assert texts[0] == f"look\n[attachment: {'image' if 'png' in name else 'file'} {name}]"


async def test_files_behind_a_running_turn_are_a_turn_of_their_own() -> None:
    model = ScriptedModel()
    async with open_chat_room("slack", model) as room:
        model.gate.clear()
        room.slack.say("first")
        await model.entered.acquire()
        _send(room, "slack", "a.png", "image/png", PNG)
        await room.gateway.until_queued(1, "agent:main:slack:direct:U7")
        model.gate.set()
        await room.until(lambda: len(room.texts()) == 2)
    assert any(part["type"] == "input_image" for part in _parts(model))
