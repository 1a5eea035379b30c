"""Faults of the decisions: who may write, who is next, what counts once, what a model is shown."""

from tests.faults.fault import Fault

CORE = "src/holdfast/core"
CONTRACT = "tests/contract/test_store.py"

FENCES = (
    Fault(
        "a run of another generation or epoch may write",
        f"{CORE}/turn.py",
        """            and session.is_live
            and session.generation == self.generation
            and session.epoch == self.epoch
            and session.active_run_id == self.run_id
""",
        "",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a checkpoint is not fenced",
        f"{CORE}/run_end.py",
        """    if not command.fence.holds(facts.session):
        return fenced(command.fence, facts, tried="extend", count=len(command.items))
""",
        "",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a forgotten provider state is not fenced",
        f"{CORE}/run_end.py",
        """    if not command.fence.holds(facts.session):
        return fenced(command.fence, facts, tried="drop_provider_state", count=0)
""",
        "",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a late end overwrites the outcome of its run",
        f"{CORE}/run_end.py",
        "RunSaved(replace(facts.run, late=late))",
        'RunSaved(replace(facts.run, late=late, outcome="completed"))',
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a late end sent again is answered as done",
        f"{CORE}/run_end.py",
        "is_done = run is not None and run.outcome == command.outcome and run.late is None",
        "is_done = run is not None",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a reset leaves the epoch of the old generation",
        f"{CORE}/lifecycle.py",
        "draft.set(is_live=False, retired_at=draft.now, epoch=session.epoch + 1)",
        "draft.set(is_live=False, retired_at=draft.now)",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a restore leaves the epoch of what it brings back",
        f"{CORE}/lifecycle.py",
        "back.set(is_live=True, retired_at=None, epoch=session.epoch + 1)",
        "back.set(is_live=True, retired_at=None)",
        (f"{CONTRACT}::TestFencing",),
    ),
)

LANES = (
    Fault(
        "a turn that waits overtakes those before it",
        f"{CORE}/succession.py",
        "if not is_free or waiting.first_position != turn.position:",
        "if not is_free:",
        (f"{CONTRACT}::TestLanes", "tests/properties/test_lane_machine.py"),
    ),
    Fault(
        "an arrival takes a free lane before those who wait",
        f"{CORE}/admission.py",
        "is_first = is_free and waiting.count == 0",
        "is_first = is_free",
        (f"{CONTRACT}::TestLanes", f"{CONTRACT}::TestRecovery"),
    ),
    Fault(
        "the lane of a living worker is taken over",
        f"{CORE}/lane.py",
        "if (facts.has_live_owner or session.owner == worker) and not is_forsaken:",
        "if session.owner == worker and not is_forsaken:",
        (f"{CONTRACT}::TestRecovery", f"{CONTRACT}::TestLanes"),
    ),
    Fault(
        "a turn whose worker keeps dying is tried for ever",
        f"{CORE}/lane.py",
        "if turn.attempts >= limits.max_attempts:",
        "if turn.attempts >= limits.max_attempts + 1000:",
        (f"{CONTRACT}::TestRecovery",),
    ),
    Fault(
        "a hold that ran out keeps its lane",
        f"{CORE}/lane.py",
        "if session.hold_until is None or session.hold_until > facts.now:",
        "if True:",
        (f"{CONTRACT}::TestHolds",),
    ),
    Fault(
        "tool outputs that come too late join their turn",
        f"{CORE}/admission.py",
        """    if session.hold_until is not None and session.hold_until <= facts.now:
        return False
""",
        "",
        (f"{CONTRACT}::TestHolds",),
    ),
    Fault(
        "a lane takes any number of turns",
        f"{CORE}/admission.py",
        'if command.on_busy == "enqueue" and waiting.count >= command.limits.max_waiting:',
        "if False:",
        (f"{CONTRACT}::TestLanes",),
    ),
    Fault(
        "a rollback leaves the items of the turn that it cuts off",
        f"{CORE}/admission.py",
        'if command.on_busy == "interrupt" or stopped.first_seq is None',
        "if True or stopped.first_seq is None",
        (f"{CONTRACT}::TestLanes", "tests/unit/core/test_admission.py"),
    ),
    Fault(
        "what a run had begun is lost when its lane is taken",
        f"{CORE}/lane.py",
        "        turn = keep_partial(draft, turn, run.partial)\n",
        "",
        (f"{CONTRACT}::TestRecovery",),
    ),
)

