"""Kinds of findings: each with what it means and what to do about it."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["problem", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of finding. A problem wants to be mended; a warning watched; a note known."""

    severity: Severity
    meaning: str
    remedy: str
    is_fixable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found: `subject` names it, so that it is the same one next time."""

    code: str
    subject: str
    detail: str

    @property
    def kind(self) -> Kind:
        """What findings of this code mean."""
        return KINDS[self.code]

    @property
    def is_fixable(self) -> bool:
        """Whether `--fix` mends it."""
        return self.kind.is_fixable


KINDS: dict[str, Kind] = {
    "store_missing": Kind(
        severity="warning",
        meaning="there is no store at this place yet",
        remedy="start `holdfast serve` once, or name another store with --store",
    ),
    "store_damaged": Kind(
        severity="problem",
        meaning="the database file is damaged",
        remedy="stop the gateway, keep the file, and restore the latest backup",
    ),
    "store_in_memory": Kind(
        severity="warning",
        meaning="the store is in memory and ends with its process",
        remedy="use sqlite:///file.db or postgresql://…",
    ),
    "schema_too_new": Kind(
        severity="problem",
        meaning="the store was written by a newer version than this one",
        remedy="run the newer version, or restore a backup made before the upgrade",
    ),
    "schema_too_old": Kind(
        severity="problem",
        meaning="the store was written by an earlier version, with another schema",
        remedy="copy it with `holdfast upgrade OLD NEW`, and use the new store",
    ),
    "schema_behind": Kind(
        severity="warning",
        meaning="the store's schema is older than this version",
        remedy="back up; then the next start of a gateway, or --fix, brings it up to date",
        is_fixable=True,
    ),
    "schema_incomplete": Kind(
        severity="problem",
        meaning="tables or columns that this schema version has are missing",
        remedy="somebody changed the schema by hand: restore the latest backup",
    ),
    "durability_weak": Kind(
        severity="problem",
        meaning="the database is set up so that a crash may lose acknowledged turns",
        remedy="turn the setting back on",
    ),
    "disk_low": Kind(
        severity="problem",
        meaning="the disk of the store is nearly full; writes will fail",
        remedy="free some space, or move the store",
    ),
    "wal_large": Kind(
        severity="warning",
        meaning="the write-ahead log has grown large: somebody keeps an old snapshot open",
        remedy="end long readers of the file, such as an open sqlite3 shell; it then shrinks",
    ),
    "clock_skewed": Kind(
        severity="warning",
        meaning="this machine's clock and the database's are far apart",
        remedy="synchronise both clocks (NTP); order and leases go by the database's alone",
    ),
    "clock_went_back": Kind(
        severity="warning",
        meaning="the store holds times that lie in the future",
        remedy="synchronise the clock (NTP); order is by sequence and does not suffer",
    ),
    "lease_expired": Kind(
        severity="warning",
        meaning="a worker is gone and nobody has cleared up after it yet",
        remedy="any running gateway does so within seconds; with none running, --fix does",
        is_fixable=True,
    ),
    "run_orphaned": Kind(
        severity="problem",
        meaning="a session is held by a run whose worker is gone",
        remedy="any running gateway settles it within seconds; with none running, --fix does",
        is_fixable=True,
    ),
    "turn_abandoned": Kind(
        severity="problem",
        meaning="a turn waits, and the worker that should run it is gone",
        remedy="any running gateway settles it within seconds; with none running, --fix does",
        is_fixable=True,
    ),
    "hold_expired": Kind(
        severity="warning",
        meaning="a session still waits for tool outputs whose time is over",
        remedy="the next turn or any running gateway frees it; with none running, --fix does",
        is_fixable=True,
    ),
    "run_stuck": Kind(
        severity="warning",
        meaning="a run has been under way for longer than a turn may take",
        remedy="look at its upstream; end it with POST /v1/turns/{id}/cancel",
    ),
    "run_without_lane": Kind(
        severity="problem",
        meaning="a turn has not ended, and neither has its lane nor waits: nothing will end it",
        remedy="report it with this line; its session takes turns all the same",
    ),
    "lane_wrong": Kind(
        severity="problem",
        meaning="a lane or a queue does not agree with the log of its session",
        remedy="somebody changed the tables by hand: restore the latest backup",
    ),
    "log_gap": Kind(
        severity="problem",
        meaning="the log of a session does not have every entry or item that was written",
        remedy="somebody changed the tables by hand: restore the latest backup",
    ),
    "log_counts_wrong": Kind(
        severity="problem",
        meaning="a count of items, turns or events goes back from one entry to the next",
        remedy="somebody changed the tables by hand: restore the latest backup",
    ),
    "turn_gap": Kind(
        severity="problem",
        meaning="a session does not have every turn that was accepted",
        remedy="somebody changed the tables by hand: restore the latest backup",
    ),
    "item_ids_wrong": Kind(
        severity="problem",
        meaning="the index of item ids does not agree with the items of the log",
        remedy="somebody changed the tables by hand: restore the latest backup",
    ),
    "projection_invalid": Kind(
        severity="problem",
        meaning="an item cannot be read, so no request can be made of its session",
        remedy="--fix hides the item from the model; its bytes stay in the log",
        is_fixable=True,
    ),
    "provider_state_stale": Kind(
        severity="problem",
        meaning="state of a provider is kept for what is over, or for items that are not there",
        remedy="--fix forgets it; the next turn tells the provider the whole history",
        is_fixable=True,
    ),
    "provider_forgot": Kind(
        severity="note",
        meaning="a provider had forgotten its state; the turn was healed with the whole history",
        remedy="none is needed; if it happens often, use state = \"replay\" for this upstream",
    ),
    "turn_failed": Kind(
        severity="note",
        meaning="a turn failed in the last day",
        remedy="its code says why; see the errors reference. The session takes the next turn",
    ),
}  # fmt: skip
