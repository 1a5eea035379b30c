"""The state of one run of a turn with tools, and input that joins such a run.

Steering: input that joins is accepted as a turn of its own, first in the queue. It joins at the
next model call; if there is none, it runs as the next turn.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import TurnId
from holdfast.core.model.delivery import OutboxFile, OutboxMessage
from holdfast.core.model.gateway_items import client_output, words_item
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest, find_request
from holdfast.core.model.session import Usage, sum_usage
from holdfast.core.model.turn import STEERING, Turn
from holdfast.core.openai.chat import message_of, streamed_text
from holdfast.core.tools.open_calls import ToolUse
from holdfast.core.tools.requested import RequestedTools, function_names
from holdfast.core.transaction.outgoing import bound_files, delivery_of, to_message
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.ports.provider import Answer
from holdfast.ports.store import TurnReader
from holdfast.ports.tools import Tool, ToolCaller, ToolImage, ToolSet


class ToolTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn with tools; `answer` has the items that are not committed yet."""

    answer: Answer
    output: Sequence[bytes]
    """The output of this run as the client sees it."""
    pending: tuple[str, ...] = ()
    """Calls of the client's tools, and approval requests, for which the lane is held."""
    hold_seconds: float | None = None
    """How long the lane is held, unless it is held only for the client's tools."""
    counted: Usage | None = None
    """The part of the usage that is already counted."""


class ToolProgress:
    """One run of a turn with tools."""

    def __init__(
        self,
        run: ActiveRun,
        request: TurnRequest,
        requested: RequestedTools,
        writer: JournalWriter | None,
        tools: ToolSet,
        caller: ToolCaller,
    ) -> None:
        self.run = run
        self.request = request
        self.requested = requested
        self.writer = writer
        self.tools = tools
        self.caller = caller
        self.client_functions = function_names(requested)
        self.began = monotonic()
        self.steps = 0
        self.calls = 0
        self.output_bytes = 0
        self.is_last = False
        """Whether a limit was reached: the model is called once more, without tools."""
        self.bodies: list[bytes] = []
        """The items that this run has committed."""
        self.indexes: dict[str, int] = {}
        """The output indexes of calls that have not ended, by the id of their item."""
        self.made: set[str] = set()
        """The item ids of the calls that this run has committed."""
        self.latest: set[str] = set()
        """Those of them that the last answer made: none of these has run."""
        self.requests: set[str] = set()
        """Approval requests that this run has shown."""
        self.found_files: list[OutboxMessage] = []
        """Images of tools that are sent to the chat with the next commit."""
        self.sent_files: list[OutboxFile] = []
        self.usage: Usage | None = None
        self.usage_detail: bytes | None = None

    def find(self, function: str) -> Tool | None:
        """Return the tool that a model calls, even if it was not offered; such a call does not run.

        A name with the prefix of a gateway server belongs to that server, unless the client has a
        function of this name.
        """
        tool = self.tools.tools.get(function)
        if tool is not None or function in self.client_functions:
            return tool
        for server in self.requested.servers:
            name = function.removeprefix(f"{server.label}__")
            if name != function:
                return Tool(
                    function=function,
                    description="",
                    parameters=msgspec.Raw(b"{}"),
                    server_label=server.label,
                    name=name,
                )
        return None

    @property
    def shown(self) -> Sequence[bytes]:
        """The committed items as the client sees them."""
        return client_output(self.bodies)

    def count(self, use: ToolUse) -> None:
        """Start with what earlier runs of the turn have used."""
        self.steps, self.calls, self.output_bytes = use.steps, use.calls, use.output_bytes

    def add_images(self, item_id: str, images: Sequence[ToolImage], max_bytes: int) -> None:
        """Queue the images of a call for the turn's chat, within the limits.

        Their source is the call, so that an image that cannot be sent does not affect the answer.
        """
        delivery = self.request.delivery
        if delivery is None:
            return
        files = [_image_file(image, number) for number, image in enumerate(images, 1)]
        kept, notes = bound_files(files, max_bytes, self.sent_files)
        self.sent_files += kept
        empty = replace(to_message(delivery, ""), source=item_id)
        self.found_files += [replace(empty, text=note) for note in notes]
        self.found_files += [replace(empty, file=file) for file in kept]

    def take_files(self) -> tuple[OutboxMessage, ...]:
        """Return the messages to send with the next commit."""
        files, self.found_files = tuple(self.found_files), []
        return files

    def add_usage(self, answer: Answer) -> None:
        """Add the usage of a model call to the total of the run."""
        self.usage = sum_usage(self.usage, answer.usage)
        total, more = self.usage_detail, answer.usage_detail
        if total is not None and more is not None:
            more = msgspec.json.encode(
                _added(msgspec.json.decode(total), msgspec.json.decode(more))
            )
        self.usage_detail = total if more is None else more


