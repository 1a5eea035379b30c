"""Faults in the decisions: ownership, order, idempotency and projection."""

from tests.faults.fault import Fault

CORE = "src/holdfast/core"
CONTRACT = "tests/contract/test_store.py"

FENCES = (
    Fault(
        "a run of another generation or epoch may write",
        f"{CORE}/model/turn.py",
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
        f"{CORE}/decisions/run.py",
        """    if not command.fence.holds(facts.session):
        return fenced(command.fence, facts, tried="extend", count=len(command.items))
""",
        "",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a heal is not fenced",
        f"{CORE}/decisions/run.py",
        """    if not command.fence.holds(facts.session):
        return fenced(command.fence, facts, tried="record_heal", count=0)
""",
        "",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a late end overwrites the outcome of its run",
        f"{CORE}/decisions/run.py",
        """    return Decision(error, (LateWriteNoted(run.id, run.turn_id, run.session_id, late),))
""",
        """    draft = Draft(facts.session, now=facts.now)
    draft.save_run(replace(run, outcome="completed"))
    changes = (LateWriteNoted(run.id, run.turn_id, run.session_id, late), *draft.changes())
    return Decision(error, changes)
""",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a late end sent again is answered as done",
        f"{CORE}/decisions/run.py",
        "is_done = run is not None and run.outcome == command.outcome and run.late is None",
        "is_done = run is not None",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a reset leaves the epoch of the old generation",
        f"{CORE}/decisions/lifecycle.py",
        "    draft.raise_epoch()\n    draft.set(is_live=False, retired_at=draft.now)\n",
        "    draft.set(is_live=False, retired_at=draft.now)\n",
        (f"{CONTRACT}::TestFencing",),
    ),
    Fault(
        "a restore leaves the epoch of what it brings back",
        f"{CORE}/decisions/lifecycle.py",
        "    restored.raise_epoch()\n",
        "",
        (f"{CONTRACT}::TestFencing",),
    ),
)

EXPECTED = (
    Fault(
        "a turn that was meant for one generation goes to the next",
        f"{CORE}/decisions/accept.py",
        "    if changed is not None:\n        return refuse(changed)\n    if command.is_internal:",
        "    if command.is_internal:",
        ("tests/unit/http/test_expected_session.py",),
    ),
)

