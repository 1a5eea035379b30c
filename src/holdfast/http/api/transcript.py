"""Transcripts for external agent loops: raw items, whole batches, lanes held by clients.

Used by Agents SDK sessions on a gateway. A client holds a lane as long as its connection lasts;
a disconnect releases it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from holdfast.core.errors import InvalidInput, SessionChanged, TurnNotFound
from holdfast.core.ids import SessionId, Tenant, TurnId, external_turn_id, read_idempotency_key
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import find_request
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Outcome
from holdfast.core.transaction.commands import AppendBatch, Pop, Reserve
from holdfast.engine.embedded.external_lane import ExternalLane, LaneEnd, LaneRequest
from holdfast.engine.sessions.active_run import Batch
from holdfast.engine.sessions.appending import append_batch
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.request.body import (
    Fields,
    pop_field,
    read_no_fields,
    read_optional_fields,
    reject_unknown,
)
from holdfast.http.request.body_decoder import BodyDecoder
from holdfast.http.request.session_headers import (
    SessionHeaders,
    check_expectable,
    name_session,
    read_session_headers,
)
from holdfast.http.request.submit_turn import body_hash
from holdfast.http.server.types import NDJSON, AnyReply, IteratorReply, Reply, Request, json_reply

MAX_ITEMS = 10_000
MAX_ORDINAL = 2**62
HEARTBEAT_SECONDS = 5.0
OUTCOMES: tuple[Outcome, ...] = ("completed", "failed", "interrupted")
LANE = b"x-session-lane"
"""The lane of a batch; a header, so that the body's hash is the same with and without a lane."""

_encode = msgspec.json.Encoder().encode


