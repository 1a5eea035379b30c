"""Session backend on a gateway, over HTTP."""

import asyncio
import contextlib
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
import msgspec

from holdfast.agents_sdk.item_codec import TranscriptPage
from holdfast.agents_sdk.run_block import RunBlock
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

MAX_ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.1
RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})

_encode = msgspec.json.Encoder().encode
_ids = RandomIds()


class _Transcript(msgspec.Struct, frozen=True):
    session_id: SessionId | None
    data: msgspec.Raw
    head_seq: int = 0


class _HiddenBy(msgspec.Struct, frozen=True):
    kind: str


class _LogEntry(msgspec.Struct, frozen=True):
    item: msgspec.Raw
    hidden_by: _HiddenBy | None


class _Page(msgspec.Struct, frozen=True):
    data: list[_LogEntry]
    has_more: bool
    last_id: str | None


class _Lane(msgspec.Struct, frozen=True):
    turn_id: TurnId | None = None
    session_id: SessionId | None = None
    elsewhere: InRetiredGeneration | None = None
    done: CompletedRun | None = None


def _errors_by_code(root: type[HoldfastError] = HoldfastError) -> dict[str, type[HoldfastError]]:
    by_code = {root.code: root}
    for subclass in root.__subclasses__():
        if subclass.__module__ == errors.__name__:
            by_code = {**_errors_by_code(subclass), **by_code}
    return by_code


_ERRORS = _errors_by_code()