LANES = (
    Fault(
        "a turn that waits overtakes those before it",
        f"{CORE}/decisions/recovery.py",
        "if not is_free or waiting.first_position != turn.position:",
        "if not is_free:",
        (f"{CONTRACT}::TestLanes", "tests/properties/test_lane_machine.py"),
    ),
    Fault(
        "an arrival takes a free lane before those who wait",
        f"{CORE}/decisions/accept.py",
        "is_first = is_free and waiting.count == 0",
        "is_first = is_free",
        (f"{CONTRACT}::TestLanes", f"{CONTRACT}::TestRecovery"),
    ),
    Fault(
        "a plain turn takes a free lane before those who wait",
        f"{CORE}/transaction/plain_turns.py",
        "session.active_turn_id is not None or waiting.count or not",
        "session.active_turn_id is not None or not",
        (f"{CONTRACT}::TestLanes", "tests/unit/core/transaction"),
    ),
    Fault(
        "a plain turn is taken into the session of another tenant",
        f"{CORE}/transaction/plain_turns.py",
        "session.tenant != command.tenant or session.deleted_at is not None or session.has_failed",
        "session.deleted_at is not None or session.has_failed",
        ("tests/unit/core/transaction",),
    ),
    Fault(
        "a plain end keeps its lane although others wait for it",
        f"{CORE}/transaction/plain_turns.py",
        "if waiting.count or run.partial is not None",
        "if run.partial is not None",
        (f"{CONTRACT}::TestLanes", "tests/unit/core/transaction"),
    ),
    Fault(
        "a plain turn waits in a queue that is full",
        f"{CORE}/transaction/plain_turns.py",
        "if waiting.count >= limits.max_waiting or len(items) != 1:",
        "if len(items) != 1:",
        (f"{CONTRACT}::TestLanes", "tests/unit/core/transaction"),
    ),
    Fault(
        "a plain turn waits before those who came first",
        f"{CORE}/transaction/plain_turns.py",
        "max(session.turn_count, last, active.position) + 1",
        "max(session.turn_count, active.position) + 1",
        ("tests/unit/core/transaction",),
    ),
    Fault(
        "a turn that asks to interrupt the running one waits like any other",
        f"{CORE}/transaction/plain_turns.py",
        'if command.on_busy != "enqueue" or _accept_options',
        "if _accept_options",
        (f"{CONTRACT}::TestLanes", "tests/unit/core/transaction"),
    ),
    Fault(
        "a plain end hands the lane to a turn that was not named",
        f"{CORE}/transaction/plain_turns.py",
        "if named is None or named.turn_id != following.id or packed is None:",
        "if named is None or packed is None:",
        ("tests/unit/core/transaction",),
    ),
    Fault(
        "a batch that was stored already is appended again",
        f"{CORE}/transaction/plain_turns.py",
        " or turn.step >= command.ordinal:",
        ":",
        ("tests/unit/core/transaction",),
    ),
    Fault(
        "a batch is appended to the session of another tenant",
        f"{CORE}/transaction/plain_turns.py",
        "if session.tenant != command.tenant or session.deleted_at is not None:\n"
        "        return None\n    if session.active_turn_id is not None or command.expected_id",
        "if session.active_turn_id is not None or command.expected_id",
        ("tests/unit/core/transaction",),
    ),
    Fault(
        "the lane of a living worker is taken over",
        f"{CORE}/decisions/lane.py",
        "if (facts.has_live_owner or session.owner == worker) and not is_forsaken:",
        "if session.owner == worker and not is_forsaken:",
        (f"{CONTRACT}::TestRecovery", f"{CONTRACT}::TestLanes"),
    ),
    Fault(
        "a turn whose worker keeps dying is tried for ever",
        f"{CORE}/decisions/lane.py",
        "if is_given_up(turn, limits):",
        "if False:",
        (f"{CONTRACT}::TestRecovery",),
    ),
    Fault(
        "a turn is given up for workers that said goodbye",
        f"{CORE}/decisions/worker_losses.py",
        "    if death is None and not is_forsaken:\n        return turn\n",
        "    death = death or WorkerDeath(at=0.0, running=1)\n",
        (f"{CONTRACT}::TestRecovery",),
    ),
    Fault(
        "a turn that kills its workers late is tried for ever",
        f"{CORE}/decisions/worker_losses.py",
        "losses.crashes >= limits.max_attempts or is_exhausted",
        "losses.crashes >= limits.max_attempts",
        ("tests/unit/core/decisions/test_recovery.py",),
    ),
    Fault(
        "a turn that was given up is run again as often as it is asked for",
        f"{CORE}/decisions/worker_losses.py",
        "return is_new_hour or losses.asked_again < limits.max_attempts",
        "return True",
        ("tests/unit/core/decisions/test_accept.py",),
    ),
    Fault(
        "an innocent turn is given up for a process that ran many",
        f"{CORE}/decisions/worker_losses.py",
        "return death.running <= SUSPECT_RUNS or is_same_step",
        "return True",
        (f"{CONTRACT}::TestRecovery",),
    ),
    Fault(
        "a hold that ran out keeps its lane",
        f"{CORE}/decisions/lane.py",
        "if not _is_hold_over(session, turn, facts.now):",
        "if True:",
        (f"{CONTRACT}::TestHolds",),
    ),
    Fault(
        "tool outputs that come too late join their turn",
        f"{CORE}/decisions/accept.py",
        """    if session.hold_until is not None and session.hold_until <= facts.now:
        return False
""",
        "",
        (f"{CONTRACT}::TestHolds",),
    ),
    Fault(
        "a lane takes any number of turns",
        f"{CORE}/decisions/accept.py",
        "waiting.count >= command.limits.max_waiting:",
        "False:",
        (f"{CONTRACT}::TestLanes",),
    ),
    Fault(
        "a rollback leaves the items of the turn that it cuts off",
        f"{CORE}/decisions/accept.py",
        'if command.on_busy == "interrupt" or stopped.first_seq is None',
        "if True or stopped.first_seq is None",
        (f"{CONTRACT}::TestLanes", "tests/unit/core/decisions/test_accept.py"),
    ),
    Fault(
        "what a run had begun is lost when its lane is taken",
        f"{CORE}/decisions/lane.py",
        "        turn = keep_partial(draft, turn, run.partial)\n",
        "",
        (f"{CONTRACT}::TestRecovery",),
    ),
)