class TranscriptApi:
    """Everything under /v1/transcript."""

    def __init__(
        self,
        gateway: Gateway,
        decoder: BodyDecoder,
        until_revoked: Callable[[Request], Awaitable[None]],
    ) -> None:
        self._gateway = gateway
        self._decoder = decoder
        self._until_revoked = until_revoked
        self._lanes: dict[tuple[Tenant, TurnId], _HeldLane] = {}
        self._is_closing = False

    def close(self) -> None:
        """Release every lane, so that the server can stop."""
        self._is_closing = True
        for held in self._lanes.values():
            held.is_over.set()

    async def read(self, request: Request) -> AnyReply:
        """Return the last (or all) visible items of a session, unchanged."""
        headers = _session_headers(request)
        transcript = await self._gateway.read.transcript(
            request.tenant,
            session_id=headers.session_id,
            key=headers.key,
            last=_count(request.query().get("last")),
        )
        if transcript is None:
            return json_reply({"object": "transcript", "session_id": None, "data": []})
        name_session(request, transcript.session)
        body = b'{"object":"transcript","session_id":%s,"head_seq":%d,"data":%s}' % (
            _encode(transcript.session.id),
            transcript.session.head_seq,
            transcript.listed,
        )
        return Reply(body)

    async def add(self, request: Request) -> AnyReply:
        """Append a batch to an external turn, once per turn id and ordinal."""
        headers = _session_headers(request)
        fields, sent = await self._decoder.items(request, MAX_ITEMS)
        items = tuple(sent)
        lane = pop_field(fields, "lane", str) or request.by_name.get(LANE, b"").decode("latin-1")
        place = _pop_place(fields)
        reject_unknown(fields)
        if lane:
            key, digest = headers.idempotency_key, await body_hash(request)
            once = Batch(key, digest) if key is not None else None
            held = self._lane(request, lane)
            session_id = held.run.session.id
            if headers.expected_id not in (None, session_id):
                raise SessionChanged(str(headers.expected_id), session_id)
            await held.add(items, once)
            name_session(request, held.run.session, held.run.turn.id)
            return json_reply({"object": "transcript.added", "turn_id": lane})
        if not items and place.replaces_upto is None:
            return await self._reserve(request, headers)
        storage = self._gateway.storage
        turn_id = await self._turn_id(request.tenant, headers, place.client_turn_id)
        batch = self._batch(request, headers, turn_id, place, items, await body_hash(request))
        if items:
            limits = await storage.limits(request.tenant, batch.limits)
            batch = msgspec.structs.replace(batch, limits=limits)
        # A batch that replaces the history must not wait: later writes would make it obsolete.
        if batch.replaces_upto is None:
            result = await append_batch(self._gateway, batch)
        else:
            result = await self._gateway.submit(batch)
        storage.note(request.tenant, sum(len(item.body) for item in items))
        name_session(request, result.session, result.turn.id)
        added: dict[str, object] = {
            "object": "transcript.added",
            "session_id": result.session.id,
            "turn_id": result.turn.id,
            "head_seq": result.session.head_seq,
        }
        if place.client_turn_id:
            added["client_turn_id"] = place.client_turn_id
        return json_reply(added)

    async def _turn_id(self, tenant: Tenant, headers: SessionHeaders, sent: str | None) -> TurnId:
        """Return the id of the turn that a client names, in the conversation that it names.

        A turn of that conversation that has the id itself was returned by us or by an earlier
        version, and is meant.
        """
        read, session_id = self._gateway.read, headers.session_id
        if not sent:
            return TurnId(self._gateway.ids.new("turn"))
        conversation = f"key\0{headers.key}"
        if session_id is not None:
            session = await read.find_session(tenant, session_id=session_id)
            conversation = _conversation(session) if session else f"session\0{session_id}"
        known = await read.turn(tenant, TurnId(sent))
        if known is not None:
            session = await read.find_session(tenant, session_id=known.turn.session_id)
            if session is not None and _conversation(session) == conversation:
                if find_request(known.turn.request) is not None:
                    raise InvalidInput(
                        f"turn {sent} was answered by a model; name another turn",
                        param="turn_id",
                    )
                return known.turn.id
        return external_turn_id(tenant, conversation, sent)

    def _batch(
        self,
        request: Request,
        headers: SessionHeaders,
        turn_id: TurnId,
        place: "_Place",
        items: tuple[NewItem, ...],
        digest: bytes,
    ) -> AppendBatch:
        gateway = self._gateway
        return AppendBatch(
            tenant=request.tenant,
            turn_id=turn_id,
            ordinal=place.ordinal,
            again=headers.retry_count > 0,
            worker=gateway.worker.id,
            candidate_id=gateway.new_session_id(),
            key=headers.key,
            session_id=headers.session_id,
            items=items,
            idempotency_key=headers.idempotency_key,
            body_hash=digest if headers.idempotency_key is not None else None,
            expected_id=headers.expected_id,
            replaces_upto=place.replaces_upto,
        )

    async def _reserve(self, request: Request, headers: SessionHeaders) -> AnyReply:
        if headers.key is None:
            raise InvalidInput("items: at least one item is needed")
        check_expectable(headers)
        session = await self._gateway.submit(
            Reserve(
                tenant=request.tenant,
                candidate_id=self._gateway.new_session_id(),
                key=headers.key,
            )
        )
        name_session(request, session)
        return json_reply({"object": "transcript.added", "session_id": session.id})

    async def pop(self, request: Request) -> AnyReply:
        """Hide the last visible item of a session, and return it."""
        headers = _session_headers(request)
        await read_no_fields(request)
        session_id = headers.session_id
        if session_id is None:
            view = await self._gateway.read.session(request.tenant, key=headers.key)
            session_id = view.session.id if view is not None else None
        if headers.expected_id not in (None, session_id):
            raise SessionChanged(str(headers.expected_id), session_id)
        if session_id is None:
            return json_reply({"object": "transcript.popped", "item": None})
        popped = await self._gateway.submit(
            Pop(
                tenant=request.tenant,
                session_id=session_id,
                pop_id=headers.idempotency_key or self._gateway.ids.new("pop"),
                again=headers.retry_count > 0,
            )
        )
        name_session(request, popped.session)
        item = msgspec.Raw(popped.item.body) if popped.item is not None else None
        return json_reply({"object": "transcript.popped", "item": item})

    # ── lanes ───────────────────────────────────────────────────────────────────────────────

    async def acquire_lane(self, request: Request) -> AnyReply:
        """Wait for a session's lane and hold it as long as this connection lasts."""
        headers, fields = _session_headers(request), await read_optional_fields(request)
        if headers.key is None:
            raise InvalidInput("X-Session-Key is needed to acquire a lane")
        check_expectable(headers)
        run_id = pop_field(fields, "run_id", str)
        lane_request = LaneRequest(
            tenant=request.tenant,
            key=headers.key,
            run_id=read_idempotency_key(run_id) if run_id is not None else None,
            body=pop_field(fields, "asked", str, "").encode(),
            is_once=pop_field(fields, "once", bool, False),
            is_own=pop_field(fields, "own", bool, False),
            resumes=tuple(pop_field(fields, "resumes", list[str], [])),
        )
        reject_unknown(fields)
        lane = ExternalLane(self._gateway, lane_request)
        done = await lane.acquire()
        if done is not None:
            return json_reply({"object": "lane", "done": done})
        name_session(request, lane.run.session, lane.run.turn.id)
        reply = IteratorReply(self._hold(request.tenant, _HeldLane(lane)), headers=(NDJSON,))
        reply.until_ended = self._until_revoked
        return reply

    async def _hold(self, tenant: Tenant, held: "_HeldLane") -> AsyncIterator[bytes]:
        run = held.lane.run
        lane_id = (tenant, run.turn.id)
        self._lanes[lane_id] = held
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
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await held.is_over.wait()
                except TimeoutError:
                    yield b"\n"
        finally:
            del self._lanes[lane_id]
            held.lane.leave()

    async def end_lane(self, request: Request) -> AnyReply:
        """End the run in a lane and release the lane."""
        held = self._lanes.get((request.tenant, TurnId(request.params["turn_id"])))
        fields = await read_optional_fields(request)
        end = LaneEnd(
            outcome=_outcome(pop_field(fields, "outcome", str, "completed")),
            code=pop_field(fields, "code", str),
            message=pop_field(fields, "message", str),
            result=pop_field(fields, "result", str),
        )
        reject_unknown(fields)
        if held is None:
            raise TurnNotFound(f"no lane is held for turn {request.params['turn_id']}")
        await held.lane.end(end)
        held.is_over.set()
        return json_reply({"object": "lane.ended", "turn_id": request.params["turn_id"]})

    def _lane(self, request: Request, turn_id: str) -> ExternalLane:
        held = self._lanes.get((request.tenant, TurnId(turn_id)))
        if held is None:
            raise TurnNotFound(f"no lane is held for turn {turn_id}")
        return held.lane


