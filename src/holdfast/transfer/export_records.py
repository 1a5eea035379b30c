"""Records of Holdfast's export: sessions, turns with their runs, heals and token counts."""

import re
from typing import Annotated, Any

import msgspec

from holdfast.core.healing.policy import Heal, write_heals
from holdfast.core.ids import RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.import_rows import ImportedRun, ImportedTurn
from holdfast.core.model.items import NewItem
from holdfast.core.model.session import Usage
from holdfast.core.model.turn import Outcome, Source, storable

_OUTCOMES: dict[str, Outcome] = {
    "completed": "completed", "failed": "failed", "cancelled": "cancelled"
}  # fmt: skip
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""A time in seconds, within the range of a real clock."""
_ID = re.compile(r"[a-z]+_[0-9A-Za-z]{8,64}")


class TokenCounts(msgspec.Struct, frozen=True):
    """Token counts; None means unknown."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None

    def usage(self) -> Usage | None:
        """Return the counts, unless input or output is unknown."""
        counts = (self.input_tokens, self.cached_tokens, self.output_tokens, self.reasoning_tokens)
        if self.input_tokens is None or self.output_tokens is None:
            return None
        usage = Usage(*(count or 0 for count in counts))
        return usage if usage.is_countable else None


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str | None = None


class _TimedRecord(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    error: _Error | None = None
    started_at: Moment | None = None
    ended_at: Moment | None = None
    duration_ms: Count | None = None

    def times(self) -> tuple[float | None, float | None]:
        """Return start and end, refined by the duration: the times are whole seconds."""
        if self.started_at is None or self.ended_at is None or self.duration_ms is None:
            return self.started_at, self.ended_at
        duration = self.duration_ms / 1000
        started = max(self.started_at, self.ended_at - duration)
        return started, started + duration

    @property
    def outcome(self) -> Outcome:
        """The outcome; anything that had not ended is imported as interrupted."""
        return _OUTCOMES.get(self.status, "interrupted")

    @property
    def code(self) -> str | None:
        return storable(self.error.code) if self.error is not None else None

    @property
    def message(self) -> str | None:
        return storable(self.error.message) if self.error is not None else None


class RunRecord(_TimedRecord, frozen=True, kw_only=True):
    """A run inside the record of its turn."""

    id: str
    step: Count = 0
    epoch: Count
    worker: str
    usage: TokenCounts = TokenCounts()
    heals: tuple[Heal, ...] | None = None
    late: msgspec.Raw | None = None

    def to_imported(self) -> ImportedRun:
        """Return the run for the importer."""
        started, ended = self.times()
        return ImportedRun(
            id=RunId(self.id) if _ID.fullmatch(self.id) else None,
            epoch=self.epoch,
            worker=WorkerId(storable(self.worker) or ""),
            step=self.step,
            outcome=self.outcome,
            error_code=self.code,
            error_message=self.message,
            started_at=started or 0.0,
            ended_at=ended,
            usage=self.usage.usage(),
            heals=write_heals(self.heals) if self.heals else None,
            late=bytes(self.late) if self.late is not None else None,
        )


class TurnRecord(_TimedRecord, frozen=True, kw_only=True):
    """A turn, as the Turns API returns it."""

    id: str
    session_id: str
    number: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    source: Source = "user"
    step: Count = 0
    attempts: Count = 0
    accepted_at: Moment | None = None
    runs: tuple[RunRecord, ...] = ()

    def to_imported(
        self, items: list[NewItem], partial: frozenset[int], owner: SessionId
    ) -> ImportedTurn:
        """Return the turn with its items; it keeps its id only in its own session."""
        is_own = self.session_id == owner and _ID.fullmatch(self.id) is not None
        runs = tuple(run.to_imported() for run in self.runs)
        started, ended = self.times()
        at = started if started is not None else self.accepted_at
        return ImportedTurn(
            items=tuple(items),
            partial=partial,
            at=at,
            ended_at=ended,
            is_by_user=self.source in ("user", "channel"),
            id=TurnId(self.id) if is_own else None,
            source=self.source,
            step=self.step,
            attempts=self.attempts,
            outcome=self.outcome,
            error_code=self.code,
            error_message=self.message,
            accepted_at=self.accepted_at,
            has_begun=self.started_at is not None,
            runs=runs if is_own else (),
        )


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A session, as the Sessions API returns it."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    key: str | None = None
    generation: Annotated[int, msgspec.Meta(ge=1, le=2**53)] = 1
    status: str = "idle"
    created_at: Moment | None = None
    last_user_activity_at: Moment | None = None
    usage: TokenCounts = TokenCounts()
    metadata: dict[str, Any] = {}


_decode_session = msgspec.json.Decoder(SessionRecord).decode
_decode_turn = msgspec.json.Decoder(TurnRecord).decode


def read_turn(line: bytes) -> TurnRecord | None:
    """Parse a turn; return None if the line is invalid."""
    try:
        return _decode_turn(line)
    except (msgspec.DecodeError, RecursionError):
        return None


def read_session(line: bytes) -> SessionRecord | None:
    """Parse a session; return None if the line is invalid."""
    try:
        return _decode_session(line)
    except (msgspec.DecodeError, RecursionError):
        return None