ONCE = (
    Fault(
        "an idempotency key answers another body",
        f"{CORE}/decisions/idempotency.py",
        'if row is not None and row.body_hash != (command.body_hash or b""):',
        "if False:",
        (f"{CONTRACT}::TestOnce",),
    ),
    Fault(
        "a second honest request is swallowed as a retry",
        f"{CORE}/decisions/idempotency.py",
        "command.body_hash or turn.retry_claim & claim_of(command.retry_count):",
        "command.body_hash:",
        (f"{CONTRACT}::TestImplicitRetries",),
    ),
    Fault(
        "a retry attaches to an answer that arrived long ago",
        f"{CORE}/decisions/idempotency.py",
        "return facts.now - turn.delivered_at < DELIVERED_SECONDS",
        "return True",
        (f"{CONTRACT}::TestImplicitRetries",),
    ),
    Fault(
        "a failed turn that may be retried is not run again",
        f"{CORE}/decisions/idempotency.py",
        'turn.outcome == "interrupted" or (turn.outcome == "failed" and turn.is_retryable)',
        'turn.outcome == "interrupted"',
        (f"{CONTRACT}::TestOnce", f"{CONTRACT}::TestImplicitRetries"),
    ),
    Fault(
        "an accept sent again begins a second turn",
        f"{CORE}/decisions/accept.py",
        """    if command.again and facts.turn is not None and facts.turn.id == command.turn_id:
        return found_again(command, facts, facts.turn)
""",
        "",
        (f"{CONTRACT}::TestResubmission",),
    ),
    Fault(
        "items of a checkpoint sent again are stored twice",
        f"{CORE}/decisions/run.py",
        "    return command.items[max(session.head_seq - command.after_seq, 0) :]",
        "    return command.items",
        (f"{CONTRACT}::TestResubmission",),
    ),
    Fault(
        "a request is not bound to the log that it was compared with",
        f"{CORE}/decisions/accept.py",
        """    if command.seen_seq == settled and command.supersedes in (None, active_id):
        return None
""",
        "    if settled >= 0:\n        return None\n",
        ("tests/integration/test_repeated_histories.py",),
    ),
)

