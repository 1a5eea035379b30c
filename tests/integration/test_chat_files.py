"""Files in answers and from operators: sent behind the text, in order, within bounds."""

import base64
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.errors import IdempotencyMismatch, InvalidInput
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.ports.channel import OperatorMessage, OutgoingFile
from holdfast.ports.outbox import OutboxQuery
from holdfast.ports.tools import Tool, ToolCaller, ToolImage, ToolResult
from holdfast.schedules.service import Scheduler
from holdfast.schedules.settings import DeliverSettings, ScheduleSettings
from holdfast.testing.channel_contract import PNG
from tests.in_process import Item, ScriptedModel, called, said
from tests.integration.chat_room import ChatRoom, open_chat_room
from tests.tools.toolboxes import RecordingTools


def image(content: bytes, **more: Any) -> dict[str, Any]:
    """Return the item of an image that a model made."""
    result = base64.b64encode(content).decode()
    return {"type": "image_generation_call", "id": "ig_1", "status": "completed", **more,
            "result": result}  # fmt: skip


def drawing(*items: dict[str, Any]) -> ScriptedModel:
    """Return a model with this answer."""
    return ScriptedModel(lambda _: list(items))


async def until_sent(room: ChatRoom, count: int) -> None:
    """Wait until the outbox knows that so many messages arrived."""
    while True:
        rows = await room.gateway.engine.store.channels.messages(None, OutboxQuery(state="sent"))
        if len(rows) == count:
            return


@pytest.mark.parametrize("kind", ["telegram", "slack"])
async def test_the_images_of_an_answer_follow_its_text(kind: str) -> None:
    pictures = image(PNG), image(b"\xff\xd8\xff jpeg", output_format="jpeg")
    async with open_chat_room(kind, drawing(pictures[0], said("Here."), pictures[1])) as room:
        getattr(room, kind).say("draw")
        await room.until_text("image-2")
        assert room.texts() == ["Here.", "[image.png]", "[image-2.jpg]"]
        await until_sent(room, 3)


async def test_an_answer_may_be_an_image_alone() -> None:
    async with open_chat_room("telegram", drawing(image(PNG))) as room:
        room.telegram.say("draw")
        await room.until_text("image.png")
        assert room.texts() == ["[image.png]"]
        file = room.telegram.sent[0].file
        assert file is not None
        assert file.content == PNG


class _DrawingTools(RecordingTools):
    """A tool that returns images."""

    def __init__(self, *images: bytes) -> None:
        super().__init__()
        self._images = tuple(ToolImage("image/png", content) for content in images)

    async def call(self, caller: ToolCaller, tool: Tool, arguments: dict[str, Any]) -> ToolResult:
        result = await super().call(caller, tool, arguments)
        return replace(result, images=self._images)


def _calling(items: list[Item]) -> list[Item]:
    is_asked = items[-1].get("type") == "message"
    return [called("desk__echo", "c1")] if is_asked else [said("Here.")]


@pytest.mark.parametrize("kind", ["telegram", "slack"])
async def test_images_of_tools_are_sent_within_the_limit_of_the_channel(kind: str) -> None:
    tools = _DrawingTools(PNG, b"x" * 2001, PNG)
    more: dict[str, Any] = {"tools": ("mcp:desk",), "media_bytes": 2000, "reply": "whole"}
    async with open_chat_room(
        kind, ScriptedModel(_calling), toolbox=lambda _: tools, **more
    ) as room:
        getattr(room, kind).say("draw")
        await room.until_text("Here.")
        note, *rest = room.texts()
    assert "image-2.png is not sent: it has 2,001 bytes" in note
    assert rest == ["[image.png]", "[image-3.png]", "Here."]


async def test_the_files_of_a_scheduled_answer_are_delivered() -> None:
    async with open_chat_room("telegram", drawing(image(PNG), said("Here."))) as room:
        schedule = ScheduleSettings(
            name="report", prompt="draw", model="scripted", every="1h",
            deliver=DeliverSettings(channel="telegram", to="7"),
        )  # fmt: skip
        scheduler = Scheduler(
            room.gateway.engine, room.gateway.turn_service, [schedule],
            find_chat=room.service.find_chat,
        )  # fmt: skip
        await scheduler.start()
        try:
            await scheduler.run_now(DEFAULT_TENANT, "report")
            await room.until_text("image.png")
        finally:
            await scheduler.stop()
        assert room.texts() == ["Here.", "[image.png]"]
        key = Key("agent:main:telegram:direct:7")
        view = await room.gateway.engine.read.session(DEFAULT_TENANT, key=key)
        assert view is not None
        assert view.session.head_seq == 1, "the text is remembered, not the file"


