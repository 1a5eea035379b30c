"""Transcripts for agent loops that are somebody else's: raw items, whole blocks, lanes held.

Made for sessions of the Agents SDK that live on a gateway. A lane lasts as long as the connection
that took it: a client that is gone gives it back.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from holdfast.core.errors import InvalidInput, TurnNotFound
from holdfast.core.ids import SessionId, Tenant, TurnId, read_idempotency_key
from holdfast.core.model.items import NewItem
from holdfast.core.model.turn import Outcome
from holdfast.core.transaction.commands import Continue, Pop, Reserve
from holdfast.engine.embedded.external_lane import ExternalLane, LaneEnd, LaneRequest
from holdfast.engine.sessions.active_run import Batch
from holdfast.engine.sessions.appending import append_batch
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.api.session_items import read_items
from holdfast.http.request.body import Fields, read_fields, read_optional_fields, take
from holdfast.http.request.session_headers import SessionHeaders, read_session_headers
from holdfast.http.request.submit_turn import body_hash
from holdfast.http.server.types import AnyReply, Reply, Request, StreamReply, json_reply

MAX_ITEMS = 10_000
MOST = 2**62
PULSE_SECONDS = 5.0
ENDS: tuple[Outcome, ...] = ("completed", "failed", "interrupted")
LANE = b"x-session-lane"
"""The lane that a batch is added in: not in its body, which is the same in a lane or not."""
NDJSON = (b"content-type", b"application/x-ndjson")

_encode = msgspec.json.Encoder().encode


class TranscriptApi:
    """Everything under /v1/transcript."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._lanes: dict[tuple[Tenant, TurnId], _Held] = {}
        self._is_closing = False

    def close(self) -> None:
        """Have every lane given back, so that the server can stop."""
        self._is_closing = True
        for held in self._lanes.values():
            held.is_over.set()

    async def read(self, request: Request) -> AnyReply:
        """Return the last visible items of a session, or all, exactly as they were added."""
        headers = _bound(request)
        found = await self._gateway.read.transcript(
            request.tenant,
            session_id=headers.session_id,
            key=headers.key,
            last=_count(request.query().get("last")),
        )
        if found is None:
            return json_reply({"object": "transcript", "session_id": None, "data": []})
        body = b'{"object":"transcript","session_id":%s,"head_seq":%d,"data":%s}' % (
            _encode(found.session.id),
            found.session.head_seq,
            found.listed,
        )
        return Reply(body)

    async def add(self, request: Request) -> AnyReply:
        """Add a batch to a turn whose run is somebody else's, once by turn and ordinal."""
        headers, fields = _bound(request), await read_fields(request)
        items = tuple(read_items(fields, most=MAX_ITEMS) or ())
        lane = take(fields, "lane", str) or request.by_name.get(LANE, b"").decode("latin-1")
        if lane:
            name, hashed = headers.idempotency_key, await body_hash(request)
            once = Batch(name, hashed) if name is not None else None
            await self._lane(request, lane).add(items, once)
            return json_reply({"object": "transcript.added", "turn_id": lane})
        if not items:
            return await self._reserve(request, headers)
        batch = self._batch(request, headers, fields, items, await body_hash(request))
        # What replaces a history is of no use once others have written; all else may wait.
        if batch.replaces_upto is None:
            done = await append_batch(self._gateway, batch)
        else:
            done = await self._gateway.submit(batch)
        return json_reply(
            {
                "object": "transcript.added",
                "session_id": done.session.id,
                "turn_id": done.turn.id,
                "head_seq": done.session.head_seq,
            }
        )

    def _batch(
        self,
        request: Request,
        headers: SessionHeaders,
        fields: Fields,
        items: tuple[NewItem, ...],
        hashed: bytes,
    ) -> Continue:
        gateway = self._gateway
        turn_id = take(fields, "turn_id", str)
        return Continue(
            tenant=request.tenant,
            turn_id=_turn_id(turn_id) if turn_id else TurnId(gateway.ids.new("turn")),
            ordinal=_ordinal(take(fields, "ordinal", int, 0)),
            again=headers.retry_count > 0,
            worker=gateway.worker.id,
            candidate_id=gateway.new_session_id(),
            key=headers.key,
            session_id=headers.session_id,
            items=items,
            idempotency_key=headers.idempotency_key,
            body_hash=hashed if headers.idempotency_key is not None else None,
            replaces_upto=take(fields, "replaces_upto", int),
        )

    async def _reserve(self, request: Request, headers: SessionHeaders) -> AnyReply:
        if headers.key is None:
            raise InvalidInput("items: at least one item is needed")
        session = await self._gateway.submit(
            Reserve(
                tenant=request.tenant,
                candidate_id=self._gateway.new_session_id(),
                key=headers.key,
            )
        )
        return json_reply({"object": "transcript.added", "session_id": session.id})

    async def pop(self, request: Request) -> AnyReply:
        """Take the last item of a session out of the view, and return it."""
        headers = _bound(request)
        session_id = headers.session_id
        if session_id is None:
            view = await self._gateway.read.session(request.tenant, key=headers.key)
            if view is None:
                return json_reply({"object": "transcript.popped", "item": None})
            session_id = view.session.id
        popped = await self._gateway.submit(
            Pop(
                tenant=request.tenant,
                session_id=session_id,
                pop_id=headers.idempotency_key or self._gateway.ids.new("pop"),
                again=headers.retry_count > 0,
            )
        )
        item = msgspec.Raw(popped.item.body) if popped.item is not None else None
        return json_reply({"object": "transcript.popped", "item": item})

    # ── lanes ───────────────────────────────────────────────────────────────────────────────

    async def take_lane(self, request: Request) -> AnyReply:
        """Wait for a session's lane and hold it for as long as this connection lasts."""
        headers, fields = _bound(request), await read_optional_fields(request)
        if headers.key is None:
            raise InvalidInput("a lane is taken by the key of its session")
        run_id = take(fields, "run_id", str)
        held = ExternalLane(
            self._gateway,
            LaneRequest(
                tenant=request.tenant,
                key=headers.key,
                run_id=read_idempotency_key(run_id) if run_id is not None else None,
                body=take(fields, "asked", str, "").encode(),
                is_once=take(fields, "once", bool, False),
                is_own=take(fields, "own", bool, False),
                resumes=tuple(take(fields, "resumes", list[str], [])),
            ),
        )
        done = await held.acquire()
        if done is not None:
            return json_reply({"object": "lane", "done": done})
        return StreamReply(self._hold(request.tenant, _Held(held)), headers=(NDJSON,))

    async def _hold(self, tenant: Tenant, held: "_Held") -> AsyncIterator[bytes]:
        run = held.lane.run
        name = (tenant, run.turn.id)
        self._lanes[name] = held
        try:
            yield _encode(
                {
                    "object": "lane",
                    "turn_id": run.turn.id,
                    "session_id": run.session.id,
                    "elsewhere": held.lane.elsewhere,
                }
            ) + b"\n"  # fmt: skip
            while not held.is_over.is_set() and not self._is_closing:
                try:
                    async with asyncio.timeout(PULSE_SECONDS):
                        await held.is_over.wait()
                except TimeoutError:
                    yield b"\n"
        finally:
            del self._lanes[name]
            held.lane.leave()

    async def end_lane(self, request: Request) -> AnyReply:
        """End the run in a lane and give the lane back."""
        held = self._lanes.get((request.tenant, TurnId(request.params["turn_id"])))
        fields = await read_optional_fields(request)
        end = LaneEnd(
            outcome=_outcome(take(fields, "outcome", str, "completed")),
            code=take(fields, "code", str),
            message=take(fields, "message", str),
            result=take(fields, "result", str),
        )
        if held is None:
            raise TurnNotFound(f"nobody holds a lane for turn {request.params['turn_id']} here")
        await held.lane.end(end)
        held.is_over.set()
        return json_reply({"object": "lane.ended", "turn_id": request.params["turn_id"]})

    def _lane(self, request: Request, name: str) -> ExternalLane:
        held = self._lanes.get((request.tenant, TurnId(name)))
        if held is None:
            raise TurnNotFound(f"nobody holds a lane for turn {name} here")
        return held.lane


