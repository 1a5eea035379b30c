"""The state of one simulator: scenario, clock, accounts and active rules."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from holdfast.simulator.faults.effects import ANSWERING, Effect
from holdfast.simulator.faults.matching import Counter
from holdfast.simulator.state.barriers import Barriers
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.identity import IdSequence, ProviderClock
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.memory import (
    ConversationItem,
    Forgetting,
    ProviderAccount,
    StoredResponse,
    is_chosen,
)
from holdfast.simulator.state.profiles import PROFILES, Profile
from holdfast.simulator.state.record import RequestRecord
from holdfast.simulator.state.scenario import Scenario, Script


@dataclass(slots=True)
class FaultRule:
    """An active fault, and how often it was applied."""

    id: str
    effect: Effect
    counter: Counter

    def as_json(self) -> Json:
        """Return the rule as the control API shows it."""
        return {
            "id": self.id,
            "kind": type(self.effect).__struct_config__.tag,
            "matched": self.counter.matched,
            "struck": self.counter.acted,
        }


@dataclass(slots=True)
class ScriptRule:
    """A scripted answer, and how often it was used."""

    script: Script
    counter: Counter


@dataclass(slots=True)
class World:
    """Everything that outlives a call."""

    scenario: Scenario
    clock: ProviderClock = field(default_factory=ProviderClock)
    accounts: dict[str, ProviderAccount] = field(default_factory=dict)
    barriers: Barriers = field(default_factory=Barriers)
    faults: dict[str, FaultRule] = field(default_factory=dict)
    scripts: list[ScriptRule] = field(default_factory=list)
    profile: Profile = field(init=False)
    record: RequestRecord = field(init=False)
    forgetting: Forgetting = field(init=False)
    calls: int = 0
    _rules: int = 0

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.profile = PROFILES[scenario.profile]
        self.record = RequestRecord(scenario.record_limit)
        self.forgetting = Forgetting(seed=scenario.seed, settings=scenario.forget)
        for effect in scenario.faults:
            self.add_fault(effect)
        for script in scenario.answers:
            self.add_script(script)
        for spec in scenario.barriers:
            self.barriers.add(spec)

    def add_fault(self, effect: Effect) -> FaultRule:
        """Activate a fault."""
        self._rules += 1
        rule = FaultRule(f"fault-{self._rules}", effect, Counter(effect.when, effect.times))
        self.faults[rule.id] = rule
        return rule

    def add_script(self, script: Script) -> None:
        """Activate a scripted answer; the first match is used."""
        self.scripts.append(ScriptRule(script, Counter(script.when, script.times)))

    def reset(self) -> None:
        """Return to the initial state: accounts, record, clock and rules."""
        self.barriers.release_hanging()
        self.barriers.clear()
        self.clock.offset_seconds = 0
        self.accounts.clear()
        self.faults.clear()
        self.scripts.clear()
        self.calls = self._rules = 0
        file = self.record.file
        self.__post_init__()
        self.record.file = file

    def forget(self, *, id: str | None = None, account: str | None = None) -> int:  # noqa: A002
        """Delete one id, one account, or everything; return how many objects."""
        accounts = self.accounts.values() if account is None else [self.account(account)]
        if id is not None:
            return sum(each.forget_owner(id) for each in accounts)
        return sum(each.forget_everything() for each in accounts)

    def account(self, key: str) -> ProviderAccount:
        """Return the account of `key`, creating it if necessary."""
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = ProviderAccount(key=key)
        return account

    def ids_for(self, account: ProviderAccount) -> IdSequence:
        """Count one more call of `account` and return its ids."""
        account.serial += 1
        return IdSequence(f"{self.scenario.seed}/{account.key}/{account.serial}")

    def matching_faults(self, call: Call) -> list[Effect]:
        """Return the active faults that apply to `call`.

        At most one fault of a kind, and none after one that is an answer by itself: the others
        wait for the next call.
        """
        struck: list[Effect] = []
        for rule in self.faults.values():
            effect = rule.effect
            if not is_chosen(effect.chance, self.scenario.seed, rule.id, call.ids.root):
                continue
            is_free = not any(
                isinstance(other, ANSWERING) or type(other) is type(effect) for other in struck
            )
            if rule.counter.count_match(call, may_act=is_free):
                struck.append(effect)
        return struck

    def script_for(self, call: Call) -> Script | None:
        """Return the scripted answer to `call`, if there is one."""
        return next((rule.script for rule in self.scripts if rule.counter.count_match(call)), None)

    def context_tokens(self, model: str, default: int = 400_000) -> int:
        """Return the context window of `model`."""
        for pattern, limit in self.scenario.context.items():
            if fnmatchcase(model, pattern):
                return limit
        return self.scenario.context_tokens or default

    def reasons(self, model: str) -> bool:
        """Return whether `model` produces reasoning."""
        return any(fnmatchcase(model, pattern) for pattern in self.scenario.reasoning_models)

    def unlinks(self, model: str) -> bool:
        """Return whether conversations lose assistant items with `model`."""
        return any(fnmatchcase(model, pattern) for pattern in self.scenario.unlink_models)

    def find_response(self, call: Call, response_id: object) -> StoredResponse | None:
        """Return a response of the caller by its id, unless it has expired."""
        if not isinstance(response_id, str):
            return None
        if call.socket_memory and response_id in call.socket_memory:
            return call.socket_memory[response_id]
        stored = call.account.responses.get(response_id)
        if stored is None or self.forgetting.has_forgotten(
            owner_id=stored.id, created_at=stored.created_at, now=call.now
        ):
            return None
        if self.profile.binds_state_to_model and call.model and call.model != stored.model:
            return None
        return stored

    def find_item(self, call: Call, item_id: object) -> ConversationItem | None:
        """Return an item of the caller by its id, unless it has expired."""
        stored = call.account.items.get(item_id) if isinstance(item_id, str) else None
        if stored is None or self.forgetting.has_forgotten(
            owner_id=stored.owner_id, created_at=stored.created_at, now=call.now
        ):
            return None
        return stored
