"""A session's store behind a gateway: the same wishes, over HTTP."""

import asyncio
import contextlib
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
import msgspec

from holdfast.agents_sdk.blocks import Block
from holdfast.agents_sdk.wire import Read
from holdfast.core import errors
from holdfast.core.errors import HoldfastError, InvalidInput, RunFenced, StoreUnavailable
from holdfast.core.ids import Key, SessionId, TurnId
from holdfast.core.model.items import NewItem
from holdfast.engine.clock import RandomIds
from holdfast.engine.embedded.external_lane import (
    CompletedRun,
    InRetiredGeneration,
    LaneEnd,
    LaneRequest,
)

TRIES = 4
FIRST_PAUSE_SECONDS = 0.1
RETRIED = frozenset({408, 429, 500, 502, 503, 504})

_encode = msgspec.json.Encoder().encode
_ids = RandomIds()


class _Transcript(msgspec.Struct, frozen=True):
    session_id: SessionId | None
    data: msgspec.Raw
    head_seq: int = 0


class _Hiding(msgspec.Struct, frozen=True):
    kind: str


class _LogEntry(msgspec.Struct, frozen=True):
    item: msgspec.Raw
    hidden_by: _Hiding | None


class _Page(msgspec.Struct, frozen=True):
    data: list[_LogEntry]
    has_more: bool
    last_id: str | None


class _Lane(msgspec.Struct, frozen=True):
    turn_id: TurnId | None = None
    session_id: SessionId | None = None
    elsewhere: InRetiredGeneration | None = None
    done: CompletedRun | None = None


def _all_errors(kind: type[HoldfastError] = HoldfastError) -> dict[str, type[HoldfastError]]:
    found = {kind.code: kind}
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            found = {**_all_errors(below), **found}
    return found


_ERRORS = _all_errors()