ONCE = (
    Fault(
        "an idempotency key answers another body",
        f"{CORE}/repeats.py",
        'if row is not None and row.body_hash != (command.body_hash or b""):',
        "if False:",
        (f"{CONTRACT}::TestOnce",),
    ),
    Fault(
        "a second honest request is swallowed as a retry",
        f"{CORE}/repeats.py",
        "if turn.body_hash != command.body_hash or turn.retry_claim >= command.retry_count:",
        "if turn.body_hash != command.body_hash:",
        (f"{CONTRACT}::TestImplicitRetries",),
    ),
    Fault(
        "a retry attaches to an answer that arrived long ago",
        f"{CORE}/repeats.py",
        "return facts.now - turn.delivered_at < DELIVERED_SECONDS",
        "return True",
        (f"{CONTRACT}::TestImplicitRetries",),
    ),
    Fault(
        "a failed turn that may be retried is not run again",
        f"{CORE}/repeats.py",
        'turn.outcome == "interrupted" or (turn.outcome == "failed" and turn.is_retryable)',
        'turn.outcome == "interrupted"',
        (f"{CONTRACT}::TestOnce", f"{CONTRACT}::TestImplicitRetries"),
    ),
    Fault(
        "an accept sent again begins a second turn",
        f"{CORE}/admission.py",
        """    if command.again and facts.turn is not None and facts.turn.id == command.turn_id:
        return found_again(command, facts, facts.turn)
""",
        "",
        (f"{CONTRACT}::TestResubmission",),
    ),
    Fault(
        "items of a checkpoint sent again are stored twice",
        f"{CORE}/run_end.py",
        "    return command.items[max(session.head_seq - command.after_seq, 0) :]",
        "    return command.items",
        (f"{CONTRACT}::TestResubmission",),
    ),
    Fault(
        "a request is not bound to the log that it was compared with",
        f"{CORE}/admission.py",
        """    if command.seen_seq == settled:
        return None
""",
        "    if settled >= 0:\n        return None\n",
        ("tests/integration/test_repeated_histories.py",),
    ),
)

STATE = (
    Fault(
        "the state of a provider outlives a reset",
        f"{CORE}/lifecycle.py",
        """    draft.free_lane()
    draft.add(ProviderStateDropped(session.id))
    draft.tell("session.retired", reason=reason)""",
        """    draft.free_lane()
    draft.tell("session.retired", reason=reason)""",
        (f"{CONTRACT}::TestProviderState", f"{CONTRACT}::TestLifecycle"),
    ),
    Fault(
        "the state of a provider that knows what was hidden since is saved",
        f"{CORE}/run_end.py",
        """    if is_changed(draft.before, facts.heads, command.shown_records):
        draft.add(ProviderStateDropped(draft.before.id))
        return
""",
        "",
        (f"{CONTRACT}::TestHiding", f"{CONTRACT}::TestProviderState"),
    ),
    Fault(
        "the state of a provider covers less than it was told",
        f"{CORE}/run_end.py",
        "covering = replace(state, covers_seq=draft.head_seq)",
        "covering = replace(state, covers_seq=draft.before.head_seq)",
        (f"{CONTRACT}::TestProviderState",),
    ),
    Fault(
        "a compaction leaves the state of a provider that knows the whole log",
        f"{CORE}/compacting.py",
        """    # What a provider remembers is the log as it was shown before.
    draft.add(ProviderStateDropped(session.id))
""",
        "",
        (f"{CONTRACT}::TestCompaction",),
    ),
    Fault(
        "a summary of what was changed meanwhile comes into force",
        f"{CORE}/compacting.py",
        "return refuse(SessionMoved(",
        "_ = (SessionMoved(",
        (f"{CONTRACT}::TestCompaction", f"{CONTRACT}::TestHiding"),
    ),
)

CONTENT = (
    Fault(
        "content of forks is left by a delete",
        f"{CORE}/lifecycle.py",
        "        changes.extend(child.changes())",
        "        changes.extend(c for c in child.changes() if not isinstance(c, ContentErased))",
        (f"{CONTRACT}::TestForks",),
    ),
    Fault(
        "a session that forks point into is erased under them",
        f"{CORE}/lifecycle.py",
        "if visible_forks and not command.cascade:",
        "if False:",
        (f"{CONTRACT}::TestForks",),
    ),
    Fault(
        "an erased item stays in the forks that share it",
        f"{CORE}/hiding.py",
        "    for fork in forks:\n        changes += _hidden(fork, command, facts.now).changes()\n",
        "",
        (f"{CONTRACT}::TestHiding",),
    ),
    Fault(
        "an internal turn is shown what is not finished",
        f"{CORE}/admission.py",
        "seq = finished_seq(parent, facts.active)",
        "seq = parent.head_seq",
        (f"{CONTRACT}::TestInternalTurns",),
    ),
)