class _Held:
    def __init__(self, lane: ExternalLane) -> None:
        self.lane = lane
        self.is_over = asyncio.Event()


def _bound(request: Request) -> SessionHeaders:
    headers = read_session_headers(request)
    if not headers.is_bound:
        raise InvalidInput("say which session: X-Session-Key or X-Session-Id")
    if headers.session_id is not None and "\0" in headers.session_id:
        headers = msgspec.structs.replace(headers, session_id=SessionId(""))
    return headers


def _count(raw: str | None) -> int | None:
    if raw is None:
        return None
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 16):
        raise InvalidInput(f"last is a whole number from 0 on, not {raw[:64]!r}")
    return int(raw)


def _ordinal(value: int) -> int:
    if not 0 <= value < MOST:
        raise InvalidInput("ordinal is a whole number from 0 on")
    return value


def _turn_id(raw: str) -> TurnId:
    if not raw.startswith("turn_") or not raw.isascii() or not raw.isprintable() or len(raw) > 128:
        raise InvalidInput("turn_id begins with turn_, and has up to 128 printable characters")
    return TurnId(raw)


def _outcome(raw: str) -> Outcome:
    for outcome in ENDS:
        if raw == outcome:
            return outcome
    raise InvalidInput(f"outcome is one of {', '.join(ENDS)}, not {raw[:64]!r}")