STATE = (
    Fault(
        "the state of a provider outlives a reset",
        f"{CORE}/decisions/lifecycle.py",
        """    draft.free_lane()
    draft.add(ProviderStateDropped(session.id))
    draft.add_event("session.retired", reason=reason)""",
        """    draft.free_lane()
    draft.add_event("session.retired", reason=reason)""",
        (f"{CONTRACT}::TestProviderState", f"{CONTRACT}::TestLifecycle"),
    ),
    Fault(
        "the state of a provider that knows what was hidden since is saved",
        f"{CORE}/decisions/run.py",
        """    if is_changed(draft.before, facts.heads, command.shown_records):
        draft.add(ProviderStateDropped(draft.before.id))
        return
""",
        "",
        (f"{CONTRACT}::TestHiding", f"{CONTRACT}::TestProviderState"),
    ),
    Fault(
        "the state of a provider covers less than it was told",
        f"{CORE}/decisions/run.py",
        "covering = replace(state, covers_seq=draft.head_seq)",
        "covering = replace(state, covers_seq=draft.before.head_seq)",
        (f"{CONTRACT}::TestProviderState",),
    ),
    Fault(
        "a compaction leaves the state of a provider that knows the whole log",
        f"{CORE}/decisions/compact.py",
        """    # The provider's state holds the log as it was shown before.
    draft.add(ProviderStateDropped(session.id))
""",
        "",
        (f"{CONTRACT}::TestCompaction",),
    ),
    Fault(
        "a summary of what was changed meanwhile comes into force",
        f"{CORE}/decisions/compact.py",
        "return refuse(SessionMoved(",
        "_ = (SessionMoved(",
        (f"{CONTRACT}::TestCompaction", f"{CONTRACT}::TestHiding"),
    ),
)

CONTENT = (
    Fault(
        "a fact is written with a text that was erased since it was read",
        f"{CORE}/decisions/channels/outbox.py",
        "if any(_may_be_erased(fact, facts) for fact in command.facts):",
        "if False:",
        (f"{CONTRACT}::TestOutbox", "tests/unit/webhooks/test_feed.py"),
    ),
    Fault(
        "a fork behind an earlier answer counts what was hidden since",
        f"{CORE}/decisions/accept.py",
        "hidden = facts.parent_hidden",
        "hidden = facts.hidden",
        ("tests/contract/test_store.py::TestForks",),
    ),
    Fault(
        "content of forks is left by a delete",
        f"{CORE}/decisions/lifecycle.py",
        "        changes.extend(child.changes())",
        "        changes.extend(c for c in child.changes() if not isinstance(c, ContentErased))",
        (f"{CONTRACT}::TestForks",),
    ),
    Fault(
        "a session that forks point into is erased under them",
        f"{CORE}/decisions/lifecycle.py",
        "if visible_forks and not command.cascade:",
        "if False:",
        (f"{CONTRACT}::TestForks",),
    ),
    Fault(
        "an erased item stays in the forks that share it",
        f"{CORE}/decisions/hide.py",
        "        changes += _hidden(fork, command, shared, facts.now).changes()\n",
        "",
        (f"{CONTRACT}::TestHiding",),
    ),
    Fault(
        "an erased item stays where its turn was written before",
        f"{CORE}/decisions/hide.py",
        "spans = [span, *((seq, seq) for seq in own.also)]",
        "spans = [span]",
        (f"{CONTRACT}::TestBlocks",),
    ),
    Fault(
        "a fork is begun from memory though another process erased",
        f"{CORE}/decisions/accept.py",
        "    draft.is_parent_ahead = parent.record_no < session.record_no\n",
        "",
        (f"{CONTRACT}::TestForks",),
    ),
    Fault(
        "an output in place of a hidden one is sent twice",
        f"{CORE}/projection/project.py",
        "if shown.seq is None and call is not None and _is_answered(call, covered):",
        "if False:",
        ("tests/unit/core/projection/test_project.py",),
    ),
    Fault(
        "an internal turn is shown what is not finished",
        f"{CORE}/decisions/accept.py",
        "seq = finished_seq(parent, facts.active)",
        "seq = parent.head_seq",
        (f"{CONTRACT}::TestInternalTurns",),
    ),
)

TENANTS = (
    Fault(
        "a session of another tenant takes a turn in",
        f"{CORE}/decisions/identity.py",
        "if session.tenant != command.tenant or session.deleted_at is not None:",
        "if session.deleted_at is not None:",
        (f"{CONTRACT}::TestIdentity", "tests/unit/http/test_isolation.py"),
    ),
    Fault(
        "a session of another tenant is deleted",
        f"{CORE}/decisions/lifecycle.py",
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
        f"{CORE}/decisions/api_keys.py",
        'key.encode("utf-8", "surrogateescape")',
        'key[:24].encode("utf-8", "surrogateescape")',
        ("tests/acceptance/test_access.py",),
    ),
)