TENANTS = (
    Fault(
        "a session of another tenant takes a turn in",
        f"{CORE}/identity.py",
        "if session.tenant != command.tenant or session.deleted_at is not None:",
        "if session.deleted_at is not None:",
        (f"{CONTRACT}::TestIdentity", "tests/unit/ingress/test_isolation.py"),
    ),
    Fault(
        "a session of another tenant is deleted",
        f"{CORE}/lifecycle.py",
        """    session = facts.session
    if session is None or session.tenant != command.tenant:
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    if session.deleted_at is not None:""",
        """    session = facts.session
    if session is None:
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    if session.deleted_at is not None:""",
        (f"{CONTRACT}::TestIdentity",),
    ),
    Fault(
        "an API key is compared by its first characters",
        f"{CORE}/access.py",
        'key.encode("utf-8", "surrogateescape")',
        'key[:24].encode("utf-8", "surrogateescape")',
        ("tests/acceptance/test_access.py",),
    ),
)

PROJECTION = (
    Fault(
        "a call without its output is shown alone",
        f"{CORE}/context.py",
        "        elif call.kind in OUTPUT_OF:\n",
        "        elif call.kind == '':\n",
        ("tests/unit/core/test_context.py", "tests/properties/test_valid_requests.py"),
    ),
    Fault(
        "reasoning is shown without the item that it led to",
        f"{CORE}/context.py",
        "            if leads_to is None:\n                continue\n",
        "            if leads_to is None:\n                leads_to = item\n",
        ("tests/unit/core/test_context.py", "tests/properties/test_valid_requests.py"),
    ),
    Fault(
        "half a call is shown",
        f"{CORE}/context.py",
        '        if item.is_partial and (item.call_id or item.kind == "reasoning"):\n'
        "            continue  # half a call or half a thought is worth nothing\n",
        "",
        ("tests/unit/core/test_context.py", "tests/properties/test_projection.py"),
    ),
    Fault(
        "an item that a provider refused is shown again",
        f"{CORE}/context.py",
        "is_refused = item.seq in quarantined and item.turn_number > 0",
        "is_refused = False",
        ("tests/unit/core/test_context.py",),
    ),
    Fault(
        "a late output of an earlier turn is told to a provider that was told another",
        f"{CORE}/context.py",
        "if only by a made-up output, when it passed.\n            return None",
        "if only by a made-up output, when it passed.\n            new.append(shown.body)",
        ("tests/unit/core/test_context.py", "tests/properties/test_projection.py"),
    ),
    Fault(
        "a turn in flight is hidden by a history that does not repeat it",
        f"{CORE}/novelty.py",
        "return found if open_from is None else _beside(found, sent, log, open_from)",
        "return found",
        ("tests/unit/core/test_novelty.py", "tests/unit/ingress/test_whole_history.py"),
    ),
)

HEALING = (
    Fault(
        "a heal happens after output has left",
        f"{CORE}/healing.py",
        "    if symptoms.has_output:\n        return None\n",
        "",
        ("tests/unit/core/test_healing.py", "tests/integration/test_heals.py"),
    ),
    Fault(
        "stale state is healed again and again",
        f"{CORE}/healing.py",
        "return _replay(symptoms) if not same else None",
        "return _replay(symptoms)",
        ("tests/unit/core/test_healing.py",),
    ),
    Fault(
        "a transient failure is retried for ever",
        f"{CORE}/healing.py",
        "if pause is None or is_late or len(same) >= limits.transient_retries:",
        "if pause is None or is_late:",
        ("tests/unit/core/test_healing.py",),
    ),
    Fault(
        "a request at fault is put to another model",
        f"{CORE}/healing.py",
        "if symptoms.fallback is None or symptoms.blames_request:",
        "if symptoms.fallback is None:",
        ("tests/unit/core/test_healing.py",),
    ),
)

CORE_FAULTS = (*FENCES, *LANES, *ONCE, *STATE, *CONTENT, *TENANTS, *PROJECTION, *HEALING)
