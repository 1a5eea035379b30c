"""Record every request and its answer."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from holdfast.simulator.faults.matching import Match, matches
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.json import Json, encode

_VARYING_HEADERS = frozenset({"host"})
"""Headers that differ from run to run with the same client and the same seed."""


@dataclass(slots=True)
class RequestEntry:
    """One request and its outcome; the outcome is filled in as it happens."""

    call: Call
    status: int | None = None
    answer_id: str | None = None
    fault: str | None = None
    events_sent: int | None = None

    def as_json(self) -> Json:
        """Return the entry as it is listed."""
        call = self.call
        return {
            "number": call.number,
            "api": call.api,
            "operation": call.operation,
            "method": call.method,
            "path": call.path,
            "query": call.query,
            "account": call.account.key,
            "model": call.model,
            "headers": {k: v for k, v in call.headers.items() if k not in _VARYING_HEADERS},
            "body": call.body if call.is_json else call.text,
            "faults": [type(effect).__struct_config__.tag for effect in call.effects],
            "status": self.status,
            "answer_id": self.answer_id,
            "fault": self.fault,
            "events_sent": self.events_sent,
        }


@dataclass(slots=True)
class RequestRecord:
    """The last requests, oldest first; optionally also written to a file."""

    limit: int
    file: IO[bytes] | None = None
    entries: deque[RequestEntry] = field(init=False)

    def __post_init__(self) -> None:
        self.entries = deque(maxlen=self.limit)

    def open(self, call: Call) -> RequestEntry:
        """Add an entry for a call that arrived."""
        entry = RequestEntry(call)
        self.entries.append(entry)
        return entry

    def close(self, entry: RequestEntry) -> None:
        """Write an entry to the file after its answer was sent."""
        if self.file is not None:
            self.file.write(encode(entry.as_json()) + b"\n")
            self.file.flush()

    def find(self, match: Match, *, after: int = 0) -> Iterator[Json]:
        """Yield the entries that match, with numbers above `after`."""
        for entry in list(self.entries):
            if entry.call.number > after and matches(match, entry.call):
                yield entry.as_json()

    def as_jsonl(self, match: Match, *, after: int = 0) -> bytes:
        """Return the same entries as JSON lines."""
        return b"".join(encode(entry) + b"\n" for entry in self.find(match, after=after))

    def clear(self) -> None:
        """Delete all entries; numbering continues."""
        self.entries.clear()