class _Place(msgspec.Struct, frozen=True):
    """Where a batch belongs in its session."""

    client_turn_id: str | None
    """The client's name of the turn, which is not its id."""
    ordinal: int
    replaces_upto: int | None


class _HeldLane:
    def __init__(self, lane: ExternalLane) -> None:
        self.lane = lane
        self.is_over = asyncio.Event()


def _session_headers(request: Request) -> SessionHeaders:
    headers = read_session_headers(request)
    if not headers.is_bound:
        raise InvalidInput("X-Session-Key or X-Session-Id is needed")
    if headers.session_id is not None and "\0" in headers.session_id:
        headers = msgspec.structs.replace(headers, session_id=SessionId(""))
    return headers


def _count(raw: str | None) -> int | None:
    if raw is None:
        return None
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 16):
        raise InvalidInput(f"last must be a non-negative integer, not {raw[:64]!r}")
    return int(raw)


def _pop_place(fields: Fields) -> _Place:
    turn_id = pop_field(fields, "turn_id", str)
    ordinal = pop_field(fields, "ordinal", int, 0)
    if not 0 <= ordinal < MAX_ORDINAL:
        raise InvalidInput(f"ordinal must be a non-negative integer, not {ordinal}")
    replaces_upto = pop_field(fields, "replaces_upto", int)
    if turn_id:
        _check_turn_id(turn_id)
    return _Place(turn_id, ordinal, replaces_upto)


def _conversation(session: Session) -> str:
    """Return what all generations of a session have in common; a key has no control characters."""
    return f"session\0{session.id}" if session.key is None else f"key\0{session.key}"


def _check_turn_id(raw: str) -> None:
    if not raw.startswith("turn_") or not raw.isascii() or not raw.isprintable() or len(raw) > 128:
        raise InvalidInput(
            "turn_id must start with turn_ and have up to 128 printable ASCII characters"
        )


def _outcome(raw: str) -> Outcome:
    for outcome in OUTCOMES:
        if raw == outcome:
            return outcome
    raise InvalidInput(f"outcome must be one of {', '.join(OUTCOMES)}, not {raw[:64]!r}")