def error_from_response(status: int, body: bytes) -> HoldfastError:
    """Return the error class that the gateway's error code names, with its message."""
    try:
        error_value = msgspec.json.decode(body)["error"]
        code, message = str(error_value["code"]), str(error_value["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        code, message = "", f"the gateway answered {status}"
    error_class = _ERRORS.get(code)
    if error_class is None:
        error_class = StoreUnavailable if status >= 500 else InvalidInput
    error = error_class.__new__(error_class, message)
    HoldfastError.__init__(error, message)
    return error


class AsyncGatewayClient:
    """HTTP client of one gateway, with one connection pool per event loop."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            WeakKeyDictionary()
        )

    def pool(self) -> aiohttp.ClientSession:
        """Return the connection pool of the running event loop."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None or pool.closed:
            # No total timeout: a lane's connection stays open as long as its run.
            pool = aiohttp.ClientSession(
                headers=self._headers, timeout=aiohttp.ClientTimeout(total=None, connect=30)
            )
            self._pools[loop] = pool
        return pool

    async def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> bytes:
        """Send an idempotent request, with retries marked as such; return the response body."""
        pause = FIRST_PAUSE_SECONDS
        for attempt in range(MAX_ATTEMPTS):
            sent = {**headers, "content-type": "application/json"}
            if attempt:
                sent["x-stainless-retry-count"] = str(attempt)
            problem: HoldfastError
            try:
                async with self.pool().request(
                    method, self.url + path, headers=sent, data=body
                ) as response:
                    content = await response.read()
                    if response.status < 300:
                        return content
                    problem = error_from_response(response.status, content)
                    if response.status not in RETRYABLE_STATUSES:
                        raise problem
            except (aiohttp.ClientError, OSError) as exc:
                problem = StoreUnavailable(f"the gateway cannot be reached: {exc}")
            if attempt < MAX_ATTEMPTS - 1:
                await asyncio.sleep(pause)
                pause *= 2
        raise problem

    async def close(self) -> None:
        """Close the connections of this event loop."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()


class RemoteBackend:
    """Reads and writes one session through a gateway."""

    def __init__(self, key: Key, url: str, api_key: str | None) -> None:
        self.key = key
        self._client = AsyncGatewayClient(url, api_key)
        self.scope = self._client.url

    def _session_headers(self, session_id: SessionId | None) -> dict[str, str]:
        if session_id is not None:
            return {"x-session-id": session_id}
        return key_header(self.key)

    async def transcript(self, session_id: SessionId | None, last: int | None) -> TranscriptPage:
        """Return the last visible items, of one session or of the key's live one."""
        path = "/v1/transcript" + (f"?last={last}" if last is not None else "")
        content = await self._client.request("GET", path, self._session_headers(session_id))
        transcript = msgspec.json.decode(content, type=_Transcript)
        return TranscriptPage(transcript.session_id, bytes(transcript.data), transcript.head_seq)

    async def history(self) -> list[bytes]:
        """Return every item of the live generation, compacted ones included."""
        session_id = (await self.transcript(None, 0)).session_id
        bodies: list[bytes] = []
        after = ""
        while session_id is not None:
            path = f"/v1/sessions/{session_id}/items?view=log&limit=100{after}"
            page = msgspec.json.decode(await self._client.request("GET", path, {}), type=_Page)
            bodies += [
                bytes(entry.item)
                for entry in page.data
                if entry.hidden_by is None or entry.hidden_by.kind == "replace"
            ]
            if not page.has_more:
                break
            after = f"&after={page.last_id}"
        return bodies

    async def reserve(self) -> SessionId:
        """Return the id of the key's live session; create it if there is none."""
        content = await self._client.request(
            "POST", "/v1/transcript", self._session_headers(None), b'{"items":[]}'
        )
        return SessionId(msgspec.json.decode(content)["session_id"])

    async def new_block(self, session_id: SessionId | None) -> RunBlock:
        """Return a block for a new run."""
        return RunBlock(TurnId(_ids.new("turn")), session_id)

    async def add(
        self,
        block: RunBlock,
        items: tuple[NewItem, ...],
        batch_id: str | None = None,
        *,
        replaces_upto: int | None = None,
    ) -> None:
        """Append a batch to a block exactly once."""
        if block.is_standalone:
            block.session_id, block.turn_id, block.ordinal = None, TurnId(_ids.new("turn")), 0
        headers = self._session_headers(block.session_id)
        sent: dict[str, Any] = {"items": [msgspec.Raw(item.body) for item in items]}
        if batch_id is not None:
            # The gateway chooses the turn id, so that a repeated batch has the same body.
            headers["idempotency-key"] = batch_id
        else:
            sent |= {"turn_id": block.turn_id, "ordinal": block.ordinal}
        if replaces_upto is not None:
            sent["replaces_upto"] = replaces_upto
        content = await self._client.request("POST", "/v1/transcript", headers, _encode(sent))
        block.session_id = SessionId(msgspec.json.decode(content)["session_id"])
        block.ordinal += 1

    async def pop(self, session_id: SessionId | None) -> bytes | None:
        """Hide the last item and return it."""
        headers = {**self._session_headers(session_id), "idempotency-key": _ids.new("pop")}
        content = await self._client.request("DELETE", "/v1/transcript", headers)
        item = msgspec.json.decode(content, type=dict[str, msgspec.Raw])["item"]
        return None if bytes(item) == b"null" else bytes(item)

    async def clear(self) -> None:
        """Start the key's next generation, if it has a live one."""
        while True:
            session_id = (await self.transcript(None, 0)).session_id
            if session_id is None:
                return
            try:
                await self._client.request(
                    "POST", f"/v1/sessions/{session_id}/reset",
                    {"idempotency-key": _ids.new("clear")}, b'{"reason":"clear_session"}',
                )  # fmt: skip
            except errors.SessionChanged:
                continue  # somebody else reset it first; clear the new generation
            return

    def lane(self, request: LaneRequest) -> "RemoteLane":
        """Return a lane for `take`."""
        return RemoteLane(self._client, request)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class RemoteLane:
    """Holds a lane through a gateway, for as long as one connection to it stays open."""

    def __init__(self, client: AsyncGatewayClient, request: LaneRequest) -> None:
        self._client = client
        self._request = request
        self._connection: aiohttp.ClientResponse | None = None
        """The response that stays open while the lane is held."""
        self._granted = _Lane()

    @property
    def session_id(self) -> SessionId:
        """The generation that the run writes to."""
        if self._granted.session_id is None:
            raise InvalidInput("the lane is not held; use `async with session.serial()`")
        return self._granted.session_id

    @property
    def elsewhere(self) -> InRetiredGeneration | None:
        """Where an interrupted run continues if its generation was retired."""
        return self._granted.elsewhere

    async def take(self) -> CompletedRun | None:
        """Wait for the lane and hold it, unless a run of this id is done already."""
        request = self._request
        body = {
            "run_id": request.run_id,
            "asked": request.body.hex(),
            "once": request.is_once,
            "own": request.is_own,
            "resumes": list(request.resumes),
        }
        headers = {**key_header(request.key), "content-type": "application/json"}
        try:
            response = await self._client.pool().post(
                self._client.url + "/v1/transcript/lane", headers=headers, data=_encode(body)
            )
            if response.status >= 300:
                raise error_from_response(response.status, await response.read())
            self._granted = msgspec.json.decode(await response.content.readline(), type=_Lane)
        except (aiohttp.ClientError, OSError) as exc:
            raise StoreUnavailable(f"the gateway cannot be reached: {exc}") from exc
        if self._granted.done is not None:
            response.release()
            return self._granted.done
        self._connection = response
        return None

    async def add(self, items: tuple[NewItem, ...], batch_id: str | None = None) -> None:
        """Append to the run's block, at most once per `batch_id`."""
        sent = {"items": [msgspec.Raw(item.body) for item in items]}
        headers = {
            **key_header(self._request.key),
            "content-type": "application/json",
            "x-session-lane": str(self._granted.turn_id),
        }
        if batch_id is not None:
            headers["idempotency-key"] = batch_id
        await self._post_once("/v1/transcript", headers, sent)

    async def _post_once(self, path: str, headers: dict[str, str], value: Any) -> None:
        """Post without retries: after a lost response, the lane's state is unknown."""
        try:
            async with self._client.pool().post(
                self._client.url + path, headers=headers, data=_encode(value)
            ) as response:
                if response.status >= 300:
                    raise error_from_response(response.status, await response.read())
        except (aiohttp.ClientError, OSError, errors.TurnNotFound) as exc:
            raise RunFenced(f"the gateway that held the lane is gone: {exc}") from exc

    async def end(self, end: LaneEnd) -> None:
        """End the run and release the lane."""
        connection, self._connection = self._connection, None
        try:
            path = f"/v1/transcript/lane/{self._granted.turn_id}"
            await self._post_once(
                path, {"content-type": "application/json"}, msgspec.to_builtins(end)
            )
        finally:
            if connection is not None:
                with contextlib.suppress(aiohttp.ClientError):
                    connection.close()


def key_header(key: Key) -> dict[str, str]:
    """Return the header that names a session by its key."""
    # aiohttp encodes header text as UTF-8, which the gateway expects.
    return {"x-session-key": key}