async def test_a_file_that_is_too_large_or_broken_is_replaced_by_a_note() -> None:
    broken = {**image(b""), "result": "no base64!"}
    model = drawing(image(b"x" * 2001), image(PNG), broken, said("Here."))
    async with open_chat_room("telegram", model, media_bytes=2000) as room:
        room.telegram.say("draw")
        await room.until_text("image-2.png")
        await until_sent(room, 2)
        note = "[The file image.png is not sent: it has 2,001 bytes, and the files of an answer"
        assert room.texts()[0].startswith(f"Here.\n\n{note}")


async def test_a_file_with_an_unknown_outcome_is_sent_again_with_a_note() -> None:
    async with open_chat_room("telegram", drawing(image(PNG), said("Here."))) as room:
        room.telegram.fail_next("sendPhoto", after=True)
        room.telegram.say("draw")
        await until_sent(room, 2)
        assert room.texts() == ["Here.", "[image.png]", "[image.png]"]
        rows = await room.gateway.engine.store.channels.messages(None, OutboxQuery())
        assert [row.is_maybe_duplicate for row in rows] == [True, False]


async def test_an_upload_that_nobody_sees_yet_may_fail_without_a_doubt() -> None:
    async with open_chat_room("slack", drawing(image(PNG), said("Here."))) as room:
        room.slack.fail_next("files.getUploadURLExternal", after=True)
        room.slack.say("draw")
        await until_sent(room, 2)
        assert room.texts() == ["Here.", "[image.png]"]
        rows = await room.gateway.engine.store.channels.messages(None, OutboxQuery())
        assert not any(row.is_maybe_duplicate for row in rows)


async def test_an_app_without_the_scope_of_files_goes_on_talking() -> None:
    async with open_chat_room("slack", drawing(image(PNG), said("Here."))) as room:
        room.slack.scopes.clear()
        room.slack.say("draw")
        room.slack.say("again")
        await room.until(lambda: len(room.texts()) == 2)
        rows = await room.gateway.engine.store.channels.messages(None, OutboxQuery(state="dead"))
        assert "files:write" in str(rows[0].error)


def file(content: bytes, name: str = "a.png") -> OutgoingFile:
    """Return a file to send."""
    return OutgoingFile(name=name, media_type="image/png", content=content)


async def test_an_operator_sends_files_once_per_key() -> None:
    async with open_chat_room("telegram") as room:
        name = '../x/"a";\r\n.png'
        message = OperatorMessage(chat="7", text="Look:", files=(file(PNG, name),), key="k")
        ids = await room.service.send("telegram", message)
        assert await room.service.send("telegram", message) == ids
        await until_sent(room, 2)
        assert room.texts() == ["Look:", "[a.png]"]
        with pytest.raises(IdempotencyMismatch):
            await room.service.send("telegram", OperatorMessage(chat="7", text="Other", key="k"))


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (OperatorMessage(chat="7"), "text"),
        (OperatorMessage(chat="", text="a"), "to"),
        (OperatorMessage(chat="a\0b", text="a"), "to"),
        (OperatorMessage(chat="7", text="a" * 100_001), "text"),
        (OperatorMessage(chat="7", files=(file(b""),)), "files"),
        (OperatorMessage(chat="7", files=(file(b"a"),) * 11), "files"),
        (OperatorMessage(chat="7", files=(file(b"a" * 600), file(b"a" * 600))), "files"),
    ],
)
async def test_a_message_that_cannot_be_sent_is_refused(
    message: OperatorMessage, param: str
) -> None:
    async with open_chat_room("telegram", media_bytes=1000) as room:
        with pytest.raises(InvalidInput) as raised:
            await room.service.send("telegram", message)
        assert raised.value.param == param