def refusal(status: int, body: bytes) -> HoldfastError:
    """Return what a gateway said no with, as the error that it is here too."""
    try:
        said = msgspec.json.decode(body)["error"]
        code, message = str(said["code"]), str(said["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        code, message = "", f"the gateway answered {status}"
    kind = _ERRORS.get(code)
    if kind is None:
        kind = StoreUnavailable if status >= 500 else InvalidInput
    error = kind.__new__(kind, message)
    HoldfastError.__init__(error, message)
    return error


class Line:
    """Connections to one gateway, for the event loops that use them."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            WeakKeyDictionary()
        )

    def client(self) -> aiohttp.ClientSession:
        """Return the client of this event loop."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or client.closed:
            # A lane's connection stays open as long as its run; nothing else takes long.
            client = aiohttp.ClientSession(
                headers=self._headers, timeout=aiohttp.ClientTimeout(total=None, connect=30)
            )
            self._clients[loop] = client
        return client

    async def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> bytes:
        """Return the answer to a request that may be sent twice; a repeat says that it is one."""
        pause = FIRST_PAUSE_SECONDS
        for number in range(TRIES):
            sent = {**headers, "content-type": "application/json"}
            if number:
                sent["x-stainless-retry-count"] = str(number)
            problem: HoldfastError
            try:
                async with self.client().request(
                    method, self.url + path, headers=sent, data=body
                ) as answer:
                    said = await answer.read()
                    if answer.status < 300:
                        return said
                    problem = refusal(answer.status, said)
                    if answer.status not in RETRIED:
                        raise problem
            except (aiohttp.ClientError, OSError) as exc:
                problem = StoreUnavailable(f"the gateway cannot be reached: {exc}")
            if number < TRIES - 1:
                await asyncio.sleep(pause)
                pause *= 2
        raise problem

    async def close(self) -> None:
        """Close the connections of this event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


class RemoteBackend:
    """Carries a session's wishes out on a gateway."""

    def __init__(self, key: Key, url: str, api_key: str | None) -> None:
        self.key = key
        self._line = Line(url, api_key)
        self.place = self._line.url

    def _names(self, session_id: SessionId | None) -> dict[str, str]:
        if session_id is not None:
            return {"x-session-id": session_id}
        return key_header(self.key)

    async def transcript(self, session_id: SessionId | None, last: int | None) -> Read:
        """Return the end of what is visible, of one session or of the key's live one."""
        path = "/v1/transcript" + (f"?last={last}" if last is not None else "")
        said = await self._line.ask("GET", path, self._names(session_id))
        found = msgspec.json.decode(said, type=_Transcript)
        return Read(found.session_id, bytes(found.data), found.head_seq)

    async def history(self) -> list[bytes]:
        """Return all that was said in the live generation, what is summed up included."""
        session_id = (await self.transcript(None, 0)).session_id
        kept: list[bytes] = []
        after = ""
        while session_id is not None:
            path = f"/v1/sessions/{session_id}/items?view=log&limit=100{after}"
            page = msgspec.json.decode(await self._line.ask("GET", path, {}), type=_Page)
            kept += [
                bytes(entry.item)
                for entry in page.data
                if entry.hidden_by is None or entry.hidden_by.kind == "replace"
            ]
            if not page.has_more:
                break
            after = f"&after={page.last_id}"
        return kept

    async def reserve(self) -> SessionId:
        """Return the key's live session, made if there is none."""
        said = await self._line.ask("POST", "/v1/transcript", self._names(None), b'{"items":[]}')
        return SessionId(msgspec.json.decode(said)["session_id"])

    async def new_block(self, session_id: SessionId | None) -> Block:
        """Return a block for a run that begins."""
        return Block(TurnId(_ids.new("turn")), session_id)

    async def add(
        self,
        block: Block,
        items: tuple[NewItem, ...],
        batch_id: str | None = None,
        *,
        replaces_upto: int | None = None,
    ) -> None:
        """Add a batch to a block, once."""
        if block.is_loose:
            block.session_id, block.turn_id, block.ordinal = None, TurnId(_ids.new("turn")), 0
        names = self._names(block.session_id)
        sent: dict[str, Any] = {"items": [msgspec.Raw(item.body) for item in items]}
        if batch_id is not None:
            # The turn is the gateway's to name, so that the same batch has the same body.
            names["idempotency-key"] = batch_id
        else:
            sent |= {"turn_id": block.turn_id, "ordinal": block.ordinal}
        if replaces_upto is not None:
            sent["replaces_upto"] = replaces_upto
        said = await self._line.ask("POST", "/v1/transcript", names, _encode(sent))
        block.session_id = SessionId(msgspec.json.decode(said)["session_id"])
        block.ordinal += 1

    async def pop(self, session_id: SessionId | None) -> bytes | None:
        """Take the last item out of the view and return it."""
        names = {**self._names(session_id), "idempotency-key": _ids.new("pop")}
        said = await self._line.ask("DELETE", "/v1/transcript", names)
        item = msgspec.json.decode(said, type=dict[str, msgspec.Raw])["item"]
        return None if bytes(item) == b"null" else bytes(item)

    async def clear(self) -> None:
        """Begin the key's next generation, if it has one to retire."""
        while True:
            session_id = (await self.transcript(None, 0)).session_id
            if session_id is None:
                return
            try:
                await self._line.ask(
                    "POST", f"/v1/sessions/{session_id}/reset",
                    {"idempotency-key": _ids.new("clear")}, b'{"reason":"clear_session"}',
                )  # fmt: skip
            except errors.SessionChanged:
                continue  # somebody else began another one meanwhile; that one is cleared now
            return

    def lane(self, asked: LaneRequest) -> "RemoteLane":
        """Return a lane that can be taken."""
        return RemoteLane(self._line, asked)

    async def close(self) -> None:
        """Close the connections."""
        await self._line.close()


class RemoteLane:
    """Holds a lane through a gateway: for as long as one connection to it stays open."""

    def __init__(self, line: Line, asked: LaneRequest) -> None:
        self._line = line
        self._asked = asked
        self._holding: aiohttp.ClientResponse | None = None
        self._granted = _Lane()

    @property
    def session_id(self) -> SessionId:
        """The generation that the run has its place in."""
        if self._granted.session_id is None:
            raise InvalidInput("the lane is not taken: async with session.serial()")
        return self._granted.session_id

    @property
    def elsewhere(self) -> InRetiredGeneration | None:
        """Where a parked run goes on, if its generation was retired."""
        return self._granted.elsewhere

    async def take(self) -> CompletedRun | None:
        """Wait for the lane; it is held afterwards, unless a run of this id is done."""
        asked = self._asked
        body = {
            "run_id": asked.run_id,
            "asked": asked.body.hex(),
            "once": asked.is_once,
            "own": asked.is_own,
            "resumes": list(asked.resumes),
        }
        headers = {**key_header(asked.key), "content-type": "application/json"}
        try:
            answer = await self._line.client().post(
                self._line.url + "/v1/transcript/lane", headers=headers, data=_encode(body)
            )
            if answer.status >= 300:
                raise refusal(answer.status, await answer.read())
            self._granted = msgspec.json.decode(await answer.content.readline(), type=_Lane)
        except (aiohttp.ClientError, OSError) as exc:
            raise StoreUnavailable(f"the gateway cannot be reached: {exc}") from exc
        if self._granted.done is not None:
            answer.release()
            return self._granted.done
        self._holding = answer
        return None

    async def add(self, items: tuple[NewItem, ...], batch_id: str | None = None) -> None:
        """Append to the run's block; of a `batch_id`, once."""
        sent = {"items": [msgspec.Raw(item.body) for item in items]}
        headers = {
            **key_header(self._asked.key),
            "content-type": "application/json",
            "x-session-lane": str(self._granted.turn_id),
        }
        if batch_id is not None:
            headers["idempotency-key"] = batch_id
        await self._once("/v1/transcript", headers, sent)

    async def _once(self, path: str, headers: dict[str, str], sent: Any) -> None:
        """Send what may not be sent twice: whether a lost answer was a yes cannot be told."""
        try:
            async with self._line.client().post(
                self._line.url + path, headers=headers, data=_encode(sent)
            ) as answer:
                if answer.status >= 300:
                    raise refusal(answer.status, await answer.read())
        except (aiohttp.ClientError, OSError, errors.TurnNotFound) as exc:
            raise RunFenced(f"the gateway that held the lane is gone: {exc}") from exc

    async def end(self, end: LaneEnd) -> None:
        """End the run and give the lane back."""
        holding, self._holding = self._holding, None
        try:
            path = f"/v1/transcript/lane/{self._granted.turn_id}"
            await self._once(path, {"content-type": "application/json"}, msgspec.to_builtins(end))
        finally:
            if holding is not None:
                with contextlib.suppress(aiohttp.ClientError):
                    holding.close()


def key_header(key: Key) -> dict[str, str]:
    """Return the header that names a session by its key."""
    # HTTP has its own mind about bytes beyond ASCII: aiohttp sends text as UTF-8.
    return {"x-session-key": key}
