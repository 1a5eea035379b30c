"""The contract of stores: the promises of `ports.store`, as tests to run on an implementation.

Each class here is a chapter. A test module inherits them and provides these fixtures:

- `clock`: a `ManualClock`, the only time source of the store;
- `store`: an open, empty store;
- `neighbour`: the same store opened by another process (or itself, if it lives in one process);
- `caller` and `other`: an enlisted `StoreClient` of each of them.

    class TestIdentity(IdentityContract): ...
"""

from holdfast.testing.search_contract import SearchContract
from holdfast.testing.store_contract.blocks import BlockContract
from holdfast.testing.store_contract.channels.outbox import (
    BurstContract,
    EditContract,
    OutboxContract,
)
from holdfast.testing.store_contract.channels.receiving import (
    BotTurnContract,
    ChannelAccessContract,
    ReceiverContract,
)
from holdfast.testing.store_contract.channels.schedules import ScheduleContract
from holdfast.testing.store_contract.compaction import CompactionContract
from holdfast.testing.store_contract.fencing import FencingContract
from holdfast.testing.store_contract.forks import ForkContract
from holdfast.testing.store_contract.hiding import HidingContract
from holdfast.testing.store_contract.identity import IdentityContract, InternalTurnContract
from holdfast.testing.store_contract.lanes import HoldContract, LaneContract
from holdfast.testing.store_contract.lifecycle import LifecycleContract
from holdfast.testing.store_contract.listings import ListingContract
from holdfast.testing.store_contract.once import ImplicitRetryContract, OnceContract
from holdfast.testing.store_contract.provider_state import ProviderStateContract
from holdfast.testing.store_contract.recovery import ClockStepContract, RecoveryContract
from holdfast.testing.store_contract.resubmission import ResubmissionContract
from holdfast.testing.store_contract.rollover import RolloverContract
from holdfast.testing.store_contract.transcript import TranscriptContract

__all__ = [
    "BlockContract",
    "BotTurnContract",
    "BurstContract",
    "ChannelAccessContract",
    "ClockStepContract",
    "CompactionContract",
    "EditContract",
    "FencingContract",
    "ForkContract",
    "HidingContract",
    "HoldContract",
    "IdentityContract",
    "ImplicitRetryContract",
    "InternalTurnContract",
    "LaneContract",
    "LifecycleContract",
    "ListingContract",
    "OnceContract",
    "OutboxContract",
    "ProviderStateContract",
    "ReceiverContract",
    "RecoveryContract",
    "ResubmissionContract",
    "RolloverContract",
    "ScheduleContract",
    "SearchContract",
    "TranscriptContract",
]