REFUSED_INPUT = (
    Fault(
        "what was left out for one model is left out for its fallback",
        "src/holdfast/engine/model_call/caller.py",
        "            attempt = await _with_all(attempt)\n",
        "",
        ("tests/integration/test_refused_input.py",),
    ),
    Fault(
        "a failure of the server that occurs once hides input",
        "src/holdfast/engine/model_call/caller.py",
        "if not failure.may_refuse_input and answered.last_error != code:",
        "if False:",
        ("tests/integration/test_refused_input.py",),
    ),
    Fault(
        "streams that break off over and over are never healed",
        "src/holdfast/engine/model_call/caller.py",
        "sink = HeldBackSink(writer) if is_held_back else writer",
        "sink = writer",
        ("tests/integration/test_refusal_texts.py",),
    ),
    Fault(
        "any JSON object is an empty answer of a Responses server",
        "src/holdfast/providers/openai_responses/whole_response.py",
        "case None if not (response.error or response.id or self._has_output(response)):",
        "case None if False:",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "a refusal with an unknown text is not healed",
        "src/holdfast/core/errors.py",
        "return self.status in REQUEST_STATUSES",
        "return False",
        ("tests/integration/test_refusal_texts.py",),
    ),
    Fault(
        "a refused output looks like one that never came",
        f"{CORE}/healing/refused_items.py",
        "if item.seq in left_out and _is_output(item) and item.call_id in calls",
        "if False",
        ("tests/unit/core/healing/test_refused_input.py",),
    ),
)

PROJECTION = (
    Fault(
        "malformed arguments of a call are sent as the model wrote them",
        f"{CORE}/projection/normalize.py",
        "valid_arguments(parsed.arguments) is not parsed.arguments",
        "False",
        (
            "tests/unit/core/projection/test_normalize.py",
            "tests/integration/test_malformed_arguments.py",
        ),
    ),
    Fault(
        "malformed arguments of a gateway tool's call are sent as the model wrote them",
        f"{CORE}/projection/project.py",
        "body = normalize_item(kind, shown) if shown is not None else None",
        "body = shown",
        ("tests/tools/test_tool_loop.py",),
    ),
    Fault(
        "text behind calls is sent behind their outputs",
        f"{CORE}/projection/project.py",
        "return index not in self._log.behind_gaps and _is_models(self._log.listed[index])",
        "return False",
        ("tests/unit/core/projection/test_project.py",),
    ),
    Fault(
        "a late output changes what a model has answered",
        f"{CORE}/projection/project.py",
        "if place is not None and needs_output and any(map(_is_models, listed[end:place])):",
        "if False:",
        ("tests/unit/core/projection/test_project.py", "tests/properties/test_projection.py"),
    ),
    Fault(
        "text behind calls is not recognised in front of them",
        f"{CORE}/history/diff.py",
        "            _put_text_first(ordered, first, last, texts, pairs, users)\n",
        "            pass\n",
        ("tests/integration/test_text_behind_calls.py",),
    ),
    Fault(
        "a text is taken for an equal one behind the calls",
        f"{CORE}/history/diff.py",
        "if (log[place - 1].fingerprint, entry.fingerprint) in pairs:",
        "if False:",
        ("tests/integration/test_text_behind_calls.py",),
    ),
    Fault(
        "a call without its output is shown alone",
        f"{CORE}/projection/project.py",
        "            elif needs_output:\n",
        "            elif call.kind == '':\n",
        ("tests/unit/core/projection/test_project.py", "tests/properties/test_valid_requests.py"),
    ),
    Fault(
        "a call moves the output of the turn before it",
        f"{CORE}/projection/project.py",
        "if batch and not _is_same_turn(listed[batch[-1]], item):",
        "if False:",
        ("tests/unit/core/projection/test_project.py",),
    ),
    Fault(
        "reasoning is shown without the item that it led to",
        f"{CORE}/projection/project.py",
        "is_shown, stays = leads_to is not None, leads_to is None or bool(leads_to.call_id)",
        "is_shown, stays = True, leads_to is None or bool(leads_to.call_id)",
        ("tests/unit/core/projection/test_project.py", "tests/properties/test_valid_requests.py"),
    ),
    Fault(
        "half a call is shown",
        f"{CORE}/projection/project.py",
        '        if item.is_partial and (item.call_id or item.kind == "reasoning"):\n'
        "            continue  # an incomplete call or incomplete reasoning is useless\n",
        "",
        ("tests/unit/core/projection/test_project.py", "tests/properties/test_projection.py"),
    ),
    Fault(
        "an item that a provider refused is shown again",
        f"{CORE}/projection/project.py",
        "is_quarantined = item.seq in quarantined and item.turn_number > 0",
        "is_quarantined = False",
        ("tests/unit/core/projection/test_project.py",),
    ),
    Fault(
        "a late output of an earlier turn is told to a provider that was told another",
        f"{CORE}/projection/project.py",
        "if only a synthetic one.\n            return None",
        "if only a synthetic one.\n            new.append(shown.body)",
        ("tests/unit/core/projection/test_project.py", "tests/properties/test_projection.py"),
    ),
    Fault(
        "a turn in flight is hidden by a history that does not repeat it",
        f"{CORE}/history/diff.py",
        "return diff if open_from is None else _spare_open_turn(diff, sent, log, open_from)",
        "return diff",
        ("tests/unit/core/history/test_diff.py", "tests/unit/http/test_whole_history.py"),
    ),
)