def _added(total: Any, more: Any) -> Any:
    """Return two usage objects of a provider added up, field by field."""
    if isinstance(total, dict) and isinstance(more, dict):
        return {name: _added(total.get(name), more.get(name)) for name in {**total, **more}}
    is_number = isinstance(total, int | float) and isinstance(more, int | float)
    return total + more if is_number else more if more is not None else total


def _image_file(image: ToolImage, number: int) -> OutboxFile:
    kind = image.media_type.partition("/")[2].partition("+")[0]
    suffix = "jpg" if kind == "jpeg" else "".join(filter(str.isalnum, kind))[:8] or "bin"
    name = f"image-{number}.{suffix}" if number > 1 else f"image.{suffix}"
    return OutboxFile(name=name, media_type=image.media_type, content=image.content)


def chat_words(
    request: TurnRequest,
    earlier: Sequence[bytes],
    items: Sequence[NewItem],
    new_id: Callable[[str], str],
) -> list[NewItem]:
    """Return the text that a chat client sees as an item, unless the last item has this text.

    The client sends the text back in its history, where it is matched with this item.
    """
    if request.api != "chat":
        return []
    shown = client_output([*earlier, *(item.body for item in items)])
    text = message_of(shown)["content"] or ""
    if request.is_stream:
        text = streamed_text(shown)
    last = items[-1] if items else None
    words = words_item(new_id("gww"), "assistant", text)
    is_said = last is not None and last.fingerprint == words.fingerprint
    return [] if is_said or not text else [words]


async def commit_step(
    run: ActiveRun,
    writer: JournalWriter | None,
    items: Sequence[NewItem],
    answer: Answer | None = None,
    *,
    merges: tuple[TurnId, ...] = (),
    outbox: tuple[OutboxMessage, ...] = (),
) -> None:
    """Commit items after the journal has stopped writing: writes of one run must not overlap."""
    if writer is not None:
        await writer.settle()
    await run.commit_step(
        items,
        state=answer.state if answer is not None else None,
        usage=answer.usage if answer is not None else None,
        merges=merges,
        outbox=outbox,
    )
    if writer is not None:
        writer.begin_step()


MAX_JOINING = 100
"""The most inputs that join at one model call."""


async def waiting_input(read: TurnReader, run: ActiveRun) -> tuple[TurnId, ...]:
    """Return the turns that wait to join a run, in the order in which they arrived."""
    views = await read.turns(run.session.id, after=run.turn.number, limit=MAX_JOINING)
    waiting = [
        view.turn
        for view in views
        if view.turn.is_open and view.turn.position < STEERING // 2 and not view.turn.attempts
    ]
    # Stop at the first turn that may not join: it must run before those behind it.
    return tuple(turn.id for turn in takewhile(lambda each: may_join(each, run.turn), waiting))


def may_join(waiting: Turn, running: Turn) -> bool:
    """Whether the answer of a running turn reaches the sender of a waiting one.

    A turn that asks for no answer of the gateway's models, such as a compaction, does not join, nor
    does one that edits the history. A chat message joins only a turn that answers in the same
    place: a session may have several chats, API clients and schedules.
    """
    request = find_request(waiting.request)
    if request is None or waiting.rewind_after is not None:
        return False
    if request.delivery is None:
        return True
    target, place = request.delivery, delivery_of(running)
    return place is not None and running.source == "channel" and place.place == target.place


def has_waiting(run: ActiveRun) -> bool:
    """Whether turns were accepted after the run's turn, but before its run started."""
    return run.session.turn_count > run.turn.number


async def join_waiting_input(
    read: TurnReader, run: ActiveRun, writer: JournalWriter | None
) -> None:
    """Add waiting input to a turn that continues with tool outputs of its client."""
    joining = await waiting_input(read, run) if has_waiting(run) else ()
    if joining:
        await commit_step(run, writer, (), merges=joining)
