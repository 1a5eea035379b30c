"""The commands of a store. Each one is one transaction and is safe to send twice.

The caller mints all ids. After an unknown outcome it sends the same command again with `again` set,
and gets the result of the first one.
"""

from holdfast.core.transaction.commands.channels import (
    ApprovePairing,
    ClaimDeliveries,
    CountBotTurn,
    DeadLetterUpdate,
    DeliveryOutcome,
    EditWaiting,
    ForgetBotTurns,
    HoldChannel,
    KeepPlaceholder,
    NoteReceiver,
    OpenPlaceholder,
    PruneOutbox,
    QueueFacts,
    QueueMessages,
    ReleaseChannel,
    RememberChat,
    RequestPairing,
    ReviseDelivery,
    RevokePairing,
    SettleDelivery,
    StopTurns,
)
from holdfast.core.transaction.commands.command import MAX_HOLD_SECONDS, Command, LaneLimits
from holdfast.core.transaction.commands.schedules import (
    DeleteSchedule,
    ForgetRun,
    PauseSchedule,
    SaveSchedule,
    SettleRun,
    SkipRun,
)
from holdfast.core.transaction.commands.sessions import (
    AddApiKey,
    Annotate,
    Delete,
    ForgetState,
    Fork,
    Import,
    Prune,
    Reserve,
    Reset,
    Restore,
    RevokeApiKey,
)
from holdfast.core.transaction.commands.transcript import (
    Append,
    AppendBatch,
    Appended,
    Compact,
    Hide,
    Pop,
    Popped,
    UndoCompaction,
)
from holdfast.core.transaction.commands.turns import (
    Accept,
    AnnotateCompletion,
    Cancel,
    Claim,
    DropResponse,
    Ended,
    Extend,
    Finish,
    ImportedPrefix,
    JournalEntry,
    MarkDelivered,
    Parent,
    Queued,
    RecordHeal,
    Repeated,
    RequestStop,
    SettleStop,
    Started,
    StoredCompletion,
)
from holdfast.core.transaction.commands.workers import (
    ActiveSession,
    ExpireWorker,
    IndexedItem,
    IndexLog,
    LogPosition,
    Recover,
    Recovered,
    RemovedItems,
    Renew,
    SumUsage,
)
