"""Kinds of findings, each with its meaning and remedy."""

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["problem", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingKind:
    """A kind of finding: a problem to fix, a warning to watch, or a note to know."""

    severity: Severity
    meaning: str
    remedy: str
    is_fixable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding; `subject` identifies it across checks."""

    code: str
    subject: str
    detail: str

    @property
    def kind(self) -> FindingKind:
        """The kind of this finding's code."""
        return KINDS[self.code]

    @property
    def is_fixable(self) -> bool:
        """Whether `--fix` can fix it."""
        return self.kind.is_fixable


KINDS: dict[str, FindingKind] = {
    "store_missing": FindingKind(
        severity="warning",
        meaning="there is no store at this location yet",
        remedy="start `holdfast serve` once, or select another store with --store",
    ),
    "store_damaged": FindingKind(
        severity="problem",
        meaning="the database file is damaged",
        remedy="stop the gateway, keep the file, and restore the latest backup",
    ),
    "check_unfinished": FindingKind(
        severity="problem",
        meaning="a check could not be finished, so it may have missed something",
        remedy="follow the reason; when the database answers again, run doctor again",
    ),
    "store_foreign": FindingKind(
        severity="problem",
        meaning="the database is not a Holdfast store: another application's tables are in it",
        remedy="select another store with --store; nothing was changed",
    ),
    "store_in_memory": FindingKind(
        severity="warning",
        meaning="the store is in memory and is lost with its process",
        remedy="use sqlite:///file.db or postgresql://…",
    ),
    "store_read_only": FindingKind(
        severity="problem",
        meaning="the database accepts no writes, so every turn gets `store_unavailable`",
        remedy="select the primary with --store, or promote this one, or turn the setting off",
    ),
    "store_standby": FindingKind(
        severity="note",
        meaning="what was checked is a standby, as the URL asks; a gateway needs the primary",
        remedy="none needed for commands that read; give gateways a URL of the primary",
    ),
    "schema_too_new": FindingKind(
        severity="problem",
        meaning="the store was written by a newer version than this one",
        remedy="run the newer version, or restore a backup made before the upgrade",
    ),
    "schema_too_old": FindingKind(
        severity="problem",
        meaning="the store was written by an earlier version, with another schema",
        remedy="export its sessions with the version that wrote it, and import them into a new "
        "store",
    ),
    "schema_behind": FindingKind(
        severity="warning",
        meaning="the store's schema is older than this version",
        remedy="back up; then the next start of a gateway, or --fix, migrates it",
        is_fixable=True,
    ),
    "schema_incomplete": FindingKind(
        severity="problem",
        meaning="tables or columns of this schema version are missing",
        remedy="the schema was changed by hand: restore the latest backup",
    ),
    "durability_weak": FindingKind(
        severity="problem",
        meaning="the database is configured so that a crash may lose acknowledged turns",
        remedy="turn the setting back on",
    ),
    "replication_asynchronous": FindingKind(
        severity="warning",
        meaning="a standby that is promoted may lack the last acknowledged turns",
        remedy="set synchronous_standby_names; see Run PostgreSQL highly available",
    ),
    "replication_stalled": FindingKind(
        severity="problem",
        meaning="no commit is acknowledged until a synchronous standby is attached",
        remedy="start the standby, or name another one in synchronous_standby_names",
    ),
    "permissions_open": FindingKind(
        severity="warning",
        meaning="other users of this machine may read or change the store",
        remedy="--fix makes it accessible to its owner only (0600, directories 0700)",
        is_fixable=True,
    ),
    "disk_low": FindingKind(
        severity="problem",
        meaning="the disk of the store is nearly full; writes will fail",
        remedy="free space, or move the store",
    ),
    "wal_large": FindingKind(
        severity="warning",
        meaning="the write-ahead log is large: a reader keeps an old snapshot open",
        remedy="end long readers of the file, such as an open sqlite3 shell; then it shrinks",
    ),
    "clock_skewed": FindingKind(
        severity="warning",
        meaning="this machine's clock and the database's are far apart",
        remedy="synchronise both clocks (NTP); order and leases use the database's only",
    ),
    "clock_went_back": FindingKind(
        severity="warning",
        meaning="the store contains times in the future",
        remedy="synchronise the clock (NTP); order uses sequence numbers and is not affected",
    ),
    "lease_expired": FindingKind(
        severity="warning",
        meaning="a worker is dead and its work has not been recovered yet",
        remedy="any running gateway does so within seconds; with none running, --fix does",
        is_fixable=True,
    ),
    "run_orphaned": FindingKind(
        severity="problem",
        meaning="a session is held by a run whose worker is dead",
        remedy="any running gateway recovers it within seconds; with none running, --fix does",
        is_fixable=True,
    ),
    "turn_abandoned": FindingKind(
        severity="problem",
        meaning="a turn is queued for a worker that is dead",
        remedy="any running gateway recovers it within seconds; with none running, --fix does",
        is_fixable=True,
    ),
    "hold_expired": FindingKind(
        severity="warning",
        meaning="a session still waits for tool outputs after their deadline",
        remedy="the next turn or any running gateway releases it; with none running, --fix does",
        is_fixable=True,
    ),
    "run_stuck": FindingKind(
        severity="warning",
        meaning="a run has been in flight for longer than a turn may take",
        remedy="check its upstream; cancel it with POST /v1/turns/{id}/cancel",
    ),
    "run_without_lane": FindingKind(
        severity="problem",
        meaning="a turn has not ended, holds no lane and does not wait: nothing will end it",
        remedy="report it with this line; its session still accepts turns",
    ),
    "lane_wrong": FindingKind(
        severity="problem",
        meaning="a lane or a queue does not agree with the log of its session",
        remedy="the tables were changed by hand: restore the latest backup",
    ),
    "log_gap": FindingKind(
        severity="problem",
        meaning="the log of a session does not have every entry or item that was written",
        remedy="the tables were changed by hand: restore the latest backup",
    ),
    "log_counts_wrong": FindingKind(
        severity="problem",
        meaning="a count of items, turns or events goes back from one entry to the next",
        remedy="the tables were changed by hand: restore the latest backup",
    ),
    "turn_gap": FindingKind(
        severity="problem",
        meaning="a session does not have every turn that was accepted",
        remedy="the tables were changed by hand: restore the latest backup",
    ),
    "item_ids_wrong": FindingKind(
        severity="problem",
        meaning="the index of item ids does not agree with the items of the log",
        remedy="the tables were changed by hand: restore the latest backup",
    ),
    "projection_invalid": FindingKind(
        severity="problem",
        meaning="an item cannot be read, so its session cannot be projected",
        remedy="--fix hides the item from the model; its bytes stay in the log",
        is_fixable=True,
    ),
    "provider_state_stale": FindingKind(
        severity="problem",
        meaning="provider state is stored for a retired session or for missing items",
        remedy="--fix deletes it; the next turn sends the provider the whole history",
        is_fixable=True,
    ),
    "outbox_dead": FindingKind(
        severity="warning",
        meaning="messages to a channel or webhook were given up",
        remedy="`holdfast outbox list --state dead`, then `outbox retry ID` or `outbox drop ID`",
    ),
    "outbox_late": FindingKind(
        severity="warning",
        meaning="messages have waited for more than ten minutes to be sent",
        remedy="check that a gateway runs and that it reaches the platform",
    ),
    "update_dead": FindingKind(
        severity="warning",
        meaning="a message that arrived could not be handled three times and was passed over",
        remedy="report it with this line; the sender may write again",
    ),
    "channel_failing": FindingKind(
        severity="problem",
        meaning="a channel cannot receive; platforms keep messages for minutes to a day only",
        remedy="follow the reason; on a conflict, stop the other program that polls for this bot",
    ),
    "channel_gap": FindingKind(
        severity="warning",
        meaning="nobody received for longer than the platform keeps messages; some may be lost",
        remedy="ask people to write again; run a gateway, or two, all the time",
    ),
    "schedule_paused": FindingKind(
        severity="warning",
        meaning="a schedule was paused after five failures in a row",
        remedy="see its runs with `holdfast schedules show NAME`, then `schedules resume NAME`",
    ),
    "upstream_api": FindingKind(
        severity="note",
        meaning='an upstream with `api = "auto"` was asked what it speaks',
        remedy="none needed; to fix it, set `api` of the upstream",
    ),
    "upstream_api_unknown": FindingKind(
        severity="warning",
        meaning='an upstream with `api = "auto"` does not tell what it speaks',
        remedy="check its `url` and that the server runs, or set its `api`",
    ),
    "agent_missing": FindingKind(
        severity="problem",
        meaning="the program of a command-line agent is missing or does not start",
        remedy="run what the finding says, or set `command` of the upstream to its path",
    ),
    "agent_too_old": FindingKind(
        severity="problem",
        meaning="a command-line agent is older than the oldest version that is known to work",
        remedy="run what the finding says",
    ),
    "agent_not_logged_in": FindingKind(
        severity="warning",
        meaning="a command-line agent has no credentials, so its model will refuse it",
        remedy="run what the finding says, as the user that runs the gateway",
    ),
    "agent_directory_broken": FindingKind(
        severity="problem",
        meaning="a directory of an agent's sessions cannot be used, or others can read it",
        remedy="give it to the gateway's user alone (chmod 700), or delete it: the log rebuilds it",
    ),
    "agent_unsafe": FindingKind(
        severity="problem",
        meaning="an agent with tools could read what is not its own; `serve` refuses to start",
        remedy="use sandbox = true with bubblewrap installed, or a range of ids in run_as",
    ),
    "agent_reads_sessions": FindingKind(
        severity="warning",
        meaning="an agent with tools can read all sessions: the gateway has no API keys",
        remedy="create a key with `holdfast keys create`; the agent does not learn it",
    ),
    "mcp_unavailable": FindingKind(
        severity="problem",
        meaning="an MCP server does not start or does not answer, so turns have none of its tools",
        remedy="run its command by hand, or see `holdfast config check`; it is retried by itself",
    ),
    "provider_forgot": FindingKind(
        severity="note",
        meaning="a provider had lost its state; the turn was healed with the whole history",
        remedy="none needed; if it happens often, use state = \"replay\" for this upstream",
    ),
    "turn_failed": FindingKind(
        severity="note",
        meaning="a turn failed in the last day",
        remedy="see its code in the errors reference",
    ),
    "session_failing": FindingKind(
        severity="problem",
        meaning="the last turns of a session, three or more, failed with the same error",
        remedy="see the code in the errors reference; if other sessions of the model work, hide "
               "what they do not have with DELETE of its items, or reset the session",
    ),
}  # fmt: skip


def finding_value(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON."""
    return {
        "code": finding.code,
        "severity": finding.kind.severity,
        "subject": finding.subject,
        "detail": finding.detail,
        "meaning": finding.kind.meaning,
        "remedy": finding.kind.remedy,
        "fixable": finding.is_fixable,
    }