HEALING = (
    Fault(
        "a heal happens after output has left",
        f"{CORE}/healing/policy.py",
        "    if symptoms.has_output:\n        return None\n",
        "",
        ("tests/unit/core/healing/test_policy.py", "tests/integration/test_heals.py"),
    ),
    Fault(
        "stale state is healed again and again",
        f"{CORE}/healing/policy.py",
        "return _replay(symptoms) if not same else None",
        "return _replay(symptoms)",
        ("tests/unit/core/healing/test_policy.py",),
    ),
    Fault(
        "a transient failure is retried for ever",
        f"{CORE}/healing/policy.py",
        "if pause is None or is_late or len(same) >= limits.transient_retries:",
        "if pause is None or is_late:",
        ("tests/unit/core/healing/test_policy.py",),
    ),
    Fault(
        "a request at fault is put to another model",
        f"{CORE}/healing/policy.py",
        "if symptoms.fallback is None or symptoms.blames_request:",
        "if symptoms.fallback is None:",
        ("tests/unit/core/healing/test_policy.py",),
    ),
)

CLOCKS = (
    Fault(
        "a hold lasts until the clock has caught up with it",
        f"{CORE}/decisions/lane.py",
        "return session.hold_until <= now or is_ahead or began > now + CLOCK_TOLERANCE_SECONDS",
        "return session.hold_until <= now",
        ("tests/contract/test_store.py::TestClockSteps",),
    ),
    Fault(
        "every small step of the clock ends holds",
        f"{CORE}/decisions/lane.py",
        "CLOCK_TOLERANCE_SECONDS = 60.0",
        "CLOCK_TOLERANCE_SECONDS = 0.0",
        ("tests/contract/test_store.py::TestClockSteps",),
    ),
)

CORE_FAULTS = (
    *FENCES,
    *EXPECTED,
    *LANES,
    *ONCE,
    *STATE,
    *CONTENT,
    *TENANTS,
    *REFUSED_INPUT,
    *PROJECTION,
    *HEALING,
    *CLOCKS,
)
